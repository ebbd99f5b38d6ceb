import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.config import Axis, ReadingSettings
from recap.errors import InputError, SettingsError
from recap.io.case import volume_case
from recap.io.volume import FRAMES, Grid, Volume, grid_for, orientation_of
from recap.types import Identity
from volume_files import affine, signed_permutations, turn

AXES: tuple[Axis, ...] = ("axial", "coronal", "sagittal")
TURNS = [(12, -25, 8), (-30, 10, 20), (5, 5, 40)]
SHAPE = (3, 4, 5)

# In each cut, the body axis (0 right, 1 anterior, 2 superior) of slices, rows and columns, and
# whether millimetres grow along it.
SHOWN = {
    "axial": ((2, True), (1, False), (0, False)),
    "coronal": ((1, False), (2, False), (0, False)),
    "sagittal": ((0, False), (2, False), (1, False)),
}


def numbered(shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def millimetres(matrix: np.ndarray, *index: float) -> np.ndarray:
    """One index through an affine, written out."""
    return (
        matrix[:3, 0] * index[0]
        + matrix[:3, 1] * index[1]
        + matrix[:3, 2] * index[2]
        + matrix[:3, 3]
    )


def stack_by_sorting(stored: np.ndarray, matrix: np.ndarray, axis: str) -> np.ndarray:
    """Where each voxel belongs by its place in the body; only for axes along the body's."""
    places = {index: millimetres(matrix, *index) for index in np.ndindex(stored.shape)}
    ranks = []
    for body, grows in SHOWN[axis]:
        levels = sorted({round(mm[body], 6) for mm in places.values()}, reverse=not grows)
        ranks.append({level: rank for rank, level in enumerate(levels)})
    stack = np.full([len(rank) for rank in ranks], -1, np.float32)
    for index, mm in places.items():
        at = tuple(r[round(mm[body], 6)] for r, (body, _) in zip(ranks, SHOWN[axis], strict=True))
        stack[at] = stored[index]
    return stack


@pytest.mark.parametrize("axis", AXES)
def test_every_way_to_store_a_volume_shows_the_same_body(axis: Axis) -> None:
    for directions in signed_permutations():
        matrix = affine(directions)
        grid = grid_for(SHAPE, matrix, axis, "x")
        assert np.array_equal(grid.take(numbered()), stack_by_sorting(numbered(), matrix, axis))
        assert orientation_of(grid.stack_affine_ras) == FRAMES[axis]


@pytest.mark.parametrize("degrees", [(0, 0, 0), *TURNS])
def test_stack_affine_leads_every_voxel_to_its_place(degrees: tuple[int, int, int]) -> None:
    for directions in signed_permutations():
        matrix = affine(turn(degrees) @ directions)
        for axis in AXES:
            grid = grid_for(SHAPE, matrix, axis, "x")
            stack, inverse = grid.take(numbered()), np.linalg.inv(matrix)
            for number in range(len(stack)):
                geometry = grid.slice_geometry(number)
                for row, column in np.ndindex(stack.shape[1:]):
                    place = millimetres(geometry.affine_ras, 0, row, column)
                    i, j, k = np.rint(millimetres(inverse, *place)).astype(int)
                    assert stack[number, row, column] == numbered()[i, j, k]
                assert geometry.orientation == FRAMES[axis]


@pytest.mark.parametrize("degrees", TURNS)
def test_agrees_with_nibabel(degrees: tuple[int, int, int]) -> None:
    nibabel = pytest.importorskip("nibabel")
    for directions in signed_permutations():
        matrix = affine(turn(degrees) @ directions)
        image = nibabel.Nifti1Image(numbered(), matrix)
        ras = np.asarray(nibabel.as_closest_canonical(image).dataobj)
        expected = ras[::-1, ::-1].transpose(2, 1, 0)
        assert np.array_equal(grid_for(SHAPE, matrix, "axial", "x").take(numbered()), expected)
        assert orientation_of(matrix) == "".join(nibabel.aff2axcodes(matrix))


@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    number=st.integers(0, 47),
    degrees=st.tuples(*[st.floats(-180, 180)] * 3),
    axis=st.sampled_from(("auto", *AXES)),
)
def test_restore_undoes_take(
    shape: tuple[int, int, int], number: int, degrees: tuple[float, ...], axis: Axis
) -> None:
    matrix = affine(turn(degrees) @ signed_permutations()[number])
    grid = grid_for(shape, matrix, axis, "x")
    stored = numbered(shape)
    stack = grid.take(stored)
    assert np.array_equal(grid.restore(stack), stored)
    assert np.array_equal(grid.take(grid.restore(stack + 1)), stack + 1)
    assert np.shares_memory(stack, stored)


def test_spacing_follows_the_axes() -> None:
    matrix = affine(turn((10, 20, -15)), spacing=(0.5, 0.75, 4.0))
    spacings = {a: grid_for(SHAPE, matrix, a, "x").slice_geometry(1).spacing_mm for a in AXES}
    assert spacings["axial"] == pytest.approx((0.75, 0.5))
    assert spacings["coronal"] == pytest.approx((4.0, 0.5))
    assert spacings["sagittal"] == pytest.approx((4.0, 0.75))


@pytest.mark.parametrize("axis", ["auto", *AXES])
def test_one_voxel_thick_is_one_slice(axis: Axis) -> None:
    for thin, frame in ((0, "LIP"), (1, "PIL"), (2, "SPL")):
        shape = tuple(1 if i == thin else 4 for i in range(3))
        grid = grid_for(shape, np.eye(4), axis, "x")
        assert grid.take(numbered(shape)).shape == (1, 4, 4)
        assert orientation_of(grid.stack_affine_ras) == frame
    row = grid_for((1, 1, 9), np.eye(4), "axial", "x")
    assert row.take(numbered((1, 1, 9))).shape == (9, 1, 1)


@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((4, 4)),
        np.diag([1.0, 1, 0, 1]),
        np.diag([1.0, np.nan, 1, 1]),
        np.diag([1.0, np.inf, 1, 1]),
        np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
    ],
)
def test_affine_without_a_place_is_refused(matrix: np.ndarray) -> None:
    with pytest.raises(InputError, match="scan: its affine"):
        grid_for(SHAPE, matrix, "axial", "scan")


def test_small_voxels_are_no_reason_to_refuse() -> None:
    grid = grid_for(SHAPE, affine(np.eye(3), spacing=(2e-4, 2e-4, 5e-4)), "axial", "x")
    assert grid.slice_geometry(0).spacing_mm == pytest.approx((2e-4, 2e-4))


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5, 6), (3, 0, 5)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"scan: a volume has three axes"):
        grid_for(shape, np.eye(4), "axial", "scan")


def example(window: tuple[float, float] | None = None) -> Volume:
    stored = 10 * numbered((3, 4, 6)) - 100
    grid = grid_for(stored.shape, affine(np.eye(3)), "axial", "x")
    return Volume(grid.take(stored), grid, "scan.nii", Identity(patient="p"), window)


def test_case_shows_all_slices_through_one_window() -> None:
    volume = example()
    case = volume_case(volume, ReadingSettings(window="-100,620"))
    assert (case.kind, case.source, len(case.images)) == ("volume", "scan.nii", 6)
    assert isinstance(case.grid, Grid)
    assert case.grid is volume.grid
    assert case.identity == Identity(patient="p")
    for number, image in enumerate(case.images):
        expected = np.array(
            [[min(max((v + 100) / 720, 0), 1) for v in row] for row in volume.values[number]]
        )
        assert np.allclose(image.pixels, expected, atol=1e-6)
        assert image.source == f"scan.nii[{number}]"
        assert image.identity == Identity(patient="p", instance=str(number))
        assert np.array_equal(
            image.geometry.affine_ras, volume.grid.slice_geometry(number).affine_ras
        )


def test_case_window_is_the_setting_then_the_files_then_its_range() -> None:
    def ends(volume: Volume, setting: str) -> tuple[float, float]:
        images = volume_case(volume, ReadingSettings(window=setting)).images
        stack = np.stack([image.pixels for image in images])
        inside = (stack > 0.01) & (stack < 0.99)
        slope, low = np.polyfit(stack[inside], volume.values[inside], 1)
        return round(float(low), 3), round(float(low + slope), 3)

    assert ends(example((0, 300)), "abdomen") == (-160, 240)
    assert ends(example((0, 300)), "file") == (0, 300)
    low, high = np.percentile(example().values, (0.5, 99.5))
    assert ends(example(), "file") == pytest.approx((low, high), abs=1e-2)
    with pytest.raises(SettingsError):
        volume_case(example(), ReadingSettings(window="liver"))


def test_case_decodes_a_slice_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Volume, "image", lambda self, number, window: asked.append(number))
    case = volume_case(dataclasses.replace(example(), window=(0, 1)), ReadingSettings())
    assert asked == []
    _ = case.images[4]
    assert asked == [4]
