import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from recap.data import tumours
from recap.data.folder import folder_samples
from recap.data.tumours import (
    Case,
    choose_slices,
    pull_tumours,
    spread,
    write_tumour_slices,
)
from recap.errors import InputError
from recap.io import read_image, read_mask

nrrd = pytest.importorskip("nrrd")

HEAD = Case("head", window=None, organ=(0.1, 1.0), below=2)


def head_volume() -> tuple[np.ndarray, np.ndarray]:
    """Slices, rows, columns: a bright spot in front, a lesion on the patient's left behind."""
    image = np.zeros((14, 40, 36), np.int16)
    image[:, 6:34, 6:30] = 300
    image[13, 14:34, 6:30] = 0
    image[:, 6:12, 15:22] = 900
    label = np.zeros_like(image)
    label[5:8, 24:31, 24:30] = 1
    label[8, 24, 24] = 1
    image[label > 0] = 700
    # No two slices are alike, as no two are in a head: fitting refuses copies.
    image[:, 20, 20] = np.where(image[:, 20, 20] > 0, 300 + 25 * np.arange(len(image)), 0)
    return image, label


def store(folder: Path, name: str, space: str, directions: np.ndarray, volume: np.ndarray) -> None:
    header = {"space": space, "space directions": directions, "space origin": [0.0, 0.0, 0.0]}
    nrrd.write(str(folder / name), volume, header)


# How each layout stores an axis: as the transpose of (slices, rows, columns), then flips.
LAYOUTS = {
    "as lps": ("left-posterior-superior", (2, 1, 0), (), np.diag([1.0, 1.0, 3.0])),
    "front last": ("left-posterior-superior", (2, 1, 0), (1,), np.diag([1.0, -1.0, 3.0])),
    "as ras": ("right-anterior-superior", (2, 1, 0), (), np.diag([-1.0, -1.0, 3.0])),
    "slices first": (
        "left-posterior-superior",
        (0, 2, 1),
        (0,),
        np.array([[0, 0, -3.0], [1.0, 0, 0], [0, 1.0, 0]]),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slices_come_out_the_right_way_up(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tumours, "CASES", (HEAD,))
    space, order, flips, directions = LAYOUTS[layout]
    for kind, volume in zip(("image", "label"), head_volume(), strict=True):
        stored = np.flip(volume.transpose(order), flips)
        store(tmp_path, f"head_{kind}.nrrd", space, directions, stored)
    folders = write_tumour_slices(tmp_path, tmp_path / "out")
    assert folders == {"head": tmp_path / "out/head"}
    image, label = head_volume()
    names = {
        k: sorted(p.stem for p in (folders["head"] / k).iterdir()) for k in ("normal", "abnormal")
    }
    assert names == {"normal": ["003", "010", "011", "012"], "abnormal": ["005", "006", "007"]}
    samples = folder_samples(
        folders["head"] / "normal", folders["head"] / "abnormal", folders["head"] / "masks"
    )
    for sample in samples:
        expected = image[int(sample.path.stem)]
        pixels = read_image(sample.path).pixels
        assert np.array_equal(pixels == 1, expected == 900)
        assert np.array_equal(pixels == 0, expected == 0)
        if sample.mask:
            assert np.array_equal(read_mask(sample.mask), label[int(sample.path.stem)] > 0)


def test_choice_keeps_its_distance() -> None:
    label = np.zeros((12, 9, 9), bool)
    label[5, :6, :6] = True
    extent = np.zeros((12, 9, 9), np.float32)
    extent[:10] = 0.5
    extent[9, :5] = 0
    free = Case("x", window=None, organ=(0.4, 0.6))
    assert choose_slices(free, extent, label) == ([0, 1, 2, 3, 7, 8], [5])
    assert choose_slices(HEAD, extent, label) == ([3, 7, 8], [5])
    with pytest.raises(InputError, match="labelled"):
        choose_slices(free, extent, np.zeros_like(label))


def test_fixed_window_for_ct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tumours, "CASES", (Case("ct", window=(-1000, 400), organ=(0.0, 0.3)),))
    image = np.full((5, 8, 8), -1000, np.int16)
    image[:, 0, 0], image[:, 0, 1] = 2000, -300
    label = np.zeros_like(image)
    label[0, :6, :6] = 1
    for kind, volume in (("image", image), ("label", label)):
        store(tmp_path, f"ct_{kind}.nrrd", "left-posterior-superior", np.eye(3), volume.T)
    out = write_tumour_slices(tmp_path, tmp_path)["ct"]
    pixels = np.asarray(PillowImage.open(out / "normal/004.png"))
    assert [pixels[0, 0], pixels[0, 1], pixels[0, 2]] == [255, round(255 * 700 / 1400), 0]


def test_unusable_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tumours, "CASES", (HEAD,))
    with pytest.raises(InputError, match=r"head_image\.nrrd"):
        write_tumour_slices(tmp_path, tmp_path)
    (tmp_path / "head_image.nrrd").write_bytes(b"NRRD0004\ntype: int")
    with pytest.raises(InputError, match="cannot be read"):
        write_tumour_slices(tmp_path, tmp_path)
    oblique = np.array([[1.0, 0.7, 0], [-0.7, 1.0, 0], [0, 0, 1.0]])
    image, label = head_volume()
    store(tmp_path, "head_image.nrrd", "left-posterior-superior", oblique, image.T)
    with pytest.raises(InputError, match="axes of the body"):
        write_tumour_slices(tmp_path, tmp_path)
    store(tmp_path, "head_image.nrrd", "left-posterior-superior", np.eye(3), image.T)
    store(tmp_path, "head_label.nrrd", "left-posterior-superior", np.eye(3), label[1:].T)
    with pytest.raises(InputError, match="differ in size"):
        write_tumour_slices(tmp_path, tmp_path)


def test_spread() -> None:
    assert spread(range(9), 3) == [0, 4, 8]
    assert spread("abcd", 4) == list("abcd")
    assert spread("abcd", 1) == ["a"]
    assert len(set(spread(range(11), 4))) == 4
    with pytest.raises(InputError, match="5 of 4"):
        spread("abcd", 5)


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for the registry: a small archive, some of it hostile, and a log of fetches."""
    contents = {"a_image.nrrd": b"image", "a_label.nrrd": b"label"}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    monkeypatch.setattr(tumours, "VOLUMES_SHA256", digests)
    fetched: list[str] = []

    def fetch_sdist(
        name: str, version: str, sha256: str, folder: Path, *, progress: object
    ) -> Path:
        fetched.append(f"{name} {version}")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / "release.tar.gz", "w:gz") as tar:
            for path, data in [
                ("../a_image.nrrd", b"outside"),
                ("a_label.nrrd", b"outside"),
                *((f"pyradiomics-3.0.1/data/{n}", d) for n, d in contents.items()),
                ("pyradiomics-3.0.1/setup.py", b"raise SystemExit"),
            ]:
                member = tarfile.TarInfo(path)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return folder / "release.tar.gz"

    monkeypatch.setattr("recap.data.tumours.fetch_sdist", fetch_sdist)
    return fetched


def test_pull_keeps_the_volumes_only(tmp_path: Path, release: list[str]) -> None:
    folder = pull_tumours(tmp_path / "cache")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        "a_image.nrrd": b"image",
        "a_label.nrrd": b"label",
    }
    assert pull_tumours(tmp_path / "cache") == folder
    assert release == ["pyradiomics 3.0.1"]
    (folder / "a_label.nrrd").write_bytes(b"damaged")
    pull_tumours(tmp_path / "cache")
    assert (folder / "a_label.nrrd").read_bytes() == b"label"


def test_pull_refuses_other_contents(
    tmp_path: Path, release: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tumours, "VOLUMES_SHA256", {"a_image.nrrd": "0" * 64})
    with pytest.raises(InputError, match=r"a_image\.nrrd.*SHA-256"):
        pull_tumours(tmp_path)
    monkeypatch.setattr(tumours, "VOLUMES_SHA256", {"b_image.nrrd": "0" * 64})
    with pytest.raises(InputError, match=r"lacks b_image\.nrrd"):
        pull_tumours(tmp_path)
    assert list((tmp_path / "tumours").iterdir()) == []
