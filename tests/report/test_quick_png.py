import io
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image as Pillow

from recap.report.quick_png import quick_png

sides = st.integers(1, 9)
shapes = st.one_of(st.tuples(sides, sides), st.tuples(sides, sides, st.sampled_from([3, 4])))


@given(arrays(np.uint8, shapes))
def test_a_reader_gets_the_same_pixels(pixels):
    picture = Pillow.open(io.BytesIO(quick_png(pixels)))
    assert picture.mode == {2: "L", 3: "RGB" if pixels.shape[-1] == 3 else "RGBA"}[pixels.ndim]
    assert np.array_equal(np.asarray(picture), pixels)


def test_a_view_that_is_not_contiguous_is_packed_as_it_looks():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3)).astype(np.uint8)[::-2, ::3]
    assert np.array_equal(np.asarray(Pillow.open(io.BytesIO(quick_png(pixels)))), pixels)


def test_the_file_is_whole():
    pixels = np.zeros((5, 7), np.uint8)
    picture = Pillow.open(io.BytesIO(quick_png(pixels)))
    picture.verify()  # checks the sums of all chunks


@pytest.mark.parametrize("channels", [2, 5])
def test_other_channels_are_no_picture(channels):
    with pytest.raises(KeyError):
        quick_png(np.zeros((4, 4, channels), np.uint8))


def test_smooth_pictures_are_packed_about_as_small_as_by_pillow_in_a_hurry():
    y, x = np.mgrid[:256, :256]
    smooth = (127 + 90 * np.sin(x / 40) * np.cos(y / 30)).round().astype(np.uint8)
    noise = np.random.default_rng(0).normal(0, 2, smooth.shape)
    pixels = np.stack([np.clip(smooth + noise, 0, 255).astype(np.uint8)] * 3, axis=-1)
    buffer = io.BytesIO()
    hurry = {"compress_level": 1, "compress_type": zlib.Z_RLE}
    Pillow.fromarray(pixels).save(buffer, format="PNG", **hurry)
    assert len(quick_png(pixels)) < 1.3 * len(buffer.getvalue())
