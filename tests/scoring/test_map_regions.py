import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image as PillowImage

from recap.errors import InputError
from recap.io.case import Case, LazyImages
from recap.scoring.calibration import calibrate_scores
from recap.scoring.regions import case_regions, find_regions, ignore_masks, regions_table
from recap.types import Geometry, Image, Region


def flood(above):
    """Connected parts by a slow walk over all eight neighbours."""
    left, parts = {tuple(p) for p in np.argwhere(above)}, []
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            row, column = edge.pop()
            part.add((row, column))
            around = {(row + a, column + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & left
            left -= around
            edge += around
        parts.append(part)
    return parts


@given(
    arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)),
           elements=st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0, float("nan")])),
    st.sampled_from([0.2, 0.5, 1.0]),
)  # fmt: skip
def test_regions_are_the_connected_parts(map, level):
    found = find_regions(map, level)
    parts = flood(map >= level)
    assert sorted(region.area_px for region in found) == sorted(len(part) for part in parts)
    for part in parts:
        rows, columns = zip(*part, strict=True)
        box = (min(columns), min(rows), max(columns) + 1, max(rows) + 1)
        values = [map[place] for place in part]
        match = [
            r for r in found
            if r.box_xyxy_px == box and r.area_px == len(part)
            and r.centroid_xy_px == pytest.approx((np.mean(columns), np.mean(rows)))
        ]  # fmt: skip
        assert match
        peaks = [(r.peak, r.mean) for r in match]
        assert any(p == (max(values), pytest.approx(np.mean(values), rel=1e-5)) for p in peaks)
    for region in found:
        x, y = region.peak_xy_px
        assert map[y, x] == np.float32(region.peak)
    assert [r.peak for r in found] == sorted((r.peak for r in found), reverse=True)


@pytest.fixture
def blob():
    map = np.zeros((20, 30), np.float32)
    map[4:7, 10:15] = 0.5
    map[5, 12] = 0.9
    map[15, 2] = 0.6
    return map


def test_a_region_in_numbers(blob):
    region = find_regions(blob, 0.4, spacing_mm=(0.5, 2.0))[0]
    assert region == Region(
        image=0,
        area_px=15,
        area_mm2=15.0,
        box_xyxy_px=(10, 4, 15, 7),
        centroid_xy_px=(12.0, 5.0),
        peak=float(np.float32(0.9)),
        peak_xy_px=(12, 5),
        mean=pytest.approx((14 * 0.5 + 0.9) / 15),
    )


def test_maps_that_tie_with_the_calibration_show_no_region():
    """The promise holds with ties: of forty equal normal maps none may show a region."""
    top = np.float32(0.7)
    level = calibrate_scores([0.5] * 40, [float(top)] * 40, fpr=0.05).map_level
    assert find_regions(np.full((4, 4), top), level) == []
    above = np.full((4, 4), np.nextafter(top, np.float32(1)))
    assert [region.area_px for region in find_regions(above, level)] == [16]


def test_ignored_pixels_are_left_out(blob):
    ignore = np.zeros(blob.shape, bool)
    ignore[:, 12:] = True
    areas = [r.area_px for r in find_regions(blob, 0.4, ignore=ignore)]
    assert areas == [1, 6]  # by peak: 0.6, then what is left of the other
    assert blob[5, 12] == np.float32(0.9)  # the map stays as it is
    assert find_regions(blob, 0.95) == []


def test_every_slice_has_regions_of_its_own(blob):
    stack = np.stack([np.zeros_like(blob), blob, blob])
    found = find_regions(stack, 0.4)
    assert sorted(r.image for r in found) == [1, 1, 2, 2]
    ignore = blob > 0.55
    assert {r.area_px for r in find_regions(stack, 0.4, ignore=ignore)} == {14}


def test_regions_of_a_slide_are_in_its_own_pixels(blob):
    """Tiles of 2 slide pixels and 1 µm to a pixel; the map keeps one value for 32 slide pixels."""
    geometry = Geometry(spacing_mm=(0.001, 0.001), source_px_per_px=2.0)
    tile = Image(np.zeros((8, 8, 3), np.float32), "tile", geometry)
    case = Case("slide", "slide", [tile], size_hw=(640, 960))
    region = case_regions(case, blob, 0.4, px_per_value=32.0)[0]
    assert region.box_xyxy_px == (320, 128, 480, 224)
    assert region.area_px == 15 * 32 * 32
    assert region.area_mm2 == pytest.approx(15 * (32 * 0.0005) ** 2)
    assert region.peak_xy_px == (399, 175)  # (12.5 · 32 − 0.5, 5.5 · 32 − 0.5)
    coarse = np.zeros((2, 3), bool)
    coarse[0, 1] = True  # rows 0 … 9, columns 10 … 19 of the map
    left = case_regions(case, blob, 0.4, coarse, px_per_value=32.0)
    assert [r.area_px for r in left] == [1024]


def test_an_ignore_mask_of_another_size_is_named(blob):
    case = Case("image", "a.png", [Image(blob, "a.png")])
    with pytest.raises(InputError, match=r"a\.png: its ignore mask is 5×4 pixels.*30×20"):
        case_regions(case, blob, 0.4, np.zeros((4, 5), bool))


def test_ignore_masks_are_found_by_name(tmp_path):
    folder = tmp_path / "ignore"
    folder.mkdir()
    PillowImage.fromarray(np.eye(4, dtype=bool)).save(folder / "a_mask.png")
    images = [Path("sub/a.png"), Path("b.png")]
    masks = ignore_masks(folder, images)
    assert np.array_equal(masks.of(images[0]), np.eye(4, dtype=bool))
    assert masks.of(images[1]) is None
    with pytest.raises(InputError, match="no mask has the name of an image"):
        ignore_masks(folder, images[1:])
    with pytest.raises(InputError, match="more than one image or mask has its name"):
        ignore_masks(folder, [Path("a.png"), Path("sub/a.png")])


def test_the_table_of_regions(blob):
    found = find_regions(blob, 0.4)
    lines = list(csv.DictReader(io.StringIO(regions_table(found))))
    assert [line["region"] for line in lines] == ["1", "2"]
    assert lines[0]["area_px"] == "15"
    assert lines[0]["area_mm2"] == ""
    assert (lines[0]["left_px"], lines[0]["bottom_px"]) == ("10", "7")
    assert float(lines[0]["peak"]) == pytest.approx(0.9)
    assert len(list(csv.reader(io.StringIO(regions_table([]))))) == 1


def test_a_frame_s_regions_have_its_own_pixel_size_and_other_frames_are_not_read():
    read = []

    def frame(number):
        read.append(number)
        geometry = Geometry(spacing_mm=[(0.5, 0.5), (2.0, 1.5), None][number])
        return Image(np.zeros((4, 4), np.float32), f"frame {number}", geometry)

    maps = np.zeros((3, 4, 4), np.float32)
    maps[1, 1, 1:3] = 0.9
    maps[2, 3, 3] = 0.8
    found = case_regions(Case("frames", "clip.dcm", LazyImages(3, frame)), maps, 0.5)
    assert [(each.image, each.area_mm2) for each in found] == [(1, 6.0), (2, None)]
    assert sorted(read) == [1, 2]
