"""Look-up tables of DICOM files: for the modality's unit, for what is shown, and for colours."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.io.dicom_tags import Tags, numbers
from recap.types import FloatArray

_MOST_ENTRIES = 2**16
_DISCRETE, _LINEAR, _INDIRECT = 0, 1, 2
# How many codes follow the length: where a line ends, or from which byte on to repeat.
_REST = {8: {_LINEAR: 1, _INDIRECT: 4}, 16: {_LINEAR: 1, _INDIRECT: 2}}
_COLOURS = ("Red", "Green", "Blue")


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
            return _expand(_integers(segments, bits // 8, little), bits)
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


def _expand(codes: NDArray[np.uint16], bits: int) -> NDArray[np.uint16]:
    """Entries out of discrete, linear and indirect segments (PS3.3 C.7.9.2)."""
    entries: list[int] = []
    _run_segments(codes.tolist(), 0, len(codes), bits, entries)
    return np.array(entries[:_MOST_ENTRIES], np.uint16)


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
