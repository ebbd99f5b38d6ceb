"""Stored values to what is shown: the modality's unit, then a window or table, then 0..1."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recap.io.dicom.header import Tags, items, number, numbers, stated_number, text
from recap.io.window import apply_window, own_window
from recap.types import FloatArray, Window

_MOST_ENTRIES = 2**16
_DISCRETE, _LINEAR, _INDIRECT = 0, 1, 2
# How many codes follow the length: where a line ends, or from which byte on to repeat.
_REST = {8: {_LINEAR: 1, _INDIRECT: 4}, 16: {_LINEAR: 1, _INDIRECT: 2}}
_COLOURS = ("Red", "Green", "Blue")
_ENDLESS = 1e37
Curve = Literal["LINEAR", "LINEAR_EXACT", "SIGMOID"]


@dataclass(frozen=True, eq=False)
class Table:
    """Entries for consecutive values; what lies before or behind takes the first or last."""

    entries: NDArray[np.uint16]
    first: int
    bits: int

    def look_up(self, values: NDArray[Any]) -> NDArray[np.uint16]:
        """The entry of each value."""
        last = self.first + len(self.entries) - 1
        # Clipped before it is made whole: a wild float must not wrap around as an integer.
        whole = values.astype(np.int64) if values.dtype.kind in "iu" else values.astype(np.float64)
        index = np.rint(np.clip(whole, self.first, last)).astype(np.int64) - self.first
        return self.entries[index]

    def unit(self, values: NDArray[Any]) -> FloatArray:
        """The entry of each value, in 0..1."""
        top = 2**self.bits - 1
        # Some writers name 16 bits for entries of 8, and some fewer than they use.
        highest = int(self.entries.max())
        if highest > top or (self.bits == 16 and highest < 256):
            top = 255 if highest < 256 else 65535
        return (self.look_up(values) / np.float32(top)).astype(np.float32)


def table_of(tags: Tags, prefix: str, little: bool) -> Table | None:
    """The table whose tags start so; None if it is absent or makes no sense."""
    descriptor = numbers(tags, f"{prefix}Descriptor")
    if len(descriptor) != 3:
        return None
    # The number of entries is unsigned even where the file reads as signed; 0 stands for 65536.
    count = int(descriptor[0]) % _MOST_ENTRIES or _MOST_ENTRIES
    bits = int(descriptor[2])
    entries = _entries(tags, f"{prefix}Data", count, bits, little)
    if not 1 <= bits <= 16 or not len(entries):
        return None
    first = int(descriptor[1])
    # Below zero, and read as unsigned where the file does not say how: no value lies behind 65535.
    if first + count > _MOST_ENTRIES:
        first -= _MOST_ENTRIES
    return Table(entries[:count], first, bits)


def palette_of(tags: Tags, little: bool) -> tuple[Table, Table, Table]:
    """The three tables of a palette, spelt out or in segments."""
    red, green, blue = (
        table_of(tags, f"{colour}PaletteColorLookupTable", little) for colour in _COLOURS
    )
    if red is None or green is None or blue is None:
        raise ValueError("its colour palette is missing or damaged")
    return red, green, blue


def _entries(tags: Tags, keyword: str, count: int, bits: int, little: bool) -> NDArray[np.uint16]:
    value = tags.get(keyword)
    if value is None and bits in (8, 16):
        segments = tags.get(f"Segmented{keyword}")
        if isinstance(segments, bytes):
            # Discrete, linear and indirect segments (PS3.3 C.7.9.2).
            codes = _integers(segments, bits // 8, little).tolist()
            entries: list[int] = []
            _run_segments(codes, 0, len(codes), bits, entries)
            return np.array(entries[:_MOST_ENTRIES], np.uint16)
    if isinstance(value, bytes):
        # Two bytes each, unless there are too few for that.
        return _integers(value, 2 if len(value) >= 2 * count else 1, little)
    listed = numbers(tags, keyword)
    return (np.array(listed, np.int64) % _MOST_ENTRIES).astype(np.uint16)


def _integers(data: bytes, width: int, little: bool) -> NDArray[np.uint16]:
    if width == 2:
        return np.frombuffer(data[: len(data) // 2 * 2], "<u2" if little else ">u2").astype("u2")
    # Bytes are packed into words, whose order is the file's.
    single = np.frombuffer(data[: len(data) // 2 * 2], "u1").reshape(-1, 2)
    return single[:, :: 1 if little else -1].reshape(-1).astype(np.uint16)


def _run_segments(
    codes: list[int], at: int, most: int, bits: int, entries: list[int], repeated: bool = False
) -> None:
    """Each segment adds at least one entry, so that no palette takes forever."""
    while at + 1 < len(codes) and most > 0 and len(entries) < _MOST_ENTRIES:
        kind, length = codes[at : at + 2]
        content = codes[at + 2 : at + 2 + (length if kind == _DISCRETE else _REST[bits][kind])]
        if not length or not content or (kind == _INDIRECT and repeated):
            raise ValueError("its colour palette is damaged")
        if kind == _DISCRETE:
            entries += content
        elif kind == _LINEAR:
            ramp = np.linspace(entries[-1], content[0], length + 1)[1:]
            entries += np.rint(ramp).astype(int).tolist()
        else:
            start = sum(code << (bits * place) for place, code in enumerate(content)) * 8 // bits
            before = len(entries)
            _run_segments(codes, start, length, bits, entries, repeated=True)
            if len(entries) == before:
                raise ValueError("its colour palette is damaged")
        at += 2 + len(content)
        most -= 1


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
        """True where the file itself decides what is black and what is white."""
        return self.voi is not None or self.window is not None

    def is_grey(self, stored: NDArray[Any]) -> bool:
        """Tell whether a frame is shown through a window rather than in colours of its own."""
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
        """Mark where a grey frame has a value that belongs to the picture."""
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
