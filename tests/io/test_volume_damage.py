"""Damaged volume files: each reads or is refused in one line, soon and in little memory."""

import gzip
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recap.errors import InputError
from recap.io.nifti import is_nifti, read_nifti
from recap.io.nrrd import is_nrrd, read_nrrd
from volume_files import affine, turn, write_nifti, write_nrrd

pytest.importorskip("nibabel")
pytest.importorskip("nrrd")

MOST_BYTES = 64e6
MOST_SECONDS = 5
MATRIX = affine(turn((10, 20, 30)))
Damage = Callable[[bytearray, np.random.Generator], bytes]


def header_bytes(data: bytearray, rng: np.random.Generator) -> bytes:
    for at in rng.integers(0, min(len(data), 400), rng.integers(1, 9)):
        data[at] = rng.integers(256)
    return bytes(data)


def any_bits(data: bytearray, rng: np.random.Generator) -> bytes:
    for at in rng.integers(0, len(data), rng.integers(1, 30)):
        data[at] ^= 1 << rng.integers(8)
    return bytes(data)


def cut(data: bytearray, rng: np.random.Generator) -> bytes:
    return bytes(data[: rng.integers(0, len(data))])


def hole(data: bytearray, rng: np.random.Generator) -> bytes:
    start, stop = sorted(rng.integers(0, len(data), 2))
    return bytes(data[:start] + data[stop:])


def blank(data: bytearray, rng: np.random.Generator) -> bytes:
    start, stop = sorted(rng.integers(0, len(data), 2))
    return bytes(data[:start]) + bytes([rng.choice([0, 255])]) * (stop - start) + bytes(data[stop:])


def inside_packing(data: bytearray, rng: np.random.Generator) -> bytes:
    """Damage that the packing does not betray."""
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else bytes(data)
    return gzip.compress(header_bytes(bytearray(plain), rng))


DAMAGES: tuple[Damage, ...] = (header_bytes, any_bits, cut, hole, blank, inside_packing)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("volumes")
    stored = np.random.default_rng(1).integers(0, 900, (9, 10, 11)).astype("i2")
    files = [
        write_nifti(folder / "a.nii", stored, MATRIX),
        write_nifti(folder / "b.nii.gz", stored, MATRIX, scale=(2, -1000)),
        write_nifti(folder / "c.nii.gz", stored.astype("f4"), MATRIX, version=2),
        write_nifti(folder / "d.nii", stored, MATRIX, version=2, big_endian=True),
        write_nrrd(folder / "e.nrrd", stored, MATRIX, encoding="raw"),
        write_nrrd(folder / "f.nrrd", stored.astype("f8"), MATRIX, encoding="gzip"),
        write_nrrd(folder / "g.nrrd", stored, MATRIX, encoding="bzip2"),
    ]
    return [file.read_bytes() for file in files]


def try_to_read(path: Path) -> str:
    """Whichever reader claims the file; both must cope with it all the same."""
    is_nifti(path)
    is_nrrd(path)
    reader = read_nrrd if path.read_bytes()[:4] == b"NRRD" else read_nifti
    try:
        volume = reader(path, "axial")
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017
        return str(error)
    assert np.isfinite(volume.values).all()
    assert volume.grid.restore(volume.values).shape == volume.grid.shape
    return ""


def damage_and_read(originals: list[bytes], folder: Path, count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    answers = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(count):
            data = bytearray(originals[number % len(originals)])
            damage = DAMAGES[number // len(originals) % len(DAMAGES)]
            path = folder / f"{number}.{damage.__name__}"
            path.write_bytes(damage(data, rng))
            tracemalloc.start()
            started = time.perf_counter()
            answers.append(try_to_read(path))
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, path.name
            tracemalloc.stop()
            assert time.perf_counter() - started < MOST_SECONDS, path.name
            path.unlink()
    return answers


def test_sixty_damaged_files(originals: list[bytes], tmp_path: Path) -> None:
    answers = damage_and_read(originals, tmp_path, 60, seed=0)
    assert all("\n" not in answer for answer in answers)
    assert 20 < sum(map(bool, answers)) < 60


@pytest.mark.slow
def test_seven_hundred_damaged_files(originals: list[bytes], tmp_path: Path) -> None:
    answers = damage_and_read(originals, tmp_path, 700, seed=1)
    assert all("\n" not in answer for answer in answers)
    assert 200 < sum(map(bool, answers)) < 700


def test_a_bomb_gives_no_more_than_its_header_says(tmp_path: Path) -> None:
    small = write_nifti(tmp_path / "a.nii", np.ones((4, 5, 6), "u1"), np.eye(4)).read_bytes()
    bomb = tmp_path / "bomb.nii.gz"
    with gzip.open(bomb, "wb") as packed:
        packed.write(small)
        for _ in range(50):
            packed.write(bytes(2**20))
    tracemalloc.start()
    volume = read_nifti(bomb, "axial")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert volume.values.size == 120
    assert peak < 10e6


@pytest.mark.parametrize("name", ["x.nii", "x.nii.gz", "x.nrrd"])
def test_reading_needs_little_more_than_the_result(tmp_path: Path, name: str) -> None:
    stored = np.zeros((200, 200, 150), "i2")
    stored[50:150, 50:150] = 1000
    if name.endswith("nrrd"):
        path = write_nrrd(tmp_path / name, stored, MATRIX)
    else:
        path = write_nifti(tmp_path / name, stored, MATRIX, scale=(0.5, -3))
    reader = read_nrrd if name.endswith("nrrd") else read_nifti
    tracemalloc.start()
    volume = reader(path, "axial")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < volume.values.nbytes + 40e6
