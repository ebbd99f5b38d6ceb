"""NRRD volumes whose header and voxels share one file.

Fields are parsed by pynrrd; voxels are streamed here, so that a damaged or hostile header cannot
claim memory.
"""

import bz2
import gzip
import re
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from recap.config import Axis
from recap.errors import InputError, require
from recap.io.volume import (
    UNPACK_ERRORS,
    Affine,
    Volume,
    careful,
    check_one_volume,
    grid_for,
    open_unpacked,
    read_voxels,
    room_for_voxels,
    seek_voxels,
)
from recap.types import FloatArray

_MAGIC = re.compile(rb"NRRD000\d")
_MAX_HEADER = 2**22
_TYPES = {
    "i1": "signed char, int8, int8_t",
    "u1": "uchar, unsigned char, uint8, uint8_t",
    "i2": "short, short int, signed short, signed short int, int16, int16_t",
    "u2": "ushort, unsigned short, unsigned short int, uint16, uint16_t",
    "i4": "int, signed int, int32, int32_t",
    "u4": "uint, unsigned int, uint32, uint32_t",
    "i8": "longlong, long long, long long int, signed long long, signed long long int, "
    "int64, int64_t",
    "u8": "ulonglong, unsigned long long, unsigned long long int, uint64, uint64_t",
    "f4": "float",
    "f8": "double",
}
_CODES = {name: code for code, names in _TYPES.items() for name in names.split(", ")}
_REQUIRED = ("type", "dimension", "sizes", "encoding")
_SKIPS = ("line skip", "lineskip", "byte skip", "byteskip")
Header = dict[str, Any]
# The kinds of axis that may lie in space; all others count frames, colours or components.
_SPATIAL_KINDS = {"domain", "space", "???", "none"}
_SPACES = re.compile("(r|l)(?:ight|eft)?-?(a|p)(?:nterior|osterior)?-?(s|i)(?:uperior|nferior)?")


def is_nrrd(path: str | Path) -> bool:
    """Tell whether a file starts as NRRD does."""
    try:
        with open_unpacked(Path(path)) as stream:
            return _MAGIC.match(stream.read(8)) is not None
    except (InputError, *UNPACK_ERRORS):
        return False


def read_nrrd(path: str | Path, axis: Axis) -> Volume:
    """Read a volume in the file's own unit, cut along an axis of the body.

    Voxels that are NaN or infinite, as resampling leaves them outside the field of view, become
    the lowest finite value.
    """
    path = Path(path)
    with careful(path), open_unpacked(path) as stream:
        header = _read_header(stream, path)
        sizes = _sizes(header, path)
        spatial = spatial_axes(header, len(sizes))
        affine = affine_ras(header, spatial)
        voxels = _unpacked(stream, header, path)
        stored = _read_volume(voxels, header, sizes, spatial, path)
        grid = grid_for(stored.shape, affine, axis, str(path))
        return Volume(grid.take(stored), grid, str(path))


def _read_header(stream: IO[bytes], path: Path) -> Header:
    nrrd = require("nrrd", "volumes")
    if not _MAGIC.match(magic := stream.readline(80)):
        raise InputError(f"{path}: this is not an NRRD file. Save the volume as NRRD or NIfTI.")
    fields = [magic]
    left = _MAX_HEADER
    while (line := stream.readline(left)).rstrip():
        left -= len(line)
        # Comments and free "key:=value" lines say nothing about the voxels.
        if field := re.match(rb"([^#:]+)(:[^=].*)", line, re.DOTALL):
            fields.append(field[1].lower() + field[2])
    header = dict(nrrd.read_header(fields))
    _check_attached(header, path)
    missing = [name for name in _REQUIRED if name not in header]
    if missing or not line:
        raise ValueError(f"its header ends before {', '.join(missing) or 'the voxels start'}")
    return header


def _check_attached(header: Header, path: Path) -> None:
    other = header.get("data file", header.get("datafile"))
    if other is not None:
        raise InputError(
            f"{path}: its voxels stand in another file ({other}). Save the volume as one .nrrd "
            "file."
        )
    skip = next((name for name in _SKIPS if header.get(name, 0) != 0), None)
    if skip:
        raise InputError(
            f"{path}: '{skip}: {header[skip]}' is not supported. Save the volume again without it."
        )


def _sizes(header: Header, path: Path) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in header["sizes"])
    if len(sizes) != header["dimension"]:
        raise ValueError(f"dimension {header['dimension']} does not fit sizes {sizes}")
    for kind, size in zip(header.get("kinds", []), sizes, strict=False):
        if size > 1 and re.search("color|complex|vector|matrix|gradient|normal", kind, re.I):
            raise InputError(
                f"{path}: its voxels are of the kind {kind}, not grey values. Save the magnitude "
                "or one channel as a volume of its own."
            )
    return sizes


def _dtype(header: Header, path: Path) -> np.dtype[Any]:
    code = _CODES.get(str(header["type"]).lower())
    if code is None:
        raise InputError(f"{path}: its voxels are of type '{header['type']}', not numbers.")
    order = {"little": "<", "big": ">"}.get(str(header.get("endian")).lower())
    if order is None and code[1] != "1":
        raise ValueError("its header does not say whether it is little or big endian")
    return np.dtype((order or "") + code)


def _unpacked(stream: IO[bytes], header: Header, path: Path) -> IO[bytes]:
    match str(header["encoding"]).lower():
        case "raw":
            return stream
        case "gz" | "gzip":
            return cast(IO[bytes], gzip.GzipFile(fileobj=stream, mode="rb"))
        case "bz2" | "bzip2":
            return cast(IO[bytes], bz2.BZ2File(stream, "rb"))
        case encoding:
            raise InputError(
                f"{path}: voxels in the encoding '{encoding}' are not read. Save the volume as "
                "raw or gzip."
            )


def _read_volume(
    stream: IO[bytes], header: Header, sizes: tuple[int, ...], spatial: list[int], path: Path
) -> FloatArray:
    """The voxels (i, j, k); a flat file is one voxel thick."""
    kept = [i for i, size in enumerate(sizes) if i in spatial or size != 1]
    outside = [sizes[i] for i in kept if i not in spatial]
    check_one_volume(outside, tuple(sizes[i] for i in kept), path)
    shape = tuple(sizes[i] for i in spatial)
    dtype = _dtype(header, path)
    seek_voxels(stream, stream.tell(), shape, dtype, path)
    with room_for_voxels(shape, str(path)):
        values = read_voxels(stream, shape, dtype, str(path))
    return values if values.ndim == 3 else values[..., None]


def spatial_axes(header: Header, count: int) -> list[int]:
    """The stored axes that lie in space, at most three; further ones count frames."""
    steps = _steps(header)
    kinds = header.get("kinds", [])
    if steps:
        found = [i for i, step in enumerate(steps) if step is not None]
    elif len(kinds) == count:
        found = [i for i, kind in enumerate(kinds) if str(kind).lower() in _SPATIAL_KINDS]
    else:
        found = list(range(count))
    if (steps and len(steps) != count) or len(found) < 2:
        raise ValueError(f"its {count} axes do not span a slice in space")
    return found[:3]


def affine_ras(header: Header, spatial: list[int]) -> Affine:
    """Millimetres towards right, anterior and superior of the indices along the spatial axes."""
    affine = np.eye(4)
    steps = _steps(header)
    for position, axis in enumerate(spatial):
        affine[:3, position] = (
            steps[axis] if steps else _spacing(header, axis) * affine[:3, position]
        )
    if steps and len(spatial) == 2:
        normal = np.cross(affine[:3, 0], affine[:3, 1])
        affine[:3, 2] = normal / np.linalg.norm(normal)
    if "space origin" in header:
        affine[:3, 3] = np.nan_to_num(_in_3d(header["space origin"]))
    found = _SPACES.match(str(header.get("space", "")).lower())
    letters = found.groups() if found else ("l", "p", "s")
    affine[:3] *= np.array([1.0 if letter in "ras" else -1.0 for letter in letters])[:, None]
    return affine


def _steps(header: Header) -> list[NDArray[np.float64] | None]:
    """The step along each stored axis, None for those outside space; empty if not given."""
    rows = header.get("space directions")
    steps = [None if row is None else _in_3d(row) for row in ([] if rows is None else rows)]
    return [None if step is None or np.isnan(step).any() else step for step in steps]


def _in_3d(vector: Any) -> NDArray[np.float64]:
    """Two coordinates lie in the plane; a fourth one is time, which makes no step in space."""
    values = np.asarray(vector, np.float64)
    if len(values) == 4:
        return values[:3] if values[:3].any() else np.full(3, np.nan)
    return np.concatenate([values, np.zeros(3 - len(values))])


def _spacing(header: Header, axis: int) -> float:
    spacings = header.get("spacings", [])
    spacing = abs(float(spacings[axis])) if axis < len(spacings) else 1.0
    return spacing if np.isfinite(spacing) and spacing > 0 else 1.0
