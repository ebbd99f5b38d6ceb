import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest

from recap.config import Axis
from recap.data.tumours import VOLUMES_SHA256
from recap.encoders._cache import cache_dir
from recap.errors import InputError
from recap.io.nifti import write_map_volume
from recap.io.nrrd import is_nrrd, read_nrrd
from volume_files import LPS, affine, signed_permutations, turn, write_nrrd

nrrd = pytest.importorskip("nrrd")

AXES: tuple[Axis, ...] = ("axial", "coronal", "sagittal")
TILTED = affine(turn((14, -22, 9)) @ np.eye(3)[:, [1, 2, 0]] * [1, -1, 1])
AS_LPS = np.diag([-1.0, -1, 1, 1])


def noise(shape: tuple[int, ...] = (5, 6, 7), dtype: str = "i2") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


def by_hand(path: Path, lines: str, voxels: bytes) -> Path:
    """An NRRD file written out, for what pynrrd does not write."""
    path.write_bytes(f"NRRD0004\n{lines.strip()}\n\n".encode() + voxels)
    return path


@pytest.mark.parametrize("space", [LPS, "right-anterior-superior", "LAS"])
@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2"])
def test_values_and_place(tmp_path: Path, encoding: str, space: str) -> None:
    path = write_nrrd(tmp_path / "x.nrrd", noise(), TILTED, space=space, encoding=encoding)
    assert is_nrrd(path)
    for axis in AXES:
        volume = read_nrrd(path, axis)
        assert volume.values.dtype == np.float32
        assert np.allclose(volume.grid.affine_ras, TILTED, atol=1e-12)
        assert np.array_equal(volume.grid.restore(volume.values), noise())
        assert (volume.source, volume.identity.patient, volume.window) == (str(path), "", None)


@pytest.mark.parametrize(
    "dtype", ["u1", "i1", "<i2", ">u2", ">i4", "<u4", "<i8", ">u8", "<f4", ">f8"]
)
def test_every_type_and_byte_order(tmp_path: Path, dtype: str) -> None:
    path = write_nrrd(tmp_path / "x.nrrd", noise(dtype=dtype), TILTED)
    volume = read_nrrd(path, "axial")
    assert np.array_equal(volume.grid.restore(volume.values), noise())


@pytest.mark.parametrize("axis", AXES)
def test_a_dot_is_found_in_place_and_goes_back(tmp_path: Path, axis: Axis) -> None:
    nibabel = pytest.importorskip("nibabel")
    for number, directions in enumerate(signed_permutations()[::7]):
        matrix = affine(turn((14, -22, 9)) @ directions)
        stored = np.zeros((5, 6, 7), np.int16)
        stored[2, 5, 3] = 9
        volume = read_nrrd(write_nrrd(tmp_path / f"{number}.nrrd", stored, matrix), axis)
        at, row, column = np.argwhere(volume.values)[0]
        geometry = volume.grid.slice_geometry(at)
        found_mm = geometry.affine_ras @ [0, row, column, 1]
        assert found_mm == pytest.approx(matrix @ [2, 5, 3, 1], abs=1e-9)
        write_map_volume(tmp_path / "map.nii.gz", volume.values, volume.grid)
        written = nibabel.load(tmp_path / "map.nii.gz")
        assert np.allclose(written.affine, matrix, rtol=1e-6, atol=1e-5)
        assert np.argwhere(written.get_fdata()).tolist() == [[2, 5, 3]]


@pytest.mark.parametrize(
    ("space", "towards_ras"),
    [
        ("RAS", (1, 1, 1)),
        ("LPS", (-1, -1, 1)),
        ("left-anterior-superior", (-1, 1, 1)),
        ("Left-Posterior-Superior", (-1, -1, 1)),
        ("scanner-xyz", (-1, -1, 1)),
        ("3D-right-handed", (-1, -1, 1)),
    ],
)
def test_names_of_spaces(tmp_path: Path, space: str, towards_ras: tuple[int, ...]) -> None:
    lines = f"""type: uchar
Dimension: 3
sizes: 2 3 4
encoding: raw
space: {space}
# comment: none
some key:=type: 7
space directions: (2,0,0) (0,3,0) (0,0,4)
space origin: (10,20,30)"""
    path = by_hand(tmp_path / "x.nrrd", lines, bytes(range(24)))
    expected = np.diag([2.0, 3, 4, 1])
    expected[:3, 3] = 10, 20, 30
    expected[:3] *= np.array(towards_ras)[:, None]
    assert np.array_equal(read_nrrd(path, "axial").grid.affine_ras, expected)


def test_without_a_space(tmp_path: Path) -> None:
    plain = read_nrrd(write_nrrd(tmp_path / "a.nrrd", noise(), None), "axial")
    assert np.array_equal(plain.grid.affine_ras, AS_LPS)
    # Rows and columns as stored: what a viewer shows that knows no orientation either.
    assert np.array_equal(plain.values, noise().T)
    spaced = write_nrrd(tmp_path / "b.nrrd", noise(), None, spacings=[0.5, np.nan, 3.0])
    assert np.array_equal(
        read_nrrd(spaced, "axial").grid.affine_ras, AS_LPS @ np.diag([0.5, 1, 3, 1])
    )


def test_flat_files(tmp_path: Path) -> None:
    flat = read_nrrd(write_nrrd(tmp_path / "a.nrrd", noise((5, 6)), None), "coronal")
    assert np.array_equal(flat.values[0], noise((5, 6)).T)
    lines = "type: uchar\ndimension: 2\nsizes: 3 4\nencoding: raw\nspace: RAS\n"
    tilted = by_hand(
        tmp_path / "b.nrrd", lines + "space directions: (0,2,0) (0,0,-2)", bytes(range(12))
    )
    volume = read_nrrd(tilted, "axial")
    assert volume.values.shape == (1, 4, 3)
    assert volume.grid.slice_geometry(0).orientation == "LIP"
    assert volume.grid.affine_ras[:3, 2].tolist() == [-1, 0, 0]
    in_plane = by_hand(
        tmp_path / "c.nrrd",
        "type: uchar\ndimension: 2\nsizes: 3 4\nencoding: raw\nspace dimension: 2\n"
        "space directions: (2,0) (0,3)\nspace origin: (1,2)",
        bytes(12),
    )
    assert read_nrrd(in_plane, "axial").grid.slice_geometry(0).spacing_mm == (3, 2)


@pytest.mark.parametrize("position", [0, 1, 3])
@pytest.mark.parametrize("by", ["directions", "kinds"])
def test_an_axis_outside_space(tmp_path: Path, position: int, by: str) -> None:
    """A series in time is refused wherever its axis stands; of length one it says nothing."""
    if by == "kinds":
        kinds = ["domain"] * 3
        kinds.insert(position, "list")
        header = {"kinds": kinds}
    else:
        directions = np.insert(np.diag([1.0, 2, 3]), position, np.nan, axis=0)
        header = {"space": LPS, "space directions": directions}
    stored = noise((5, 6, 7))
    series = np.stack([stored, stored + 1, stored + 2], axis=position)
    with pytest.raises(InputError, match=r"holds 3 volumes"):
        read_nrrd(write_nrrd(tmp_path / "x.nrrd", series, None, **header), "axial")
    one = np.expand_dims(stored, position)
    volume = read_nrrd(write_nrrd(tmp_path / "y.nrrd", one, None, **header), "axial")
    assert np.array_equal(volume.grid.restore(volume.values), stored)
    spacing = (2, 1) if by == "directions" else (1, 1)
    assert volume.grid.slice_geometry(0).spacing_mm == spacing


def test_time_as_a_fourth_coordinate(tmp_path: Path) -> None:
    lines = """type: uchar\ndimension: 4\nsizes: 2 3 4 1\nencoding: raw
space: left-posterior-superior-time
space directions: (2,0,0,0) (0,2,0,0) (0,0,5,0) (0,0,0,0.1)
space origin: (1,1,1,0)"""
    path = by_hand(tmp_path / "x.nrrd", lines, bytes(range(24)))
    volume = read_nrrd(path, "axial")
    assert volume.grid.shape == (2, 3, 4)
    assert volume.grid.affine_ras[:3, 3].tolist() == [-1, -1, 1]


def test_gaps_become_the_lowest_value(tmp_path: Path) -> None:
    stored = noise(dtype="f4")
    stored[1, 2, 3], stored[0, 0, 0] = np.nan, -4
    volume = read_nrrd(write_nrrd(tmp_path / "x.nrrd", stored, TILTED), "axial")
    expected = np.where(np.isnan(stored), -4, stored)
    assert np.array_equal(volume.grid.restore(volume.values), expected)


PLAIN = {"type": "uchar", "dimension": "3", "sizes": "2 3 4", "encoding": "raw"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sizes": "2000 3000 4000"}, "million voxels"),
        ({"sizes": "900 900 900"}, "ends too early"),
        ({"sizes": "900 900 900", "encoding": "gzip"}, "memory|cannot be read"),
        ({"sizes": "0 3 4"}, "empty"),
        ({"sizes": "-2 -3 4"}, "empty"),
        ({"sizes": "2 3"}, "dimension 3 does not fit"),
        ({"sizes": "9" * 400 + " 3 4"}, "(cannot be read|empty)"),
        ({"sizes": "2 3 4 5 6", "dimension": "5"}, "5 axes"),
        ({"sizes": "2", "dimension": "1"}, "do not span a slice"),
        ({"type": "block"}, "type 'block'"),
        ({"type": "short"}, "endian"),
        ({"encoding": "hex"}, "encoding 'hex'.*raw or gzip"),
        ({"encoding": "ascii"}, "encoding 'ascii'.*raw or gzip"),
        ({"data file": "/etc/passwd"}, "another file"),
        ({"type": "\n"}, "before dimension"),
        ({"byteskip": "-1"}, "byteskip: -1"),
        ({"kinds": "domain domain RGB-color"}, "kind RGB-color, not grey"),
        ({"kinds": "complex domain domain"}, "kind complex, not grey"),
        ({"space": "RAS", "space directions": "(1,0,0) (0,1,0) (0,0,0)"}, "not invertible"),
        ({"space": "RAS", "space directions": "(1,0,0) (0,1,0)"}, "do not span a slice"),
        ({"space": "RAS", "space directions": "hello"}, "cannot be read"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path: Path, fields: dict[str, str], reason: str) -> None:
    lines = "\n".join(f"{name}: {value}" for name, value in (PLAIN | fields).items())
    path = by_hand(tmp_path / "x.nrrd", lines, bytes(120))
    with pytest.raises(InputError, match=rf"x\.nrrd: .*{reason}") as caught:
        read_nrrd(path, "axial")
    assert "\n" not in str(caught.value)


def test_damage(tmp_path: Path) -> None:
    good = write_nrrd(tmp_path / "x.nrrd", noise((20, 20, 20)), TILTED).read_bytes()
    start = good.index(b"\n\n") + 2
    cases = {
        "cut": good[:-200],
        "other checksum": good[:-8] + bytes(8),
        "no voxels": good[:start],
        "no end of header": good[: start - 2],
        "only a name": b"NRRD0004",
        "detached": b"NRRD0004\ntype: short\ndata file: x.raw",
        "long header": b"NRRD0004\n" + b"#" * 5_000_000 + good[9:],
        "bzip2": good[:start].replace(b"gzip", b"bzip2") + bz2.compress(bytes(16000))[:-9],
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            read_nrrd(tmp_path / name, "axial")


def test_what_is_no_nrrd(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n\n")
    (tmp_path / "empty").touch()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"NRRD0004\n")[:12])
    for name in ("text", "empty", "cut.gz", "none", "."):
        assert not is_nrrd(tmp_path / name)
        with pytest.raises(InputError):
            read_nrrd(tmp_path / name, "axial")


@pytest.mark.slow
def test_real_tumours() -> None:
    files = [cache_dir() / "tumours" / name for name in VOLUMES_SHA256]
    if not all(file.is_file() for file in files):
        pytest.skip("needs the tumours of the demo")
    for file in files:
        volume = read_nrrd(file, "axial")
        stored, header = nrrd.read(str(file))
        assert np.array_equal(volume.grid.restore(volume.values), stored)
        origin = np.array([-1, -1, 1]) * header["space origin"]
        assert np.allclose(volume.grid.affine_ras[:3, 3], origin)
        assert volume.grid.slice_geometry(0).orientation == "SPL"
