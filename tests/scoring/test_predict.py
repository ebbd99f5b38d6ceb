import math

import numpy as np
import pytest
from PIL import Image as PillowImage

from folder_runs import score_case
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.case import Case, LazyImages
from recap.scoring.predict import Opened, predict
from recap.scoring.whole import Parts, lay_out, pool_map, put_together, top_mean
from recap.types import Geometry, Image, Prediction


def picture(number):
    rng = np.random.default_rng(number)
    return Image(rng.random((40, 60)).astype(np.float32), f"slice {number}")


@pytest.fixture
def frames():
    return Case("frames", "clip", LazyImages(5, picture))


def test_a_case_has_the_scores_and_maps_of_its_images(few_shot, frames):
    prediction = score_case(few_shot, frames, reading=ReadingSettings(volume_top_k=0.4))
    singles = [few_shot.score(picture(n)) for n in range(5)]
    assert [image.score for image in prediction.images] == [single.score for single in singles]
    assert np.array_equal(prediction.map, np.stack([single.map for single in singles]))
    best = sorted((single.score for single in singles), reverse=True)
    assert prediction.score == pytest.approx((best[0] + best[1]) / 2)
    assert prediction.images[prediction.highest].score == best[0]


def test_a_picture_keeps_its_own_map_and_score(few_shot):
    prediction = score_case(few_shot, Case("image", "one", [picture(0)]))
    assert prediction.map.shape == (40, 60)
    assert prediction.score == few_shot.score(picture(0)).score


def test_an_interrupted_case_goes_on_with_the_image_it_stopped_at(few_shot, frames, tmp_path):
    whole = score_case(few_shot, frames)
    read = []

    def kept(source):
        return Parts(tmp_path / "p")

    def stop(number):
        read.append(number)
        if len(read) == 4:
            raise KeyboardInterrupt
        return picture(number)

    with pytest.raises(KeyboardInterrupt):
        score_case(few_shot, Case("frames", "clip", LazyImages(5, stop)), parts=kept)
    resumed = score_case(few_shot, Case("frames", "clip", LazyImages(5, stop)), parts=kept)
    assert read == [0, 1, 2, 3, 3, 4]
    assert [i.score for i in resumed.images] == [i.score for i in whole.images]
    assert np.array_equal(resumed.map, whole.map)


def test_a_damaged_part_is_made_anew(tmp_path):
    parts = Parts(tmp_path / "p")
    part = Prediction(
        score=0.5,
        map=np.ones((2, 3), np.float32),
        score_memory=0.25,
        origin_px=(4, 5),
        source_px_per_px=2.0,
    )
    parts.put(0, part)
    stored = parts.get(0)
    names = ("score", "score_prototype", "score_memory", "origin_px", "source_px_per_px")
    assert [getattr(stored, name) for name in names] == [getattr(part, name) for name in names]
    assert np.array_equal(stored.map, part.map)
    for cut in (0, 10, 200):
        file = next((tmp_path / "p").iterdir())
        parts.put(0, part)
        file.write_bytes(file.read_bytes()[:cut])
        assert parts.get(0) is None
    parts.remove()
    assert not (tmp_path / "p").exists()


def said(score, prototype=None, memory=None, map=None, **place):
    map = np.zeros((2, 2), np.float32) if map is None else map
    return Prediction(score, map, prototype, memory, **place)


def test_branches_are_combined_each_on_its_own():
    clip = Case("frames", "clip", [])
    whole = put_together(clip, [said(0.1, 0.9), said(0.7, 0.2), said(0.5, 0.4)], 0.1)
    assert (whole.score, whole.score_prototype, whole.score_memory) == (0.7, 0.9, None)
    with pytest.raises(InputError, match="no images"):
        put_together(clip, [], 0.1)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 9.0), (0.2, 8.5), (0.29, 8.5), (0.3, 8.0), (1.0, 4.5)]
)
def test_top_mean(share, expected):
    assert top_mean([float(v) for v in np.random.default_rng(0).permutation(10)], share) == expected


def test_pool_map_is_the_mean_of_blocks():
    map = np.random.default_rng(0).random((37, 50)).astype(np.float32)
    pooled = pool_map(map, 16)
    assert pooled.shape == (3, 4)
    for row in range(3):
        for column in range(4):
            rows = slice(37 * row // 3, 37 * (row + 1) // 3)
            columns = slice(50 * column // 4, 50 * (column + 1) // 4)
            block = map[rows, columns]
            assert pooled[row, column] == pytest.approx(block.mean(), rel=1e-6)


def test_tiles_of_a_slide_lie_where_they_were_cut(few_shot):
    """Tiles of 64 px, 2 slide pixels for one of theirs, at (0, 128) and (256, 0) of 384 × 300."""
    origins = [(0, 128), (256, 0)]

    def tile(number):
        rng = np.random.default_rng(number)
        geometry = Geometry(origin_px=origins[number], source_px_per_px=2.0)
        return Image(rng.random((64, 64, 3)).astype(np.float32), f"tile {number}", geometry)

    case = Case("slide", "slide", LazyImages(2, tile), size_hw=(384, 300))
    prediction = score_case(few_shot, case)
    assert prediction.source_px_per_px == 32.0
    assert prediction.map.shape == (12, 10)  # 384 / 32, 300 / 32 rounded up
    expected = np.full((12, 10), np.nan, np.float32)
    expected[0:4, 4:8] = pool_map(few_shot.score(tile(0)).map)
    expected[8:12, 0:4] = pool_map(few_shot.score(tile(1)).map)
    assert np.array_equal(prediction.map, expected, equal_nan=True)
    assert [image.origin_px for image in prediction.images] == origins


@pytest.mark.parametrize("tile_px", [64, 70])
def test_no_seams_between_tiles_whose_sides_are_no_whole_pixels(few_shot, tile_px):
    """A tile of 64 px covers 32.64 slide pixels: the next one starts 33 further on."""
    count, pitch = 14, math.ceil(tile_px * 0.51)

    def tile(number):
        pixels = np.random.default_rng(number).random((tile_px, tile_px, 3)).astype(np.float32)
        return Image(pixels, "", Geometry(origin_px=(0, number * pitch), source_px_per_px=0.51))

    case = Case("slide", "", LazyImages(count, tile), size_hw=(pitch, count * pitch))
    prediction = score_case(few_shot, case)
    pooled = [pool_map(few_shot.score(tile(number)).map) for number in range(count)]
    assert np.array_equal(prediction.map, np.concatenate(pooled, axis=1))
    assert prediction.source_px_per_px * prediction.map.shape[1] == pytest.approx(count * pitch)


def test_a_tile_that_overhangs_the_edge_is_cut():
    part = said(0, map=np.ones((4, 4), np.float32), origin_px=(64, 64), source_px_per_px=32.0)
    whole, step = lay_out([part], (100, 170))
    assert step == 32.0
    assert whole.shape == (4, 6)
    assert np.nansum(whole) == 2 * 4


def test_where_tiles_share_a_value_the_higher_one_counts():
    """Tiles of 40 px have 3 values a side, but the next one starts 2.5 values further on."""
    left, right = np.full((3, 3), 0.2, np.float32), np.full((3, 3), 0.1, np.float32)
    left[1, 2] = 0.9
    tiles = [
        said(0, map=map, origin_px=(0, start), source_px_per_px=16.0)
        for map, start in ((left, 0), (right, 40))
    ]
    for order in (tiles, tiles[::-1]):
        whole, _ = lay_out(order, (40, 80))
        assert whole[1].tolist() == pytest.approx([0.2, 0.2, 0.9, 0.1, 0.1])


def test_frames_of_different_sizes_are_refused(few_shot):
    def frame(number):
        return Image(np.zeros((20 + number, 20), np.float32), "frame")

    with pytest.raises(InputError, match="differ in size"):
        score_case(few_shot, Case("frames", "clip.dcm", LazyImages(2, frame)))


def test_a_detector_takes_the_folder_of_one_case(few_shot, tmp_path):
    values = np.random.default_rng(3).integers(0, 256, (20, 30), np.uint8)
    PillowImage.fromarray(values).save(tmp_path / "a.png")
    assert few_shot.score_case(tmp_path).score == few_shot.score(values).score


class Broken:
    """A case that cannot be opened."""

    name, read_alone = "broken", False

    def open(self, reading):
        raise InputError("broken: it is damaged.")


def clip(name, values):
    images = [Image(np.full((20, 30), value, np.float32), name) for value in values]
    return Opened(Case("frames", name, LazyImages(len(images), lambda number: images[number])))


@pytest.mark.parametrize(("workers", "batch"), [(0, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("gpu", [False, True])
def test_cases_of_all_kinds_come_back_in_their_order_with_their_own_errors(
    few_shot, monkeypatch, workers, batch, gpu
):
    """On a graphics card, a batch is never of a clip and of pictures."""
    monkeypatch.setattr(type(few_shot), "on_gpu", gpu)
    original, sizes = few_shot.raw_output, []

    def output(images):
        sizes.append(len(images))
        if any(image.pixels.mean() > 0.95 for image in images):
            raise InputError("too bright")
        return original(images)

    monkeypatch.setattr(few_shot, "raw_output", output)
    pictures = [Opened(Case("image", f"{n}", [picture(n)])) for n in range(5)]
    dark, bright = clip("dark", [0.1, 0.3]), clip("bright", [0.2, 1.0, 0.3, 0.4])
    given = [pictures[0], pictures[1], dark, Broken(), pictures[2], bright, *pictures[3:]]
    found = list(predict(few_shot, given, workers=workers, batch=batch))
    assert [one.source for one in found] == given
    errors = {one.source.name: str(one.said) for one in found if isinstance(one.said, InputError)}
    assert errors == {"broken": "broken: it is damaged.", "bright": "too bright"}
    monkeypatch.setattr(few_shot, "raw_output", original)
    for one in found:
        if one.source.name in "01234":
            expected = few_shot.score(picture(int(one.source.name)))
            assert one.said.score == pytest.approx(expected.score, abs=1e-5 if gpu else 0)
    assert max(sizes) == (batch if gpu and batch > 1 else 1)


def test_nothing_is_read_of_what_is_not_wanted(few_shot):
    one, other = (Opened(Case("image", f"{n}", [picture(n)])) for n in range(2))
    found = list(predict(few_shot, [Broken(), one, other], wanted=lambda source: source is other))
    assert [source.name for source, _, _ in found] == ["1"]


def test_a_map_in_the_encoders_square(few_shot):
    (found,) = predict(few_shot, [Opened(Case("image", "", [picture(0)]))], frame="square")
    assert np.array_equal(found.said.map, few_shot.raw_output([picture(0)]).map[0].numpy())
