"""Intensity windows: which part of a file's value range becomes 0..1."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.errors import SettingsError
from recap.types import FloatArray, Window

# Lower and upper end in Hounsfield units.
CT_WINDOWS: dict[str, Window] = {
    "abdomen": (-160.0, 240.0),
    "lung": (-1350.0, 150.0),
    "brain": (0.0, 80.0),
    "bone": (-500.0, 1300.0),
}
FROM_FILE = "file"
# A file without a window shows its own range, but one hot pixel must not blacken the rest.
OWN_RANGE_PERCENTILES = (0.5, 99.5)
_BAND_VALUES = 2**20


def parse_window(setting: str) -> Window | None:
    """A window's ends from its name or from "LOW,HIGH"; None means the file decides."""
    if setting == FROM_FILE:
        return None
    if setting in CT_WINDOWS:
        return CT_WINDOWS[setting]
    try:
        low, high = (float(part) for part in setting.split(","))
    except ValueError as error:
        raise SettingsError(_unknown(setting)) from error
    if not (np.isfinite([low, high, high - low]).all() and low < high):
        raise SettingsError(_unknown(setting))
    return low, high


def own_window(values: NDArray[Any]) -> Window:
    """The range of a volume or image that names no window, without its rarest values."""
    if not values.size:
        return 0.0, 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.percentile(values, OWN_RANGE_PERCENTILES)
    # Between the ends of what float32 can hold, percentiles overflow.
    if not (np.isfinite([low, high]).all() and low < high):
        low, high = float(values.min()), float(values.max())
    # One is nothing to a large number.
    return float(low), float(high) if high > low else float(low) + max(1.0, abs(float(low)))


def apply_window(values: NDArray[Any], window: Window) -> FloatArray:
    """Bring values to 0..1; what lies outside the window is clipped.

    A window without width is a threshold: DICOM's LINEAR has none where it names a width of one.
    """
    low, high = window
    if high <= low:
        return (values > low).astype(np.float32)
    unit = np.empty(values.shape, np.float32)
    # Doubles, because the difference of two float32 may be too large, or too small, to be one
    # itself; in bands, because doubles of a whole picture take several times its memory.
    together = max(1, _BAND_VALUES // max(1, math.prod(values.shape[1:])))
    for start in range(0, len(values), together):
        wide = values[start : start + together].astype(np.float64)
        unit[start : start + together] = np.clip((wide - low) / (high - low), 0, 1)
    return unit


def _unknown(setting: str) -> str:
    names = ", ".join([FROM_FILE, *CT_WINDOWS])
    return (
        f"reading.window = '{setting}' is not a window. Use {names}, "
        "or two increasing numbers such as -160,240."
    )
