"""A dot at a known place of a file comes back at that place in the map that is written.

The way is the whole one: a file in its true format, `recap score`, the map file on disk. Every map
may be off by one patch of the encoder, counted in the source's own pixels, and by no more.
"""

import math
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from dicom_files import save_dicom
from quick_encoder import encoder_read_once  # noqa: F401
from recap.cli.score import score_command
from recap.encoders.weights import locate
from recap.errors import WeightsError
from recap.io import open_file
from recap.methods.recap.maps import CELL_PX
from scored_folders import read_table, scores_by_case
from slide_files import PINK, PURPLE, blank, write_slide
from volume_files import affine, turn, write_nifti

pytestmark = pytest.mark.slow

PATCH_PX = 14
# As shares of each side: the middle, places between patches, and all corners.
DOTS = [(0.5, 0.5), (0.29, 0.63), (0.06, 0.07), (0.05, 0.94), (0.93, 0.06), (0.94, 0.95)]


@pytest.fixture(
    scope="module", params=["tiny", pytest.param("dinov2-small", marks=pytest.mark.slow)]
)
def settings(request, tiny_folder):
    """Few patches with a random encoder, or the default encoder as it is.

    Nothing is trained: where a map puts what it sees is the way's doing, not the head's.
    """
    untrained = {"made_up_lesions": False}
    if request.param == "tiny":
        encoder = {"name": str(tiny_folder), "input_px": 140}
        return recap.resolve_settings(encoder=encoder, training=untrained)
    try:
        locate(request.param)
    except WeightsError as error:
        pytest.skip(f"needs the real weights: {error}")
    return recap.resolve_settings(training=untrained)


# Where a file's pixels lie is the reader's doing: the default encoder looks at one kind of file.
tiny_alone = pytest.mark.parametrize("settings", ["tiny"], indirect=True)


def patch_of(shape, settings):
    """The sides of one patch in the source's pixels."""
    return np.array(shape) * PATCH_PX / settings.encoder.input_px


def reach_of(shape, settings):
    """How far a peak may be from its dot: one patch, and one cell, as a map that follows edges is
    not flat between the middle of an outer patch and the border."""
    return patch_of(shape, settings) * (PATCH_PX + CELL_PX) / PATCH_PX


def plain(shape, seed):
    """Tissue without anything to see, in 0..1."""
    return 0.4 + np.random.default_rng(seed).normal(0, 0.01, shape)


def dotted(shape, seed, centre, settings, value=1.0):
    """The same with a dot that is smaller than a patch."""
    pixels = plain(shape, seed)
    half = np.maximum(1, 0.3 * patch_of(shape, settings)).astype(int)
    box = (slice(max(0, c - h), c + h + 1) for c, h in zip(centre, half, strict=True))
    pixels[tuple(box)] = value
    return pixels


def places(shape, shares=DOTS):
    return [tuple(int(share * side) for share, side in zip(dot, shape)) for dot in shares]  # noqa: B905


def fit_on(files, settings, out):
    """A memory of the images of dot-free files, saved as a bundle."""
    images = [image for file in files for image in open_file(file, settings.reading).images]
    recap.fit(images[:: max(1, len(images) // 12)], settings=settings).save(out)
    return out


def score(bundle, path, out, axis=None):
    score_command([bundle, path], out, axis=axis, device="cpu")
    return scores_by_case(out)


def peak(map):
    """The middle of the highest place: towards the border a map is level."""
    return np.argwhere(map >= np.nanmax(map) * (1 - 1e-6)).mean(axis=0)


def test_a_png_of_odd_size(settings, tmp_path):
    shape = (217, 301)

    def save(name, pixels):
        eight_bit = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
        PillowImage.fromarray(eight_bit).save(tmp_path / name)

    (tmp_path / "dots").mkdir()
    clean = [f"clean{number}.png" for number in range(3)]
    for number, name in enumerate(clean):
        save(name, plain(shape, number))
    dots = places(shape)
    for number, dot in enumerate(dots):
        save(f"dots/{number}.png", dotted(shape, 10 + number, dot, settings))
    bundle = fit_on([tmp_path / name for name in clean], settings, tmp_path / "bundle")
    rows = score(bundle, tmp_path / "dots", tmp_path / "out")
    for number, dot in enumerate(dots):
        map = np.load(tmp_path / "out" / rows[f"{number}.png"]["map"])
        assert map.shape == shape
        assert (abs(peak(map) - dot) <= reach_of(shape, settings)).all(), dot


@tiny_alone
def test_a_monochrome1_dicom(settings, tmp_path):
    """Fitted on files where white is high, and looking at those where white is zero."""
    shape, white = (190, 251), 4095

    def save(name, pixels, photometric):
        stored = np.rint(np.clip(pixels, 0, 1) * white).astype(np.uint16)
        return save_dicom(
            tmp_path / name,
            white - stored if photometric == "MONOCHROME1" else stored,
            Modality="DX",
            PhotometricInterpretation=photometric,
            BitsStored=12,
            WindowCenter=2048,
            WindowWidth=4096,
            PixelSpacing=[0.2, 0.143],
        )

    clean = [save(f"clean{n}.dcm", plain(shape, n), "MONOCHROME2") for n in range(3)]
    dots = places(shape)
    for number, dot in enumerate(dots):
        pixels = dotted(shape, 10 + number, dot, settings)
        save(f"xrays/{number}.dcm", pixels, "MONOCHROME1")
    save("xrays/clean.dcm", plain(shape, 9), "MONOCHROME1")
    bundle = fit_on(clean, settings, tmp_path / "bundle")
    rows = score(bundle, tmp_path / "xrays", tmp_path / "out")
    healthy = float(rows.pop("clean.dcm")["score"])
    assert healthy < min(float(row["score"]) for row in rows.values())
    for number, dot in enumerate(dots):
        map = np.load(tmp_path / "out" / rows[f"{number}.dcm"]["map"])
        assert map.shape == shape
        assert (abs(peak(map) - dot) <= reach_of(shape, settings)).all(), dot


# Stored axes run roughly to posterior, right and inferior: which of them slices run along, and
# whether they count against it (from the feet up, from front to back, from right to left).
TURNED = turn((17, -23, 12)) @ np.array([[0, 1, 0], [-1, 0, 0], [0, 0, -1]])
CUTS = {"axial": (2, True), "coronal": (0, False), "sagittal": (1, True)}


@tiny_alone
@pytest.mark.parametrize("axis", CUTS)
def test_an_oblique_nifti(axis, settings, tmp_path):
    """Three dots, none of which shares a slice with another in any cut."""
    shape, spacing = (21, 25, 17), (0.7, 1.9, 3.1)
    to_mm = affine(TURNED, spacing)
    dots = np.array([(3, 21, 8), (10, 4, 14), (17, 13, 3)])

    def save(name, values):
        stored = np.rint(np.clip(values, 0, 1) * 1000).astype(np.int16)
        return write_nifti(tmp_path / name, stored, to_mm, window=(0, 1000))

    settings = settings.model_copy(
        update={"reading": settings.reading.model_copy(update={"axis": axis})}
    )
    marked = plain(shape, 1)
    for dot in dots:
        marked = np.maximum(marked, dotted(shape, 1, dot, settings))
    bundle = fit_on([save("clean.nii.gz", plain(shape, 0))], settings, tmp_path / "bundle")
    row = score(bundle, save("marked.nii", marked), tmp_path / "out")["marked.nii"]

    written = nibabel.load(tmp_path / "out" / row["map"])
    assert written.shape == shape
    assert np.allclose(written.affine, to_mm, atol=1e-4)
    along, against = CUTS[axis]
    patch = patch_of(shape, settings)
    patch[along] = 0.5
    for dot in dots:
        plane = np.take(written.get_fdata(), dot[along], axis=along)
        found = np.insert(peak(plane), along, dot[along])
        assert (abs(found - dot) <= patch).all(), dot
        apart_mm = written.affine[:3] @ [*found, 1] - to_mm[:3] @ [*dot, 1]
        assert np.linalg.norm(apart_mm) <= np.linalg.norm(patch * spacing)
    assert highest_slices(tmp_path / "out" / row["table"], 3 * 3) == {
        shape[along] - 1 - place if against else place
        for dot in dots
        for place in range(dot[along] - 1, dot[along] + 2)
    }


def highest_slices(table: Path, count):
    slices = sorted(read_table(table), key=lambda line: float(line["score"]))
    return {int(line["number"]) for line in slices[-count:]}


@tiny_alone
def test_a_slide(settings, tmp_path):
    """A slide pixel of 0.2427 µm looked at with 0.5: tiles of 256 pixels take 527.4 of it."""
    shape, um_per_px = (1190, 1003), 0.2427
    tile_px, zoom = settings.reading.slide_tile_px, settings.reading.slide_um_per_px / um_per_px
    patch = patch_of((tile_px, tile_px), settings) * zoom

    def save(name, seed, at=None):
        pixels = blank(*shape)
        tissue = pixels[60:-40, 50:-70]
        # Grains larger than a pixel: fine noise would take most of the time to pack.
        grains = np.random.default_rng(seed).integers(-4, 5, (137, 111, 3))
        tissue[:] = (PINK + grains).repeat(8, 0).repeat(8, 1)[: tissue.shape[0], : tissue.shape[1]]
        if at is not None:
            top, left = (int(place - 0.3 * side) for place, side in zip(at, patch, strict=True))
            pixels[top : top + int(0.6 * patch[0]), left : left + int(0.6 * patch[1])] = PURPLE
        return write_slide(tmp_path / name, pixels, um_per_px=um_per_px)

    (tmp_path / "dots").mkdir()
    dots = places(shape, [(0.25, 0.31), (0.47, 0.88), (0.86, 0.13)])
    for number, dot in enumerate(dots):
        save(f"dots/{number}.tif", 1 + number, dot)
    bundle = fit_on([save("clean.tif", 0)], settings, tmp_path / "bundle")
    rows = score(bundle, tmp_path / "dots", tmp_path / "out")
    for number, dot in enumerate(dots):
        row = rows[f"{number}.tif"]
        assert (row["kind"], row["height"], row["width"]) == ("slide", "1190", "1003")
        map, step = np.load(tmp_path / "out" / row["map"]), float(row["map_step_px"])
        assert step == pytest.approx(math.ceil(tile_px * zoom) / (tile_px / 16))
        found = (peak(map) + 0.5) * step - 0.5
        assert (abs(found - dot) <= patch).all(), dot
