"""Where the axes of an NRRD file lie, from the fields of its header.

A file that names no anatomical space is taken to run towards left, posterior and superior, as ITK
and the viewers built on it take it; so an overlay falls on its source there too.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.io.volume import Affine

Header = dict[str, Any]
# The kinds of axis that may lie in space; all others count frames, colours or components.
_SPATIAL_KINDS = {"domain", "space", "???", "none"}
_SPACES = re.compile("(r|l)(?:ight|eft)?-?(a|p)(?:nterior|osterior)?-?(s|i)(?:uperior|nferior)?")


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
    affine[:3] *= _towards_ras(str(header.get("space", "")))[:, None]
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


def _towards_ras(space: str) -> NDArray[np.float64]:
    found = _SPACES.match(space.lower())
    letters = found.groups() if found else ("l", "p", "s")
    return np.array([1.0 if letter in "ras" else -1.0 for letter in letters])
