import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from recap.config import Axis
from recap.errors import InputError
from recap.io import volume as volume_module
from recap.io.nifti import is_nifti, read_nifti, write_map_volume
from recap.io.volume import Grid, grid_for
from registry_files import wheel_files
from volume_files import affine, patch, signed_permutations, turn, write_nifti

nibabel = pytest.importorskip("nibabel")

AXES: tuple[Axis, ...] = ("axial", "coronal", "sagittal")
TILTED = affine(turn((14, -22, 9)) @ np.eye(3)[:, [1, 2, 0]] * [1, -1, 1])
SHEARED = TILTED @ np.array([[1, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
NAMES = ["scan.nii", "scan.nii.gz", "scan.hdr", "scan.hdr.gz"]
# Where NIfTI-1 keeps its fields.
DIM, DATATYPE, VOX_OFFSET, SLOPE, SFORM = 40, 70, 108, 112, 280


def noise(shape: tuple[int, ...] = (5, 6, 7), dtype: str = "i2") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_reads_what_nibabel_reads(tmp_path: Path, name: str, version: int) -> None:
    path = write_nifti(tmp_path / name, noise(), TILTED, version=version)
    assert is_nifti(path)
    reference = nibabel.load(path)
    for axis in AXES:
        volume = read_nifti(path, axis)
        assert volume.values.dtype == np.float32
        assert np.array_equal(volume.grid.affine_ras, reference.affine)
        assert np.array_equal(volume.grid.restore(volume.values), reference.get_fdata())
        assert (volume.source, volume.identity.patient, volume.window) == (str(path), "", None)


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_every_real_type_and_byte_order(tmp_path: Path, dtype: str, big_endian: bool) -> None:
    path = write_nifti(tmp_path / "x.nii", noise(dtype=dtype), TILTED, big_endian=big_endian)
    volume = read_nifti(path, "axial")
    assert np.array_equal(volume.grid.restore(volume.values), noise())


def test_values_are_in_the_files_unit(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "x.nii.gz", noise(), TILTED, scale=(3, -1024))
    volume = read_nifti(path, "coronal")
    stored = volume.grid.restore(volume.values)
    assert np.array_equal(stored, nibabel.load(path).get_fdata())
    assert np.array_equal(stored, noise() * 3 - 1024)


def test_large_numbers_are_scaled_before_they_are_rounded(tmp_path: Path) -> None:
    # A float32 cannot tell these apart before the offset is taken off.
    stored = (np.arange(24) + 2**30).reshape(2, 3, 4).astype("i4")
    path = write_nifti(tmp_path / "x.nii", stored, np.eye(4))
    patch(path, SLOPE, "<2f", 1, -(2.0**30))
    volume = read_nifti(path, "axial")
    assert np.array_equal(volume.grid.restore(volume.values).ravel(), np.arange(24))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("matrix", [TILTED, SHEARED], ids=["tilted", "sheared"])
def test_a_dot_is_found_in_place_and_goes_back(
    tmp_path: Path, axis: Axis, matrix: np.ndarray
) -> None:
    stored = np.zeros((9, 11, 13), np.int16)
    voxel = (2, 7, 10)
    stored[voxel] = 500
    source = write_nifti(tmp_path / "dot.nii.gz", stored, matrix)
    volume = read_nifti(source, axis)
    number, row, column = np.unravel_index(volume.values.argmax(), volume.values.shape)
    image = volume.image(int(number), (0.0, 500.0))
    assert image.pixels[row, column] == 1
    found_mm = (image.geometry.affine_ras @ [0, row, column, 1])[:3]
    assert found_mm == pytest.approx((matrix @ [*voxel, 1])[:3], abs=1e-4)

    heat = np.zeros_like(volume.values)
    heat[number, row, column] = 0.75
    write_map_volume(tmp_path / "map.nii.gz", heat, volume.grid)
    written, read = nibabel.load(tmp_path / "map.nii.gz"), nibabel.load(source)
    assert np.array_equal(written.affine, read.affine)
    assert written.shape == read.shape
    assert np.argwhere(written.get_fdata() == 0.75).tolist() == [list(voxel)]


def only_quaternion(path: Path, matrix: np.ndarray) -> Path:
    image = nibabel.Nifti1Image(noise(), None)
    image.set_qform(matrix, code=1)
    image.set_sform(None, code=0)
    image.to_filename(path)
    return path


def test_map_of_a_quaternion_source_lies_on_it_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for number in range(40):
        directions = signed_permutations()[rng.integers(48)]
        matrix = affine(
            turn(rng.uniform(-180, 180, 3)) @ directions, origin=rng.normal(size=3) * 99
        )
        path = only_quaternion(tmp_path / f"{number}.nii", matrix)
        volume = read_nifti(path, "axial")
        write_map_volume(tmp_path / "map.nii.gz", volume.values, volume.grid)
        written, source = nibabel.load(tmp_path / "map.nii.gz"), nibabel.load(path)
        assert np.array_equal(written.affine, source.affine)


def maps_for(grid: Grid) -> np.ndarray:
    stored = np.random.default_rng(0).random(grid.shape, np.float32)
    return grid.take(stored)


@pytest.mark.parametrize("codes", [(1, 4), (3, 2), (2, 0), (0, 4), (0, 0)])
@pytest.mark.parametrize("big_endian", [False, True])
def test_maps_keep_both_forms_of_their_source(
    tmp_path: Path, codes: tuple[int, int], big_endian: bool
) -> None:
    path = write_nifti(tmp_path / "x.nii", noise(), TILTED, big_endian=big_endian)
    image = nibabel.load(path)
    image.set_qform(affine(turn((3, 4, 5)), origin=np.array([9.0, 8.0, 7.0])), code=codes[0])
    image.set_sform(SHEARED, code=codes[1])
    image.to_filename(tmp_path / "scan.nii")
    volume = read_nifti(tmp_path / "scan.nii", "coronal")
    write_map_volume(tmp_path / "m.nii.gz", np.zeros_like(volume.values), volume.grid)
    source, written = (nibabel.load(tmp_path / n) for n in ("scan.nii", "m.nii.gz"))
    for form in ("get_qform", "get_sform"):
        before, after = (getattr(each.header, form)(coded=True) for each in (source, written))
        assert after[1] == before[1]
        assert np.array_equal(after[0], before[0])
    assert (int(written.header["qform_code"]), int(written.header["sform_code"])) == codes
    assert np.array_equal(written.affine, source.affine)
    assert np.array_equal(written.header.get_zooms(), source.header.get_zooms())


def test_map_forms(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "map.nii.gz"
    for matrix, codes in ((TILTED, (1, 1)), (SHEARED, (1, 0))):
        grid = grid_for((5, 6, 7), matrix.astype(np.float32).astype(float), "axial", "x")
        write_map_volume(path, maps_for(grid), grid)
        image = nibabel.load(path)
        header = image.header
        assert np.array_equal(image.get_fdata(), grid.restore(maps_for(grid)))
        assert (int(header["sform_code"]), int(header["qform_code"])) == codes
        assert np.array_equal(header.get_sform(), grid.affine_ras)
        assert np.allclose(header.get_zooms(), np.linalg.norm(matrix[:3, :3], axis=0))
        assert header.get_xyzt_units()[0] == "mm"
        assert header.get_data_dtype() == np.float32
        assert (float(header["cal_min"]), float(header["cal_max"])) == (0, 1)
        assert [file.name for file in path.parent.iterdir()] == ["map.nii.gz"]


def test_map_bytes_are_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_for((5, 6, 7), TILTED, "sagittal", "x")
    write_map_volume(tmp_path / "a.nii.gz", maps_for(grid), grid)
    monkeypatch.setattr("time.time", lambda: 2e9)
    write_map_volume(tmp_path / "b.nii.gz", np.ascontiguousarray(maps_for(grid)), grid)
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_map_longer_than_nifti1_can_say(tmp_path: Path) -> None:
    grid = grid_for((2, 40_000, 2), np.eye(4), "axial", "x")
    write_map_volume(tmp_path / "long.nii.gz", maps_for(grid), grid)
    image = nibabel.load(tmp_path / "long.nii.gz")
    assert isinstance(image, nibabel.Nifti2Image)
    assert np.array_equal(image.get_fdata(), grid.restore(maps_for(grid)))
    assert np.array_equal(image.affine, np.eye(4))


def test_maps_that_do_not_fit(tmp_path: Path) -> None:
    grid = grid_for((5, 6, 7), np.eye(4), "axial", "x")
    for stack in (np.zeros((5, 6, 7)), np.zeros((6, 5)), np.zeros((7, 6, 4))):
        with pytest.raises(InputError, match=r"do not fit .*\(7, 6, 5\)"):
            write_map_volume(tmp_path / "x.nii.gz", stack.astype(np.float32), grid)
    with pytest.raises(InputError, match=r"\.nii\.gz"):
        write_map_volume(tmp_path / "x.nrrd", maps_for(grid), grid)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Cannot write"):
        write_map_volume(tmp_path / "file" / "x.nii.gz", maps_for(grid), grid)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_flat_files_and_frames(tmp_path: Path) -> None:
    flat = read_nifti(write_nifti(tmp_path / "flat.nii", noise((5, 6)), TILTED), "axial")
    assert flat.values.shape[0] == 1
    assert np.array_equal(flat.grid.restore(flat.values)[..., 0], noise((5, 6)))
    single = write_nifti(tmp_path / "single.nii", noise((5, 6, 7, 1, 1)), TILTED)
    assert read_nifti(single, "axial").grid.shape == (5, 6, 7)
    for name in ("series.nii", "series.nii.gz"):
        series = write_nifti(tmp_path / name, noise((5, 6, 7, 3)), TILTED)
        with pytest.raises(InputError, match=r"holds 3 volumes .*file of its own"):
            read_nifti(series, "axial")
    field = write_nifti(tmp_path / "field.nii", noise((5, 6, 7, 1, 3)), TILTED)
    with pytest.raises(InputError, match="5 axes"):
        read_nifti(field, "axial")


def test_either_half_of_a_pair(tmp_path: Path) -> None:
    header = write_nifti(tmp_path / "pair.hdr", noise(), TILTED)
    voxels_file = tmp_path / "pair.img"
    assert not is_nifti(voxels_file)
    by_header, by_voxels = read_nifti(header, "axial"), read_nifti(voxels_file, "axial")
    assert np.array_equal(by_header.values, by_voxels.values)
    voxels_file.rename(tmp_path / "other.img")
    with pytest.raises(InputError, match=r"pair\.hdr: .*\.img file of the same name"):
        read_nifti(header, "axial")


def test_gaps_become_the_lowest_value(tmp_path: Path) -> None:
    stored = noise(dtype="f4") - 50
    stored[0, 0], stored[1, 1, 1], stored[2, 2, 2] = np.nan, np.inf, -np.inf
    expected = np.where(np.isfinite(stored), stored, -50)
    assert stored[np.isfinite(stored)].min() == -50
    volume = read_nifti(write_nifti(tmp_path / "x.nii", stored, TILTED), "axial")
    assert np.array_equal(volume.grid.restore(volume.values), expected)
    nothing = write_nifti(tmp_path / "nan.nii", np.full((2, 3, 4), np.nan, "f4"), TILTED)
    with pytest.raises(InputError, match="not one voxel is a finite number"):
        read_nifti(nothing, "axial")


def test_gaps_and_values_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_module, "_CHUNK_VOXELS", 16)
    stored = noise(dtype="f8")
    stored[:, :, 2], stored[3, 3, 6] = np.nan, -7
    expected = np.where(np.isnan(stored), -7, stored)
    for name in ("x.nii", "x.nii.gz"):
        volume = read_nifti(write_nifti(tmp_path / name, stored, TILTED), "axial")
        assert np.array_equal(volume.grid.restore(volume.values), expected)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((10, 60), True),
        ((-500, 60), True),
        ((60, 10), False),
        ((0, 0), False),
        ((np.nan, 10), False),
        ((0, np.inf), False),
        ((500, 900), False),
    ],
)
def test_window_of_the_file(tmp_path: Path, given: tuple[float, float], kept: bool) -> None:
    path = write_nifti(tmp_path / "x.nii", noise(), TILTED, window=given)
    assert read_nifti(path, "axial").window == (given if kept else None)


def test_colours_and_complex_numbers_are_refused(tmp_path: Path) -> None:
    colours = np.zeros((2, 3, 4), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    for stored in (colours, np.zeros((2, 3, 4), "c8")):
        with pytest.raises(InputError, match=r"not grey values\. Save"):
            read_nifti(write_nifti(tmp_path / "x.nii", stored, TILTED), "axial")


def hostile(tmp_path: Path, offset: int, layout: str, *values: float) -> list[Path]:
    """A patched header, as it is and packed."""
    plain = patch(
        write_nifti(tmp_path / "x.nii", noise(dtype="f4"), np.eye(4)), offset, layout, *values
    )
    packed = tmp_path / "y.nii.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    return [plain, packed]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ((DIM, "<8h", 3, 32767, 32767, 32767, 1, 1, 1, 1), "million voxels"),
        ((DIM, "<8h", 3, 1024, 1024, 400, 1, 1, 1, 1), "ends"),
        ((DIM, "<8h", 3, -5, 6, 7, 1, 1, 1, 1), "empty"),
        ((DIM, "<8h", 0, 5, 6, 7, 1, 1, 1, 1), "empty"),
        ((DIM, "<8h", 7, 5, 6, 7, 2, 2, 2, 2), "7 axes"),
        ((DATATYPE, "<h", 4242), "cannot be read"),
        ((DATATYPE, "<h", 1), "cannot be read|not grey"),
        ((VOX_OFFSET, "<f", np.nan), "cannot be read"),
        ((VOX_OFFSET, "<f", -8), "start at byte -8"),
        ((VOX_OFFSET, "<f", 0), "start at byte 0"),
        ((VOX_OFFSET, "<f", 1e30), "start at byte"),
        ((VOX_OFFSET, "<f", 2.0**28), "ends"),
        ((SLOPE, "<2f", 1, np.nan), "cannot be read"),
        ((SFORM, "<12f", *[0] * 12), "affine is not invertible"),
        ((SFORM, "<12f", *[np.nan] * 12), "affine is not invertible"),
        ((344, "<4s", b"ni1\0"), "img file of the same name"),
        ((344, "<4s", b"abcd"), "not a NIfTI file"),
    ],
)
def test_hostile_headers(tmp_path: Path, field: tuple, reason: str) -> None:
    for path in hostile(tmp_path, *field):
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match=reason) as caught:
                read_nifti(path, "axial")
            assert tracemalloc.get_traced_memory()[1] < 30e6
        finally:
            tracemalloc.stop()
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_damaged_packing(tmp_path: Path) -> None:
    packed = write_nifti(tmp_path / "x.nii.gz", noise((20, 20, 20)), np.eye(4)).read_bytes()
    changed = bytearray(gzip.decompress(packed))
    changed[1000] ^= 1
    other = gzip.compress(bytes(changed))
    cases = {
        "cut": packed[: len(packed) // 2],
        "cut in the header": packed[:60],
        "another checksum": other[:-8] + packed[-8:],
        "garbage": packed[:100] + bytes(1000),
    }
    for name, data in cases.items():
        path = tmp_path / f"{name}.nii.gz"
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"{name}.*Copy or export it again"):
            read_nifti(path, "axial")


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty.nii").touch()
    (tmp_path / "text.nii.gz").write_text("hello")
    for name, reason in (
        ("none.nii", "no such file"),
        (".", "not a file"),
        ("empty.nii", "not a NIfTI"),
        ("text.nii.gz", "not a NIfTI"),
    ):
        assert not is_nifti(tmp_path / name)
        with pytest.raises(InputError, match=reason):
            read_nifti(tmp_path / name, "axial")


def test_nibabels_own_files() -> None:
    folder = Path(nibabel.__file__).parent / "tests" / "data"
    files = [p for p in sorted(folder.glob("*")) if p.name.endswith((".nii", ".nii.gz", ".hdr"))]
    if not files:
        pytest.skip("this nibabel comes without its test files")
    refused = [error for path in files if (error := one_file_of_nibabel(path))]
    assert all(error.count("\n") == 0 for error in refused)
    assert 4 <= len(files) - len(refused) < len(files)


def one_file_of_nibabel(path: Path) -> str:
    """Compare with nibabel where the file can be read; otherwise say why not."""
    try:
        volume = read_nifti(path, "axial")
    except InputError as error:
        return str(error)
    reference = nibabel.load(path)
    assert np.array_equal(volume.grid.affine_ras, reference.affine)
    stored = reference.get_fdata(dtype=np.float32).reshape(volume.grid.shape)
    stored = np.where(np.isnan(stored), np.nanmin(stored), stored)
    assert np.allclose(volume.grid.restore(volume.values), stored, rtol=1e-6)
    return ""


@pytest.mark.slow
def test_template_brains_of_nilearn() -> None:
    files = wheel_files("nilearn==0.14.1", (".nii.gz",))
    assert sum("mni_icbm152" in path.name for path in files) == 3
    for path in files:
        assert is_nifti(path)
        volume, reference = read_nifti(path, "auto"), nibabel.load(path)
        ras = nibabel.as_closest_canonical(reference).get_fdata(dtype=np.float32)
        assert np.allclose(volume.values, ras[::-1, ::-1].transpose(2, 1, 0))
        assert np.array_equal(volume.grid.affine_ras, reference.affine)
