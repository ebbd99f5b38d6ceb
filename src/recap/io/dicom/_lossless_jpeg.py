"""Lossless JPEG (ITU-T T.81, process 14) in numpy.

Damaged frames make gdcm, the only other free decoder of it, abort the whole process. Huffman codes
can only be followed one after another; but where a code would end is looked up for all bits of a
block at once, so that a loop has to stop at every 8th pixel only.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recap.io.dicom.codestream import jpeg_head, jpeg_segments

Integers = NDArray[np.int64]
_LOSSLESS, _HUFFMAN, _SCAN, _RESTART = 0xC3, 0xC4, 0xDA, 0xDD
_MODULUS_MASK = 0xFFFF
# The category that means 32768 and is not followed by any bits.
_NO_EXTRA = 16
# Small blocks stay in the processor's cache; codes with their values reach 32 bits.
_BLOCK_BYTES, _REACH_BYTES = 2**12, 8
# How often the distance of a jump is doubled: to eight pixels.
_DOUBLINGS = 3


class HuffmanTable(NamedTuple):
    """For each 16 bits that may come: how many are the code, and how many more the value takes."""

    code_bits: NDArray[np.uint8]
    value_bits: NDArray[np.uint8]
    all_bits: NDArray[np.uint8]
    """Both together; none for what is no code."""


@dataclass
class _Scan:
    """One pass over the image: the places of its components, with a table for each."""

    components: list[int]
    tables: list[HuffmanTable]
    predictor: int
    shift: int
    restart: int


def decode_lossless(frame: bytes) -> NDArray[Any]:
    """Samples (rows, columns, components) of a frame, unsigned, as the frame stores them."""
    head = jpeg_head(frame)
    if not 2 <= head.bits <= 16:
        raise ValueError(f"a compressed frame of {head.bits} bits")
    # One bit for each sample is the least that a Huffman code takes.
    if head.rows * head.columns * head.samples > 8 * len(frame):
        raise ValueError("a compressed frame ends early")
    samples = np.zeros((head.rows, head.columns, head.samples), np.int64)
    tables: dict[int, HuffmanTable] = {}
    names: list[int] = []
    restart, position, found = 0, 0, 0
    while found < head.samples:
        scan = None
        for marker, segment, stop in jpeg_segments(frame, position):
            position = stop
            if marker == _HUFFMAN:
                tables |= _read_tables(segment)
            elif marker == _LOSSLESS:
                names = _component_names(segment)
            elif marker == _RESTART:
                restart = int.from_bytes(segment[:2], "big")
            elif marker == _SCAN:
                scan = _read_scan(segment, names, tables, restart)
        if scan is None:
            raise ValueError("a compressed frame ends early")
        pieces, position = _entropy_coded(frame, position)
        samples[..., scan.components] = _decode_scan(
            scan, pieces, (head.rows, head.columns), head.bits
        )
        found += len(scan.components)
    return samples.astype(np.uint8 if head.bits <= 8 else np.uint16)


def _component_names(segment: bytes) -> list[int]:
    components = [segment[6 + 3 * i : 9 + 3 * i] for i in range(segment[5])]
    if any(len(each) < 3 or each[1] != 0x11 for each in components):
        raise ValueError("subsampled lossless JPEG is not read")
    return [each[0] for each in components]


def _read_tables(segment: bytes) -> dict[int, HuffmanTable]:
    """Huffman tables by number, spread out over all 16-bit beginnings."""
    tables = {}
    while len(segment) >= 17:
        number, counts = segment[0] & 0x0F, segment[1:17]
        symbols = segment[17 : 17 + sum(counts)]
        tables[number] = _spread(counts, symbols)
        segment = segment[17 + sum(counts) :]
    return tables


def _spread(counts: bytes, symbols: bytes) -> HuffmanTable:
    code_bits, value_bits = np.zeros(2**16, np.uint8), np.zeros(2**16, np.uint8)
    start, used = 0, 0
    for length, count in enumerate(counts, start=1):
        for symbol in symbols[used : used + count]:
            stop = start + 2 ** (16 - length)
            if symbol > 16 or stop > 2**16:
                raise ValueError("a compressed frame has a damaged Huffman table")
            code_bits[start:stop] = length
            value_bits[start:stop] = symbol
            start = stop
        used += count
    extra = np.where(value_bits == _NO_EXTRA, 0, value_bits)
    return HuffmanTable(code_bits, value_bits, code_bits + extra)


def _read_scan(
    segment: bytes, names: list[int], tables: dict[int, HuffmanTable], restart: int
) -> _Scan:
    count = segment[0]
    chosen = [(segment[1 + 2 * i], segment[2 + 2 * i] >> 4) for i in range(count)]
    predictor, last = segment[1 + 2 * count], segment[3 + 2 * count]
    if not 1 <= predictor <= 7 or not chosen:
        raise ValueError(f"predictor {predictor} of a compressed frame is unknown")
    return _Scan(
        [names.index(name) for name, _ in chosen],
        [tables[number] for _, number in chosen],
        predictor,
        last & 0x0F,
        restart,
    )


def _entropy_coded(frame: bytes, start: int) -> tuple[list[bytes], int]:
    """A scan's bytes, in pieces between restarts and without stuffing, and where the scan ends."""
    pieces, position, begin = [], start, start
    while True:
        position = frame.find(b"\xff", position)
        if position < 0 or position + 1 >= len(frame):
            position = len(frame)
        elif frame[position + 1] == 0:
            position += 2
            continue
        pieces.append(frame[begin:position].replace(b"\xff\0", b"\xff"))
        if position >= len(frame) or not 0xD0 <= frame[position + 1] <= 0xD7:
            return pieces, position
        position = begin = position + 2


def _decode_scan(scan: _Scan, pieces: list[bytes], size_hw: tuple[int, int], bits: int) -> Integers:
    rows, columns = size_hw
    if scan.restart % columns:
        raise ValueError("a compressed frame restarts inside of a row")
    band = scan.restart // columns or rows
    count = len(scan.components)
    samples = np.empty((rows, columns, count), np.int64)
    for number, top in enumerate(range(0, rows, band)):
        height = min(band, rows - top)
        if number >= len(pieces):
            raise ValueError("a compressed frame ends early")
        steps = _differences(pieces[number], scan.tables, height * columns)
        start = 2 ** (bits - scan.shift - 1)
        samples[top : top + height] = _undo_prediction(
            steps.reshape(height, columns, count), scan.predictor, start
        )
    return samples << scan.shift


def _differences(data: bytes, tables: list[HuffmanTable], count: int) -> Integers:
    """The first `count` values of each component in a piece: (count, components)."""
    steps = np.empty((count, len(tables)), np.int64)
    done, position = 0, 0
    while done < count:
        start = position // 8
        # All codes of a pixel are followed, even if the block ends before the last of them.
        words = _words(data[start : start + _BLOCK_BYTES + 4 * len(tables)])
        ends = min(_BLOCK_BYTES, len(data) - start) * 8
        places = _follow(words, tables, position - start * 8, ends)[: count - done]
        if not len(places):
            raise ValueError("a compressed frame ends early")
        block, after = _values(words, tables, places)
        steps[done : done + len(places)] = block
        position = start * 8 + after
        done += len(places)
    return steps


def _words(block: bytes) -> NDArray[np.uint16]:
    """The 16 bits that follow each bit of a block, with ones after its end."""
    padded = np.frombuffer(block + b"\xff" * _REACH_BYTES, np.uint8).astype(np.uint32)
    three = padded[:-2] << 16 | padded[1:-1] << 8 | padded[2:]
    shifts = np.arange(8, 0, -1, dtype=np.uint32)
    return (three[:, None] >> shifts).astype(np.uint16).reshape(-1)


def _follow(
    words: NDArray[np.uint16], tables: list[HuffmanTable], first: int, ends: int
) -> Integers:
    """Find where the codes of pixels that begin before `ends` start: (pixels, components)."""
    nowhere = len(words) - 32
    nexts = [_next_code(words[:nowhere], table, nowhere) for table in tables]
    jump: NDArray[np.int32] = np.arange(nowhere + 1, dtype=np.int32)
    for following in nexts:
        jump = following[jump]
    jump[jump >= ends] = nowhere
    jumps = [jump]
    for _ in range(_DOUBLINGS):
        jumps.append(jumps[-1][jumps[-1]])
    starts = _chain(jumps[-1], first if first < ends else nowhere, nowhere)
    for shorter in reversed(jumps[:-1]):
        starts = np.stack([starts, shorter[starts]], axis=1).reshape(-1)
    places = [starts[starts < nowhere]]
    for following in nexts[:-1]:
        places.append(following[places[-1]])
    return np.stack(places, axis=1).astype(np.int64)


def _chain(jump: NDArray[np.int32], first: int, nowhere: int) -> NDArray[np.int32]:
    """The places that jumps lead to, one after another; each leads forward, so there is an end."""
    # Single numbers are had from its buffer in half the time that an array takes.
    following, places = jump.data, []
    while first < nowhere:
        places.append(first)
        first = following[first]
    return np.array(places, np.int32)


def _next_code(words: NDArray[np.uint16], table: HuffmanTable, nowhere: int) -> NDArray[np.int32]:
    """Find where the code after the one at each bit starts; what is no code leads nowhere."""
    bits = table.all_bits[words]
    following = np.arange(len(words) + 1, dtype=np.int32)
    following[:-1] += bits
    following[:-1][bits == 0] = nowhere
    return np.minimum(following, np.int32(nowhere), out=following)


def _values(
    words: NDArray[np.uint16], tables: list[HuffmanTable], places: Integers
) -> tuple[Integers, int]:
    """The values whose codes start at these places, and the bit after the last one."""
    steps, after = np.empty_like(places), 0
    for number, table in enumerate(tables):
        own = places[:, number]
        code = table.code_bits[words[own]].astype(np.int64)
        bits = table.value_bits[words[own]].astype(np.int64)
        if (code == 0).any():
            raise ValueError("a compressed frame has an unknown code")
        extra = words[own + code].astype(np.int64) >> (16 - bits)
        # Values below half of their range stand for negative ones.
        negative = (bits > 0) & (extra < (1 << bits >> 1))
        steps[:, number] = np.where(negative, extra - (1 << bits) + 1, extra)
        steps[bits == _NO_EXTRA, number] = 2**15
        after = int(own[-1] + code[-1] + (0 if bits[-1] == _NO_EXTRA else bits[-1]))
    return steps, after


def _undo_prediction(steps: Integers, predictor: int, start: int) -> Integers:
    """Samples (rows, columns, components) from their differences to what was predicted."""
    steps[0, 0] += start
    if predictor == 1:
        steps[:, 0] = np.cumsum(steps[:, 0], axis=0)
        return np.cumsum(steps, axis=1) & _MODULUS_MASK
    samples = np.empty_like(steps)
    samples[0] = np.cumsum(steps[0], axis=0) & _MODULUS_MASK
    for row in range(1, len(steps)):
        samples[row] = _next_row(samples[row - 1], steps[row], predictor) & _MODULUS_MASK
    return samples


def _next_row(above: Integers, steps: Integers, predictor: int) -> Integers:
    """One row (columns, components) after the first; its first sample is predicted from above."""
    first = above[:1] + steps[:1]
    rise = np.diff(above, axis=0)
    match predictor:
        case 2:
            return above + steps
        case 3:
            return np.concatenate([first, above[:-1] + steps[1:]])
        case 4:
            return np.cumsum(np.concatenate([first, steps[1:] + rise]), axis=0)
        case 5:
            return np.cumsum(np.concatenate([first, steps[1:] + (rise >> 1)]), axis=0)
    return np.stack(
        [
            _walk_row(above[:, i].tolist(), steps[:, i].tolist(), predictor)
            for i in range(steps.shape[1])
        ],
        axis=1,
    )


def _walk_row(above: list[int], steps: list[int], predictor: int) -> Integers:
    """Predictors that halve what stands to the left leave no way but one sample at a time."""
    left = (above[0] + steps[0]) & _MODULUS_MASK
    row = [left]
    for corner, up, step in zip(above, above[1:], steps[1:], strict=False):
        half = up + ((left - corner) >> 1) if predictor == 6 else (left + up) >> 1
        left = (half + step) & _MODULUS_MASK
        row.append(left)
    return np.array(row, np.int64)
