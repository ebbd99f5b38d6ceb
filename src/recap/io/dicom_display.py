"""Stored values to what is shown: the modality's unit, then a window or table, then 0..1."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recap.io.dicom_luts import Table, palette_of, table_of
from recap.io.dicom_tags import Tags, items, number, numbers, stated_number, text
from recap.io.window import apply_window, own_window
from recap.types import FloatArray, Window

_ENDLESS = 1e37

Curve = Literal["LINEAR", "LINEAR_EXACT", "SIGMOID"]


@dataclass(frozen=True)
class FileWindow:
    """The window that a file names, with the curve between its ends."""

    centre: float
    width: float
    curve: Curve

    @property
    def ends(self) -> Window:
        """The values shown as black and as white (PS3.3 C.11.2.1.2)."""
        low, high = self.centre - self.width / 2, self.centre + self.width / 2
        return (low, high - 1) if self.curve == "LINEAR" else (low, high)

    def apply(self, values: NDArray[Any]) -> FloatArray:
        """Bring values in the modality's unit to 0..1."""
        if self.curve == "SIGMOID":
            # Beyond e^±60 there is nothing left to see, and the exponential would overflow.
            slope = np.clip(-4 * (values - self.centre) / self.width, -60, 60)
            return (1 / (1 + np.exp(slope))).astype(np.float32)
        return apply_window(values, self.ends)


@dataclass(frozen=True, eq=False)
class Display:
    """All that a file says about how one of its frames is shown."""

    slope: float = 1.0
    intercept: float = 0.0
    modality: Table | None = None
    voi: Table | None = None
    window: FileWindow | None = None
    padding: tuple[float, float] | None = None
    """Stored values in this range are no part of the picture."""
    inverted: bool = False
    palette: tuple[Table, Table, Table] | None = None
    top: int = 255
    """The largest value of a colour."""

    @property
    def says_how(self) -> bool:
        """Whether the file itself decides what is black and what is white."""
        return self.voi is not None or self.window is not None

    def is_grey(self, stored: NDArray[Any]) -> bool:
        """Whether a frame is shown through a window rather than in colours of its own."""
        return stored.ndim == 2 and self.palette is None

    def in_unit(self, stored: NDArray[Any]) -> FloatArray:
        """Grey values in the modality's unit, such as Hounsfield units; all of them finite."""
        if self.modality is not None:
            return self.modality.look_up(stored).astype(np.float32)
        # Large integers and doubles lose digits only after the scaling.
        wide: NDArray[np.floating[Any]] = stored.astype("f8" if stored.dtype.itemsize > 2 else "f4")
        with np.errstate(over="ignore", invalid="ignore"):
            values = (wide * self.slope + self.intercept).astype(np.float32)
        # What has no value is shown as the lowest; float32 leaves room for differences.
        return np.nan_to_num(values, copy=False, nan=-_ENDLESS, posinf=_ENDLESS, neginf=-_ENDLESS)

    def shown(self, stored: NDArray[Any]) -> NDArray[np.bool_]:
        """Where a grey frame has a value that belongs to the picture."""
        finite = np.isfinite(stored)
        if self.padding is None:
            return finite
        low, high = sorted(_as_stored(end, stored.dtype) for end in self.padding)
        return finite & ~((stored >= low) & (stored <= high))

    def own_range(self, stored: NDArray[Any]) -> Window:
        """The range of a frame's own values, without its padding."""
        return own_window(self.in_unit(stored)[self.shown(stored)])

    def grey(self, stored: NDArray[Any], window: Window | None) -> FloatArray:
        """A grey frame in 0..1, through a given window or else through what the file says."""
        values = self.in_unit(stored)
        if window is not None:
            unit = apply_window(values, window)
        elif self.voi is not None:
            unit = self.voi.unit(values)
        elif self.window is not None:
            unit = self.window.apply(values)
        else:
            unit = apply_window(values, self.own_range(stored))
        return 1 - unit if self.inverted else unit

    def colour(self, stored: NDArray[Any]) -> FloatArray:
        """A colour frame in 0..1, RGB."""
        if self.palette is not None:
            return np.stack([table.unit(stored) for table in self.palette], axis=-1)
        return np.clip(stored.astype(np.float32) / np.float32(self.top), 0, 1)

    def unit(self, stored: NDArray[Any], window: Window | None) -> FloatArray:
        """Any frame in 0..1. Windows are for grey: colours are shown as they are."""
        return self.grey(stored, window) if self.is_grey(stored) else self.colour(stored)


def display_of(tags: Tags, photometric: str, bits: int, little: bool) -> Display:
    """Gather what a file says of how a frame is shown."""
    modality = _first_table(tags, "ModalityLUTSequence", little)
    # Where neither counts, it does not matter what is wrong with them.
    is_scaled = modality is None and photometric.startswith("MONOCHROME")
    return Display(
        slope=(is_scaled and stated_number(tags, "RescaleSlope")) or 1.0,
        intercept=(is_scaled and stated_number(tags, "RescaleIntercept")) or 0.0,
        modality=modality,
        voi=_first_table(tags, "VOILUTSequence", little),
        window=_window_of(tags),
        padding=_padding_of(tags),
        inverted=photometric == "MONOCHROME1",
        palette=palette_of(tags, little) if photometric == "PALETTE COLOR" else None,
        top=2**bits - 1,
    )


def _first_table(tags: Tags, keyword: str, little: bool) -> Table | None:
    found = items(tags, keyword)
    return table_of(found[0], "LUT", little) if found else None


def _window_of(tags: Tags) -> FileWindow | None:
    centre, width = number(tags, "WindowCenter"), number(tags, "WindowWidth")
    if centre is None or width is None or width <= 0:
        return None
    named = text(tags, "VOILUTFunction").upper()
    if named == "SIGMOID":
        return FileWindow(centre, width, "SIGMOID")
    # Less than one is against the rule for LINEAR; such files hold fractions and mean the ends.
    exact = named == "LINEAR_EXACT" or width < 1
    return FileWindow(centre, width, "LINEAR_EXACT" if exact else "LINEAR")


def _as_stored(value: float, dtype: np.dtype[Any]) -> float:
    """A value in the pixels' own type: many files write it unsigned where pixels are signed."""
    if dtype.kind not in "iu" or np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        return value
    return float(np.array(int(value), np.int64).astype(dtype))


def _padding_of(tags: Tags) -> tuple[float, float] | None:
    named = numbers(tags, "PixelPaddingValue")
    if not named:
        return None
    other = number(tags, "PixelPaddingRangeLimit")
    ends = (named[0], named[0] if other is None else other)
    return min(ends), max(ends)
