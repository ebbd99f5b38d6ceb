import math

import numpy as np
import pytest
from PIL import Image as PillowImage

from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.case import Case, LazyImages
from recap.scoring.cases import combine_scores, lay_out, pool_map, score_case, top_mean
from recap.scoring.parts import ImageScore, Part, Parts
from recap.types import Geometry, Image


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

    def stop(number):
        read.append(number)
        if len(read) == 4:
            raise KeyboardInterrupt
        return picture(number)

    with pytest.raises(KeyboardInterrupt):
        score_case(few_shot, Case("frames", "clip", LazyImages(5, stop)), Parts(tmp_path / "p"))
    resumed = score_case(
        few_shot, Case("frames", "clip", LazyImages(5, stop)), Parts(tmp_path / "p")
    )
    assert read == [0, 1, 2, 3, 3, 4]
    assert resumed.images == whole.images
    assert np.array_equal(resumed.map, whole.map)


def test_a_damaged_part_is_made_anew(tmp_path):
    parts = Parts(tmp_path / "p")
    part = Part(ImageScore(0.5, None, 0.25), np.ones((2, 3), np.float32), (4, 5), 2.0)
    parts.put(0, part)
    stored = parts.get(0)
    assert (stored.scores, stored.origin_px, stored.source_px_per_px) == (
        part.scores,
        part.origin_px,
        part.source_px_per_px,
    )
    assert np.array_equal(stored.map, part.map)
    for cut in (0, 10, 200):
        file = next((tmp_path / "p").iterdir())
        parts.put(0, part)
        file.write_bytes(file.read_bytes()[:cut])
        assert parts.get(0) is None
    parts.remove()
    assert not (tmp_path / "p").exists()


def test_branches_are_combined_each_on_its_own():
    scores = [ImageScore(0.1, 0.9, None), ImageScore(0.7, 0.2, None), ImageScore(0.5, 0.4, None)]
    assert combine_scores(scores, 0.1) == ImageScore(0.7, 0.9, None)
    with pytest.raises(InputError, match="no images"):
        combine_scores([], 0.1)


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
    assert prediction.origins_px == tuple(origins)


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
    part = Part(ImageScore(0.0, None, None), np.ones((4, 4), np.float32), (64, 64), 32.0)
    whole, step = lay_out([part], (100, 170))
    assert step == 32.0
    assert whole.shape == (4, 6)
    assert np.nansum(whole) == 2 * 4


def test_where_tiles_share_a_value_the_higher_one_counts():
    """Tiles of 40 px have 3 values a side, but the next one starts 2.5 values further on."""
    none = ImageScore(0.0, None, None)
    left, right = np.full((3, 3), 0.2, np.float32), np.full((3, 3), 0.1, np.float32)
    left[1, 2] = 0.9
    tiles = [Part(none, left, (0, 0), 16.0), Part(none, right, (0, 40), 16.0)]
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
