"""Lossless JPEG against an encoder written from the standard, one sample at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.io.dicom._lossless_jpeg import decode_lossless

# Categories 0..16 all with codes of five bits: a table that any difference can be coded with.
COUNTS = bytes([0, 0, 0, 0, 17] + [0] * 11)


def predict(samples: np.ndarray, row: int, column: int, predictor: int, start: int) -> int:
    """Annex H.1.2.1, for one component of a band that starts with row 0."""
    if row == 0 and column == 0:
        return start
    if row == 0:
        return int(samples[row, column - 1])
    if column == 0:
        return int(samples[row - 1, column])
    left, above = int(samples[row, column - 1]), int(samples[row - 1, column])
    corner = int(samples[row - 1, column - 1])
    return (
        left,
        above,
        corner,
        left + above - corner,
        left + ((above - corner) >> 1),
        above + ((left - corner) >> 1),
        (left + above) >> 1,
    )[predictor - 1]


def code(difference: int) -> str:
    """A category's number in five bits, then the difference as Annex F.1.2.1 writes it."""
    difference = (difference + 2**15) % 2**16 - 2**15
    if difference == -(2**15):
        return f"{16:05b}"
    size = abs(difference).bit_length()
    low = difference if difference > 0 else difference + 2**size - 1
    return f"{size:05b}" + (f"{low:0{size}b}" if size else "")


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def scan(
    samples: np.ndarray, names: list[int], predictor: int, bits: int, shift: int, band: int
) -> bytes:
    """One scan over (rows, columns, components), with a restart after each band of rows."""
    head = bytes([len(names)]) + b"".join(bytes([name, 0]) for name in names)
    coded = segment(0xDA, head + bytes([predictor, 0, shift]))
    shifted = samples >> shift
    for number, top in enumerate(range(0, len(samples), band)):
        part = shifted[top : top + band]
        text = "".join(
            code(
                int(part[row, column, each])
                - predict(part[..., each], row, column, predictor, 2 ** (bits - shift - 1))
            )
            for row in range(len(part))
            for column in range(part.shape[1])
            for each in range(len(names))
        )
        text += "1" * (-len(text) % 8)
        data = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
        if number:
            coded += bytes([0xFF, 0xD0 + (number - 1) % 8])
        coded += data.replace(b"\xff", b"\xff\0")
    return coded


def encode(
    samples: np.ndarray,
    predictor: int,
    bits: int,
    shift: int = 0,
    band: int = 0,
    interleaved: bool = True,
) -> bytes:
    rows, columns, count = samples.shape
    size = bytes([bits]) + rows.to_bytes(2, "big") + columns.to_bytes(2, "big") + bytes([count])
    names = list(range(1, count + 1))
    frame = b"\xff\xd8" + segment(0xC4, bytes([0]) + COUNTS + bytes(range(17)))
    frame += segment(0xC3, size + b"".join(bytes([name, 0x11, 0]) for name in names))
    if band:
        frame += segment(0xDD, (band * columns).to_bytes(2, "big"))
    groups = [names] if interleaved else [[name] for name in names]
    for group in groups:
        chosen = samples[..., [name - 1 for name in group]]
        frame += scan(chosen, group, predictor, bits, shift, band or rows)
    return frame + b"\xff\xd9"


@pytest.mark.parametrize("predictor", range(1, 8))
@pytest.mark.parametrize("count", [1, 3])
def test_all_predictors(predictor: int, count: int) -> None:
    samples = np.random.default_rng(predictor).integers(0, 2**16, (9, 13, count))
    decoded = decode_lossless(encode(samples, predictor, 16))
    assert decoded.dtype == np.uint16
    assert np.array_equal(decoded, samples)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_image_comes_back(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    count = data.draw(st.sampled_from([1, 3]))
    bits = data.draw(st.integers(2, 16))
    shift = data.draw(st.integers(0, bits - 1))
    seed = data.draw(st.integers(0, 2**32 - 1))
    samples = np.random.default_rng(seed).integers(0, 2**bits, (rows, columns, count))
    samples = samples >> shift << shift
    frame = encode(
        samples,
        data.draw(st.integers(1, 7)),
        bits,
        shift,
        data.draw(st.integers(0, rows)),
        data.draw(st.booleans()),
    )
    assert np.array_equal(decode_lossless(frame), samples)


def test_more_than_one_block() -> None:
    samples = np.random.default_rng(0).integers(0, 256, (70, 90, 3))
    assert np.array_equal(decode_lossless(encode(samples, 1, 8)), samples)


def test_damage_is_an_error_and_no_loop() -> None:
    frame = encode(np.random.default_rng(0).integers(0, 4096, (16, 16, 1)), 1, 12)
    for stop in range(0, len(frame) - 4, 7):
        with pytest.raises((ValueError, IndexError, KeyError)):
            decode_lossless(frame[:stop])
    for at in range(2, len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 0xFF
        try:
            assert decode_lossless(bytes(damaged)).ndim == 3
        except (ValueError, IndexError, KeyError, TypeError):
            continue
