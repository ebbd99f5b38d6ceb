"""HIS from a small Camelyon16: the right patches, labelled rightly, the same every time."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image as PillowImage

from killed_run import prepare_and_die
from recap.data import read_domain
from recap.data.patients import patient_of
from recap.data.prepare import PrepareOptions, find_source, his, prepare
from recap.errors import InputError
from slide_files import blank, write_annotations, write_slide
from toy_source import tree

pytestmark = pytest.mark.slow

SIZE = 1024
# Corners (row, column) of the tumour, and of a part that is cut out of it again.
TUMOUR = [(256, 256), (256, 1024), (768, 1024), (768, 256)]
HOLE = [(512, 512), (512, 768), (768, 768), (768, 512)]


def pixels(seed):
    """Tissue on all but the left and upper 256 pixels; its colour tells the place."""
    image = blank(SIZE, SIZE)
    rows, columns = np.mgrid[:SIZE, :SIZE] // 8
    image[..., 0], image[..., 1] = 90 + rows, 40 + seed
    image[..., 2] = 90 + columns
    image[:256], image[:, :256] = blank(256, SIZE), blank(SIZE, 256)
    return image


def camelyon(raw, normal=3, tumor=2, test=""):
    """A raw tree; `test` has one letter per test slide, n or t."""
    for number in range(1, normal + 1):
        add_slide(raw / "training/normal", f"normal_{number:03d}", number)
    for number in range(1, tumor + 1):
        add_slide(raw / "training/tumor", f"tumor_{number:03d}", 50 + number)
        outline(raw / "training", f"tumor_{number:03d}")
    for number, kind in enumerate(test, start=1):
        add_slide(raw / "testing/images", f"test_{number:03d}", 80 + number)
        if kind == "t":
            outline(raw / "testing", f"test_{number:03d}")
    return raw


def add_slide(folder, stem, seed):
    folder.mkdir(parents=True, exist_ok=True)
    write_slide(folder / f"{stem}.tif", pixels(seed), factors=(1, 4), tile=256)


def outline(part, stem):
    file = part / "lesion_annotations" / f"{stem}.xml"
    write_annotations(file, [("_0", TUMOUR), ("_2", HOLE)])


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return camelyon(tmp_path_factory.mktemp("camelyon"))


@pytest.fixture(scope="module")
def with_test(tmp_path_factory):
    return camelyon(tmp_path_factory.mktemp("camelyon_test"), normal=2, tumor=1, test="ntnt")


def run(raw, to, source=None, **options):
    return prepare(source or find_source("his"), raw, to, PrepareOptions(**options))


def samples(folder):
    domain = read_domain(folder)
    return {"valid": domain.pool(), "test": domain.test()}


def origin(path):
    _, _, x, y = path.stem.split("_")
    return int(y[1:]), int(x[1:])


def test_patches_are_in_place_and_labelled(raw, tmp_path):
    summary = run(raw, tmp_path)
    assert summary.errors == ()
    assert summary.folder.name == "Histopathology_AD"
    found = [sample for split in samples(summary.folder).values() for sample in split]
    assert {sample.abnormal for sample in found} == {False, True}
    for sample in found:
        seen = np.asarray(PillowImage.open(sample.path))
        row, column = origin(sample.path)
        assert seen.shape == (256, 256, 3)
        stem = sample.path.stem.split("_x")[0]
        seed = int(stem[-3:]) + (50 if sample.abnormal else 0)
        assert stem.startswith("tumor" if sample.abnormal else "normal")
        assert np.array_equal(seen, pixels(seed)[row : row + 256, column : column + 256])
        assert patient_of(sample.path, "Histopathology") == stem
    # 9 tiles of tissue on each slide, 6 of which lie in the tumour, 1 of these in the hole.
    assert sum(summary.counts.values()) == 3 * 9 + 2 * 5
    tumour = {(row, column) for row in (256, 512) for column in (256, 512, 768)} - {(512, 512)}
    assert {origin(sample.path) for sample in found if sample.abnormal} == tumour
    assert not list(summary.folder.rglob("anomaly_mask"))


def test_masks_are_an_option(raw, tmp_path):
    summary = run(raw, tmp_path, masks=True)
    for sample in samples(summary.folder)["test"]:
        if sample.abnormal:
            mask = np.asarray(PillowImage.open(sample.mask))
            assert mask.shape == (256, 256)
            assert mask.mean() == 255


def test_twice_and_killed_half_way_gives_the_same_bytes(raw, tmp_path):
    first = run(raw, tmp_path / "a")
    run(raw, tmp_path / "b")
    prepare_and_die("recap.data.prepare.his", raw, tmp_path / "c", after=2)
    resumed = run(raw, tmp_path / "c")
    assert (first.made, resumed.reused) == (5, 2)
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == tree(tmp_path / "c")


def test_patient_split_keeps_slides_apart(raw, tmp_path):
    summary = run(raw, tmp_path, patient_split=True)
    assert summary.caveats == ()
    slides = {}
    for path in summary.folder.rglob("*.png"):
        slides.setdefault(path.relative_to(summary.folder).parts[0], set()).add(
            patient_of(path, "Histopathology")
        )
    assert set(slides) == {"train", "valid", "test"}
    assert sum(map(len, slides.values())) == len(set().union(*slides.values())) == 5


def test_the_challenges_test_slides_give_pool_and_test(with_test, tmp_path):
    summary = run(with_test, tmp_path, patient_split=True)
    names = {
        split: {path.name[:8] for path in (summary.folder / split).rglob("*.png")}
        for split in ("train", "valid", "test")
    }
    assert names["train"] == {"normal_0"}
    assert {*names["valid"], *names["test"]} == {f"test_00{n}" for n in (1, 2, 3, 4)}
    labels = {path.name[:8]: "Ungood" in path.parts for path in summary.folder.rglob("test_*.png")}
    assert labels == {"test_001": False, "test_002": True, "test_003": False, "test_004": True}
    assert [note.key for note in summary.skipped] == ["tumor_001"]


def test_the_table_of_labels_decides(with_test, tmp_path):
    raw = shutil.copytree(with_test, tmp_path / "raw")
    (raw / "testing/reference.csv").write_text(
        "test_001,Normal,None,None\ntest_002,Tumor,IDC,Macro\ntest_003,Tumor,IDC,Macro\n"
    )
    summary = run(raw, tmp_path / "out")
    assert [note.key for note in summary.errors] == ["test_003"]
    assert "test_003.xml" in summary.errors[0].reason
    assert "test_004" in {note.key for note in summary.skipped if "label" in note.reason}


def test_limits_and_counts(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(his, "NORMAL", {"test": 6, "valid": 3, "train": 9})
    monkeypatch.setattr(his, "ABNORMAL", {"test": 4, "valid": 2})
    summary = run(raw, tmp_path)
    assert summary.counts == {
        "test/Ungood": 4,
        "test/good": 6,
        "train/good": 9,
        "valid/Ungood": 2,
        "valid/good": 3,
    }
    slides = [patient_of(s.path, "") for s in samples(summary.folder)["test"] if not s.abnormal]
    assert {slides.count(name) for name in slides} == {2}
    without = run(raw, tmp_path / "no", train=False)
    kept = {path: data for path, data in tree(tmp_path).items() if path.startswith("test/")}
    assert {p: d for p, d in tree(tmp_path / "no").items() if p.startswith("test/")} == kept
    assert "train/good" not in without.counts
    assert sum(run(raw, tmp_path / "one", limit=1).counts.values()) == 9 + 5


def test_broken_inputs_are_named_and_the_rest_goes_on(raw, tmp_path):
    raw = shutil.copytree(raw, tmp_path / "raw")
    slide = raw / "training/normal/normal_002.tif"
    slide.write_bytes(slide.read_bytes()[:3000])
    (raw / "training/lesion_annotations/tumor_001.xml").write_text("<!DOCTYPE a><a/>")
    (raw / "training/lesion_annotations/tumor_002.xml").unlink()
    (raw / "training/spare").mkdir()
    (raw / "training/spare/normal_001.tif").write_bytes(b"")
    summary = run(raw, tmp_path / "out")
    assert {note.key for note in summary.errors} == {
        "normal_002",
        "tumor_001",
        "tumor_002",
        "training/spare/normal_001.tif",
    }
    assert summary.counts["test/good"] > 0
    assert str(raw) not in json.dumps([note.reason for note in summary.errors])


def test_lists_cannot_be_followed_and_it_says_so(raw, tmp_path):
    summary = run(raw, tmp_path, limit=1, pool_normal=("1080.png",))
    assert any("lists cannot be followed" in caveat for caveat in summary.caveats)


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no normal_\*\.tif"):
        run(tmp_path, tmp_path / "out")


def test_slides_may_be_linked(with_test, tmp_path):
    for path in with_test.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "training").rename(tmp_path / "a_link")
    plain, linked = (
        [probe.key for probe in find_source("his").plan(raw, PrepareOptions()).probes]
        for raw in (with_test, tmp_path)
    )
    assert linked == plain != []
