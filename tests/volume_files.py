"""Small volumes in true NIfTI and NRRD files, with any affine, for tests."""

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np

LPS = "left-posterior-superior"
_TOWARDS_RAS = {LPS: (-1, -1, 1), "right-anterior-superior": (1, 1, 1), "LAS": (-1, 1, 1)}


def turn(degrees: tuple[float, float, float]) -> np.ndarray:
    """A rotation about x, then y, then z."""
    matrix = np.eye(3)
    for axis, angle in enumerate(np.deg2rad(degrees)):
        a, b = (axis + 1) % 3, (axis + 2) % 3
        step = np.eye(3)
        step[a, a] = step[b, b] = np.cos(angle)
        step[b, a] = np.sin(angle)
        step[a, b] = -np.sin(angle)
        matrix = step @ matrix
    return matrix


def affine(
    directions: np.ndarray,
    spacing: tuple[float, float, float] = (0.9, 1.1, 3.0),
    origin: tuple[float, float, float] = (-12.5, 30.25, -77.0),
) -> np.ndarray:
    """(i, j, k, 1) to millimetres; the columns of `directions` are unit steps."""
    result = np.eye(4)
    result[:3, :3] = directions * np.array(spacing)
    result[:3, 3] = origin
    return result


def signed_permutations() -> list[np.ndarray]:
    """All 48 ways in which three stored axes can follow those of the body."""
    return [
        np.eye(3)[:, list(order)] * np.array(signs)
        for order in itertools.permutations(range(3))
        for signs in itertools.product((1, -1), repeat=3)
    ]


def write_nifti(
    path: Path,
    stored: np.ndarray,
    affine_ras: np.ndarray,
    *,
    version: int = 1,
    scale: tuple[float, float] | None = None,
    window: tuple[float, float] | None = None,
    big_endian: bool = False,
) -> Path:
    """A NIfTI file as nibabel writes it; .hdr gives a pair, .gz packs it."""
    import nibabel

    pair = path.name.endswith((".hdr", ".hdr.gz"))
    kind: Any = {
        (1, False): nibabel.Nifti1Image,
        (1, True): nibabel.Nifti1Pair,
        (2, False): nibabel.Nifti2Image,
        (2, True): nibabel.Nifti2Pair,
    }[version, pair]
    header = kind.header_class(endianness=">" if big_endian else "<")
    header.set_data_dtype(stored.dtype)
    image = kind(stored, affine_ras, header)
    if scale:
        image.header.set_slope_inter(*scale)
    if window:
        image.header["cal_min"], image.header["cal_max"] = window
    image.to_filename(path)
    return path


def write_nrrd(
    path: Path,
    stored: np.ndarray,
    affine_ras: np.ndarray | None,
    *,
    space: str = LPS,
    **fields: Any,
) -> Path:
    """An NRRD file as pynrrd writes it; without an affine it names no space."""
    import nrrd

    header: dict[str, Any] = dict(fields)
    if affine_ras is not None:
        in_space = np.array(_TOWARDS_RAS[space])[:, None] * affine_ras[:3]
        header |= {
            "space": space,
            "space directions": in_space[:, :3].T,
            "space origin": in_space[:, 3],
        }
    nrrd.write(str(path), stored, header)
    return path


def patch(path: Path, offset: int, layout: str, *values: float) -> Path:
    """Overwrite fields of a header, as damage or malice would."""
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, offset, *values)
    path.write_bytes(bytes(data))
    return path
