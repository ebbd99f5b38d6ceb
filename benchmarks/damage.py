"""Ways to damage a file: the same generator damages it the same way."""

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator

import numpy as np

# What sizes, offsets and counts are set to.
EXTREMES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\0\0\1\0")

Damage = Callable[[bytearray, np.random.Generator, bytes], bytes]
"""From a file, and another of the same format, to the damaged bytes."""


def flipped_bits(data: bytearray, rng: np.random.Generator, _: bytes) -> bytes:
    for at in rng.integers(0, len(data), rng.integers(1, 30)):
        data[at] ^= 1 << rng.integers(8)
    return bytes(data)


def broken_header(data: bytearray, rng: np.random.Generator, _: bytes) -> bytes:
    for at in rng.integers(0, min(len(data), rng.choice([64, 400, 2500])), rng.integers(1, 9)):
        data[at] = rng.integers(256)
    return bytes(data)


def extreme_number(data: bytearray, rng: np.random.Generator, _: bytes) -> bytes:
    """Sizes, offsets and counts that ask for too much, or for nothing."""
    at, width = rng.integers(0, min(len(data), 2500)) // 2 * 2, rng.choice([2, 4])
    data[at : at + width] = EXTREMES[rng.integers(len(EXTREMES))][:width]
    return bytes(data)


def cut_off(data: bytearray, rng: np.random.Generator, _: bytes) -> bytes:
    return bytes(data[: rng.integers(0, len(data))])


def blank_run(data: bytearray, rng: np.random.Generator, _: bytes) -> bytes:
    start, length = run_in(data, rng)
    data[start : start + length] = bytes([rng.choice([0, 0, 255])]) * length
    return bytes(data)


def missing_run(data: bytearray, rng: np.random.Generator, _: bytes) -> bytes:
    start, length = run_in(data, rng)
    del data[start : start + length]
    return bytes(data)


def spliced(data: bytearray, rng: np.random.Generator, other: bytes) -> bytes:
    """A piece of another file of the same format over or between the bytes of this one."""
    start, length = run_in(bytearray(other), rng)
    at = rng.integers(0, len(data))
    data[at : at + (length if rng.random() < 0.5 else 0)] = other[start : start + length]
    return bytes(data)


def under_seal(data: bytearray, rng: np.random.Generator, _: bytes) -> bytes:
    """Damage that checksums do not betray: gzip and the chunks of PNG are sealed anew."""
    if data.startswith(b"\x1f\x8b"):
        inside = bytearray(gzip.decompress(data))
        return gzip.compress(broken_header(inside, rng, b""), 1, mtime=0)
    broken = bytearray(broken_header(data, rng, b""))
    return b"".join(sealed_chunks(broken)) if broken.startswith(b"\x89PNG") else bytes(broken)


def sealed_chunks(png: bytearray) -> Iterator[bytes]:
    yield bytes(png[:8])
    start = 8
    while start < len(png):
        length = int.from_bytes(png[start : start + 4], "big")
        chunk = bytes(png[start + 4 : start + 8 + length])
        yield bytes(png[start : start + 4]) + chunk + struct.pack(">I", zlib.crc32(chunk))
        start += 12 + length


def run_in(data: bytearray, rng: np.random.Generator) -> tuple[int, int]:
    """Start and length of a run: short ones as often as long ones."""
    length = int(len(data) ** rng.random())
    return int(rng.integers(0, len(data) - length + 1)), length


DAMAGES: tuple[Damage, ...] = (
    flipped_bits,
    broken_header,
    extreme_number,
    cut_off,
    blank_run,
    missing_run,
    spliced,
    under_seal,
)
