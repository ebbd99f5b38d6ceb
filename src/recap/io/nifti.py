"""NIfTI-1 and NIfTI-2 volumes (.nii, .nii.gz, .hdr with .img), and maps written as NIfTI.

Headers are parsed by nibabel; voxels are streamed here, so that a damaged or hostile header
cannot claim memory. Positions are taken to be millimetres, as all viewers do.
"""

import gzip
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from recap._files import replacing
from recap.config import Axis
from recap.errors import InputError, require
from recap.io.volume import (
    UNPACK_ERRORS,
    Grid,
    Volume,
    careful,
    check_one_volume,
    grid_for,
    open_unpacked,
    read_voxels,
    room_for_voxels,
    seek_voxels,
)
from recap.types import FloatArray, Window

# Header size to where its magic stands, and the magics: voxels in the same file, in another.
_MAGICS = {348: (344, b"n+1\0", b"ni1\0"), 540: (4, b"n+2\0", b"ni2\0")}
_LONGEST_HEADER = 540
# Extensions between header and voxels hold notes, not images.
_MAX_OFFSET = 2**28
_SCANNER = 1
# Part of a voxel by which the two ways to write an orientation may differ at the far corner.
_FORMS_AGREE = 0.01
_LARGEST_NIFTI1 = 2**15 - 1
_FORMS = (
    *("qform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
    *("sform_code", "srow_x", "srow_y", "srow_z"),
)
# Float maps hardly shrink further, and a large one takes minutes at the usual level.
_GZIP_LEVEL = 1


def is_nifti(path: str | Path) -> bool:
    """Tell whether a file starts with a NIfTI header; the .img of a pair does not."""
    try:
        with open_unpacked(Path(path)) as stream:
            return _header_layout(stream.read(_LONGEST_HEADER)) is not None
    # What cannot be opened or unpacked is no NIfTI; the reader says why.
    except (InputError, *UNPACK_ERRORS):
        return False


def nifti_pair(path: Path) -> tuple[Path, Path] | None:
    """Header and voxels, if a file is one half of a NIfTI pair and the other lies beside it."""
    header, voxels = _other_half(path, ".img", ".hdr"), _other_half(path, ".hdr", ".img")
    if header == voxels:
        return None
    return (header, voxels) if is_nifti(header) and not is_nifti(voxels) else None


def read_nifti(path: str | Path, axis: Axis) -> Volume:
    """Read a volume in the file's own unit, cut along an axis of the body.

    Either half of a pair may be named. Voxels that are NaN or infinite, as resampling leaves them
    outside the field of view, become the lowest finite value.
    """
    path = Path(path)
    with careful(path):
        first = _other_half(path, ".img", ".hdr")
        header, alone = _read_header(first)
        shape = _volume_shape(header.get_data_shape(), path)
        dtype = _dtype(header)
        voxels = first if alone else _voxel_file(first)
        with open_unpacked(voxels) as stream:
            seek_voxels(stream, _voxel_offset(header, alone), shape, dtype, voxels)
            grid = grid_for(shape, np.array(header.get_best_affine(), float), axis, str(path))
            forms = {name: header[name].copy() for name in (*_FORMS, "pixdim")}
            grid = replace(grid, nifti_forms={**forms, "pixdim": forms["pixdim"][:4]})
            with room_for_voxels(shape, str(path)):
                # None where the file sets none: it holds its values as they are.
                slope, offset = header.get_slope_inter()
                scale = (
                    1.0 if slope is None else float(slope),
                    0.0 if offset is None else float(offset),
                )
                values = read_voxels(stream, shape, dtype, str(path), scale)
        return Volume(grid.take(values), grid, str(path), window=_window(header, values))


def write_map_volume(path: str | Path, stack: FloatArray, grid: Grid) -> None:
    """Write maps (N, H, W) as .nii.gz with the shape and the affine of the volume they belong to.

    A NIfTI source gets both of its forms back as they were: programs differ in which they use.
    Maps within 0..1 carry that as their display range, so that viewers do not stretch each map
    to its own. The same maps give the same bytes.
    """
    path = Path(path)
    if not path.name.lower().endswith(".nii.gz"):
        raise InputError(f"{path}: a map volume is written as .nii.gz. Name it so.")
    wanted = tuple(grid.shape[axis] for axis in grid.axes)
    if stack.shape != wanted:
        raise InputError(
            f"{path}: maps of shape {stack.shape} do not fit a volume whose slices are {wanted}. "
            "Give one map per slice, each of the slice's own size."
        )
    stored = grid.restore(stack)
    header = _map_header(grid)
    if stack.min() >= 0 and stack.max() <= 1:
        header["cal_min"], header["cal_max"] = 0, 1
    with replacing(path) as file, gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
        packed.write(header.binaryblock)
        packed.write(bytes(header.single_vox_offset - len(header.binaryblock)))
        for k in range(grid.shape[2]):
            packed.write(stored[:, :, k].astype("<f4").tobytes(order="F"))


def _header_layout(start: bytes) -> tuple[int, str, bool] | None:
    """Size and byte order of the header at the start of a file, and whether voxels follow it."""
    for order in "<>":
        size = struct.unpack(f"{order}i", start[:4])[0] if len(start) >= 4 else 0
        if size in _MAGICS and len(start) >= size:
            at, same_file, other_file = _MAGICS[size]
            if (magic := start[at : at + 4]) in (same_file, other_file):
                return size, order, magic == same_file
    return None


def _read_header(path: Path) -> tuple[Any, bool]:
    """The header as nibabel parses it, and whether the voxels stand in the same file."""
    nibabel = require("nibabel", "volumes")
    with open_unpacked(path) as stream:
        start = stream.read(_LONGEST_HEADER)
    layout = _header_layout(start)
    if layout is None:
        raise InputError(
            f"{path}: this is not a NIfTI file. Convert it to NIfTI, for example with dcm2niix."
        )
    size, order, alone = layout
    kind = nibabel.Nifti1Header if size == 348 else nibabel.Nifti2Header
    return kind(start[:size], endianness=order, check=False), alone


def _voxel_file(path: Path) -> Path:
    found = _other_half(path, ".hdr", ".img")
    if found == path or not found.is_file():
        raise InputError(
            f"{path}: this header has its voxels in an .img file of the same name, which is not "
            "there. Put both files into one folder."
        )
    return found


def _other_half(path: Path, half: str, other: str) -> Path:
    """For one half of a pair the other half beside it; the path itself for all other files."""
    stem = path.name.removesuffix(".gz")
    if not stem.lower().endswith(half):
        return path
    stem = stem[: -len(half)]
    names = [stem + case + packed for case in (other, other.upper()) for packed in ("", ".gz")]
    return next((path.with_name(name) for name in names if path.with_name(name).is_file()), path)


def _volume_shape(declared: tuple[int, ...], path: Path) -> tuple[int, ...]:
    """The lengths of the three axes in space; a flat file is one voxel thick."""
    sizes = [int(size) for size in declared]
    while len(sizes) > 3 and sizes[-1] == 1:
        sizes.pop()
    sizes += [1] * (3 - len(sizes))
    check_one_volume(sizes[3:], tuple(sizes), path)
    return tuple(sizes[:3])


def _dtype(header: Any) -> np.dtype[Any]:
    try:
        return header.get_data_dtype()
    except KeyError as error:
        raise ValueError(f"there is no voxel type {error}") from error


def _voxel_offset(header: Any, alone: bool) -> int:
    offset = int(header.get_data_offset())
    least = int(header["sizeof_hdr"]) if alone else 0
    if not least <= offset <= _MAX_OFFSET:
        raise ValueError(f"its voxels would start at byte {offset}")
    return offset


def _window(header: Any, values: FloatArray) -> Window | None:
    """Read the window the header asks for, if it shows any of the values apart."""
    low, high = float(header["cal_min"]), float(header["cal_max"])
    if not (np.isfinite([low, high]).all() and low < high):
        return None
    return (low, high) if low < values.max() and high > values.min() else None


def _map_header(grid: Grid) -> Any:
    nibabel = require("nibabel", "volumes")
    small = max(grid.shape) <= _LARGEST_NIFTI1
    header = (nibabel.Nifti1Header if small else nibabel.Nifti2Header)(endianness="<")
    header.set_data_dtype(np.float32)
    header.set_data_shape(grid.shape)
    header.set_xyzt_units("mm")
    header.set_slope_inter(1, 0)
    header["vox_offset"] = header.single_vox_offset
    _place(header, grid)
    if (forms := grid.nifti_forms) is not None:
        # What the source itself says of its place replaces that.
        for name in _FORMS:
            header[name] = forms[name]
        sizes = forms["pixdim"][1:]
        header["pixdim"][0] = forms["pixdim"][0]  # the sign of the quaternion's third axis
        # A flat file may give its thickness as 0.
        known = np.isfinite(sizes) & (sizes != 0)
        header["pixdim"][1:4] = np.where(known, sizes, header["pixdim"][1:4])
    return header


def _place(header: Any, grid: Grid) -> None:
    """Set both forms, but only one of them where they would disagree.

    The quaternion form cannot hold shears. A source that had only that form gets it back exactly,
    while the other one would round it.
    """
    affine = grid.affine_ras
    header.set_sform(affine, code=_SCANNER)
    header.set_qform(affine, code=_SCANNER, strip_shears=True)
    by_quaternion = header.get_qform()
    far_mm = np.abs(by_quaternion - affine)[:3] @ [*grid.shape, 1]
    if far_mm.max() > _FORMS_AGREE * np.linalg.norm(affine[:3, :3], axis=0).min():
        header["qform_code"] = 0
    elif np.array_equal(by_quaternion, affine) and not np.array_equal(header.get_sform(), affine):
        header["sform_code"] = 0
