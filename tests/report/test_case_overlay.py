"""Pictures of scored cases: the right slice, the right place, the fixed scale."""

import sys
from pathlib import Path

import numpy as np
import pytest

from recap.config import ReadingSettings
from recap.io.case import Case, LazyImages
from recap.io.slide import open_slide
from recap.report.overlay import as_picture, case_overlay, overlay
from recap.types import Image, Prediction
from slide_files import PINK, blank, write_slide

SCALE = (0.2, 1.0)


def picture(number):
    rng = np.random.default_rng(number)
    return Image(rng.random((12, 20)).astype(np.float32), f"slice {number}")


def predict(map, scores=(0.5,), step=1.0):
    images = tuple(Prediction(score, map[:0]) for score in scores)
    return Prediction(scores[0], map, images=images, source_px_per_px=step)


def test_a_picture_is_drawn_with_its_own_map():
    map = np.random.default_rng(9).random((12, 20)).astype(np.float32)
    drawn = case_overlay(Case("image", "one", [picture(0)]), predict(map), SCALE)
    assert drawn.tobytes() == overlay(picture(0), map, SCALE).tobytes()


@pytest.mark.parametrize("kind", ["volume", "frames"])
def test_of_many_slices_the_highest_is_drawn(kind):
    read = []

    def slice(number):
        read.append(number)
        return picture(number)

    maps = np.random.default_rng(9).random((4, 12, 20)).astype(np.float32)
    case = Case(kind, "many", LazyImages(4, slice))
    drawn = case_overlay(case, predict(maps, (0.1, 0.4, 0.9, 0.3)), SCALE)
    assert drawn.tobytes() == overlay(picture(2), maps[2], SCALE).tobytes()
    assert read == [2]


def test_the_scale_is_never_the_maps_own():
    case = Case("image", "one", [picture(0)])
    below = predict(np.full((12, 20), 0.19, np.float32))
    assert case_overlay(case, below, SCALE).tobytes() == as_picture(picture(0)).tobytes()


@pytest.fixture
def slide(tmp_path):
    pixels = blank(330, 470)
    pixels[20:300, 30:430] = PINK
    path = write_slide(tmp_path / "slide.tif", pixels)
    return Case("slide", str(path), [], size_hw=(330, 470)), pixels


def changed(drawn, case, empty):
    """Rows and columns of the slide where something was drawn: first and one after the last."""
    plain = case_overlay(case, empty, SCALE)
    assert drawn.size == plain.size
    where = np.argwhere(np.any(np.asarray(drawn) != np.asarray(plain), axis=2))
    step = case.size_hw[0] / drawn.height
    return [*(where.min(axis=0) * step), *((where.max(axis=0) + 1) * step)]


@pytest.mark.parametrize("max_px", [1600, 235])
@pytest.mark.parametrize("step", [32.0, 51.3])
def test_a_value_of_a_slide_is_drawn_over_the_pixels_it_stands_for(
    max_px, step, slide, monkeypatch
):
    """The map's last row and column reach beyond the slide: they must not squeeze the others."""
    monkeypatch.setattr(sys.modules["recap.report.overlay"], "SLIDE_PX", max_px)
    case, _ = slide
    shape = tuple(int(np.ceil(side / step)) for side in case.size_hw)
    for row, column in ((0, 0), (2, 3), (shape[0] - 2, shape[1] - 2)):
        map = np.full(shape, np.nan, np.float32)
        map[row, column] = 1
        drawn = case_overlay(case, predict(map, step=step), SCALE)
        empty = predict(np.full(shape, np.nan, np.float32), step=step)
        expected = np.array([row, column, row + 1, column + 1]) * step
        assert changed(drawn, case, empty) == pytest.approx(expected, abs=470 / max_px + 1)


def test_what_was_not_looked_at_stays_as_it_is(slide):
    case, pixels = slide
    map = np.full((11, 15), np.nan, np.float32)
    drawn = np.asarray(case_overlay(case, predict(map, step=32.0), SCALE))
    assert np.array_equal(drawn, pixels)


def test_a_slide_from_the_reader(slide):
    case, _ = slide
    opened = open_slide(Path(case.source), ReadingSettings(slide_tile_px=64))
    assert opened.size_hw == case.size_hw
    drawn = case_overlay(opened, predict(np.ones((11, 15), np.float32), step=32.0), SCALE)
    assert drawn.size == (470, 330)
