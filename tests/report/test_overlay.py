import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from recap.errors import InputError, SettingsError
from recap.report import as_picture, colourise, encode_png, legend, outline, overlay, save_png
from recap.report.overlay import MAX_OPACITY, OUTLINE_COLOUR
from recap.types import Image

RAMP = np.linspace(0, 1, 256, dtype=np.float32)[None]

# How a deuteranope sees linear RGB (Viénot, Brettel and Mollon 1999, rounded).
DEUTERANOPE = np.asarray([[0.293, 0.707, 0.0], [0.293, 0.707, 0.0], [-0.022, 0.022, 1.0]])


def linear(colours):
    share = np.asarray(colours, np.float64) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lightness(linear_rgb):
    luminance = np.clip(linear_rgb @ np.asarray([0.2126, 0.7152, 0.0722]), 0, 1)
    return np.where(luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance)


def grey_image(value=0.5, size_hw=(6, 9)):
    return Image(np.full(size_hw, value, np.float32), "case.png")


def test_colours_get_lighter_in_even_steps():
    light = lightness(linear(colourise(RAMP)[0]))
    straight = np.linspace(light[0], light[-1], 256)
    assert light[-1] - light[0] > 85
    assert np.all(light[8:] > light[:-8])
    assert np.abs(light - straight).max() < 4


def test_the_order_survives_colour_blindness():
    light = lightness(linear(colourise(RAMP)[0]) @ DEUTERANOPE.T)
    assert np.all(light[8:] > light[:-8])


def test_values_outside_the_scale_get_the_end_colours():
    ends = colourise(np.asarray([[-3.0, 0.0, 1.0, 9.0]], np.float32))[0]
    assert ends.dtype == np.uint8
    assert ends[0].tolist() == ends[1].tolist()
    assert ends[2].tolist() == ends[3].tolist()
    assert ends[1].tolist() != ends[2].tolist()


def test_a_zero_map_leaves_the_image_as_it_is():
    rng = np.random.default_rng(0)
    image = Image(rng.random((7, 5, 3), dtype=np.float32), "case.png")
    drawn = overlay(image, np.zeros((7, 5), np.float32))
    assert drawn.size == (5, 7)
    assert np.array_equal(np.asarray(drawn), np.asarray(as_picture(image)))


def test_blend_by_hand():
    map_ = np.zeros((6, 9), np.float32)
    map_[2, 3] = 0.5
    drawn = np.asarray(overlay(grey_image(0.4), map_, (0.0, 2.0)))
    opacity = MAX_OPACITY * 0.25
    colour = colourise(np.full((1, 1), 0.25, np.float32))[0, 0].astype(float)
    expected = (1 - opacity) * 102 + opacity * colour
    assert np.abs(drawn[2, 3] - expected).max() <= 0.5 + 1e-4
    assert np.all(np.delete(drawn.reshape(-1, 3), 2 * 9 + 3, axis=0) == 102)


@given(st.floats(0, 1, width=32), st.integers(2, 8))
def test_a_pixel_does_not_depend_on_the_rest_of_the_map(value, other):
    """The scale is fixed: a healthy image stays calm whatever its own maximum is."""
    alone = np.full((4, 4), value, np.float32)
    beside = alone.copy()
    beside[:2] = other
    one, two = (np.asarray(overlay(grey_image(size_hw=(4, 4)), m)) for m in (alone, beside))
    assert np.array_equal(one[2:], two[2:])


def test_outline_is_the_edge_of_the_mask():
    mask = np.zeros((6, 9), np.bool_)
    mask[1:5, 2:7] = True
    mask[0, 8] = True
    drawn = np.asarray(outline(as_picture(grey_image()), mask))
    cyan = (drawn == OUTLINE_COLOUR).all(axis=2)
    edge = mask.copy()
    edge[2:4, 3:6] = False
    assert np.array_equal(cyan, edge)
    assert np.all(drawn[~cyan] == 128)


def test_outline_grows_with_the_picture_and_leaves_the_original_alone():
    mask = np.ones((600, 700), np.bool_)
    picture = Pillow.new("L", (700, 600))
    cyan = (np.asarray(outline(picture, mask)) == OUTLINE_COLOUR).all(axis=2)
    assert cyan[:2].all()
    assert cyan[:, :2].all()
    assert not cyan[2:-2, 2:-2].any()
    assert picture.mode == "L"
    assert picture.getextrema() == (0, 0)


def test_legend_shows_the_colours_in_order():
    bar = np.asarray(legend((0.0, 0.5)))[10, 32:-32]
    assert bar[0].tolist() == colourise(RAMP)[0, 0].tolist()
    assert bar[-1].tolist() == colourise(RAMP)[0, -1].tolist()
    assert np.any(np.asarray(legend((0.0, 0.5))) != np.asarray(legend((0.0, 1.0))))


def test_png_round_trip_and_shrinking():
    picture = as_picture(Image(np.random.default_rng(1).random((30, 60), dtype=np.float32), "x"))
    whole = Pillow.open(io.BytesIO(encode_png(picture)))
    assert np.array_equal(np.asarray(whole), np.asarray(picture))
    assert Pillow.open(io.BytesIO(encode_png(picture, max_side_px=20))).size == (20, 10)
    assert picture.size == (60, 30)


def test_save_png_makes_the_folder_and_leaves_no_partial_file(tmp_path):
    target = tmp_path / "maps" / "a.png"
    for value in (0.2, 0.8):
        save_png(as_picture(grey_image(value)), target)
    assert Pillow.open(target).getpixel((0, 0)) == (204, 204, 204)
    assert [p.name for p in target.parent.iterdir()] == ["a.png"]


def test_a_failed_write_names_the_target_and_cleans_up(tmp_path):
    (tmp_path / "a.png").mkdir()
    (tmp_path / "a.png" / "kept.txt").touch()
    with pytest.raises(InputError, match=r"a\.png"):
        save_png(as_picture(grey_image()), tmp_path / "a.png")
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
    with pytest.raises(InputError, match=r"b\.png"):
        save_png(as_picture(grey_image()), tmp_path / "a.png" / "kept.txt" / "b.png")


def test_what_cannot_be_drawn_is_refused():
    image = grey_image()
    with pytest.raises(InputError, match=r"case\.png: the map has shape \(2, 2\)"):
        overlay(image, np.zeros((2, 2), np.float32))
    with pytest.raises(InputError, match="NaN"):
        overlay(image, np.full((6, 9), np.nan, np.float32))
    with pytest.raises(InputError, match=r"mask has shape \(2, 2\)"):
        outline(as_picture(image), np.zeros((2, 2), np.bool_))
    for high in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SettingsError, match="lower one first"):
            overlay(image, np.zeros((6, 9), np.float32), (0.0, high))
