"""The audit on phantoms; see test_audit_planted.py for real images."""

import csv
import shutil

import numpy as np
import pytest
from PIL import Image as PillowImage

from recap.data import read_domain, write_phantoms
from recap.data.audit import audit, summary, table, write_audit
from recap.data.copies import Audited, find_leaks
from recap.data.similar import Fingerprint
from recap.data.supports import read_exclusions
from recap.errors import InputError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    root = tmp_path_factory.mktemp("clean")
    write_phantoms(root, pool=8, test=8, size_px=96)
    return root


@pytest.fixture
def root(clean, tmp_path):
    return shutil.copytree(clean, tmp_path / "data")


def image(root, domain, split, number, label="good"):
    return root / f"{domain}_AD" / split / label / "img" / f"{split}_{number:03d}.png"


def turned(source, target, **save):
    with PillowImage.open(source) as picture:
        picture.transpose(PillowImage.Transpose.ROTATE_90).save(target, **save)
    return target


def found(report):
    return {(leak.kind, leak.pool.name, leak.test.name) for leak in report.leaks}


def test_phantoms_have_no_leaks(clean):
    report = audit(clean)
    assert report.leaks == []
    assert report.notes == []
    assert list(summary(report))[-1] == "No leaks between pool and test."


def test_planted_copies_are_found_and_nothing_else(root):
    source = image(root, "Brain", "test", 3)
    shutil.copy(source, source.parents[3] / "valid/good/img/other.png")
    source = image(root, "Retina_RESC", "test", 1)
    with PillowImage.open(source) as picture:
        picture.save(image(root, "Retina_RESC", "valid", 2).with_name("other.bmp"))
        picture.resize((90, 88)).save(image(root, "Retina_RESC", "valid", 2).with_name("s.png"))
    source = image(root, "Histopathology", "test", 2)
    target = image(root, "Histopathology", "valid", 5).with_name("other.jpg")
    turned(source, target, quality=80)
    assert found(audit(root)) == {
        ("identical-file", "other.png", "test_003.png"),
        ("identical-pixels", "other.bmp", "test_001.png"),
        ("near-duplicate", "s.png", "test_001.png"),
        ("near-duplicate", "other.jpg", "test_002.png"),
    }


def test_same_patient_and_neighbouring_slices(root):
    for split, number, name in [
        ("valid", 0, "7_10.png"),
        ("valid", 1, "9_50.png"),
        ("test", 0, "7_12.png"),
        ("test", 1, "7_13.png"),
        ("test", 2, "8_10.png"),
    ]:
        old = image(root, "Liver", split, number)
        old.rename(old.with_name(name))
    report = audit(root)
    assert found(report) == {
        ("neighbour-slice", "7_10.png", "7_12.png"),
        ("same-patient", "7_10.png", "7_12.png"),
        ("same-patient", "7_10.png", "7_13.png"),
    }
    assert [d.patients_on_both_sides for d in report.domains if d.leaks] == [["7"]]
    wider = found(audit(root, reach=3))
    assert ("neighbour-slice", "7_10.png", "7_13.png") in wider


def test_the_index_decides_who_is_who(root):
    pool, test = image(root, "Liver", "valid", 0), image(root, "Liver", "test", 0)
    pool, test = pool.rename(pool.with_name("7_10.png")), test.rename(test.with_name("7_30.png"))
    rows = "train,good,7_10.png,anna\ntest,good,7_30.png,berta\ntest,good,test_001.png,anna\n"
    (root / "Liver_AD" / "index.csv").write_text(f"split,label,file,patient\n{rows}")
    assert found(audit(root)) == {("same-patient", "7_10.png", "test_001.png")}


def known(name, listed="", own="", named="", number=None):
    from pathlib import Path

    return Audited(Path(name), False, Fingerprint(patient=own), listed, named, number)


@pytest.mark.parametrize(
    ("pool", "test", "same"),
    [
        (known("a", listed="p"), known("b", listed="p"), True),
        (known("a", listed="p", named="1"), known("b", listed="q", named="1"), False),
        (known("a", listed="p", named="1"), known("b", named="1"), True),
        (known("a", listed="p"), known("b", named="p"), False),
        (known("a", own="p", named="1"), known("b", own="p", named="2"), True),
        (known("a"), known("b"), False),
    ],
)
def test_patients_are_compared_by_the_best_source_that_knows_both(pool, test, same):
    assert bool(find_leaks([pool], [test], reach=2)) == same


def test_the_nearest_slice_stands_for_the_patient():
    pool = [known(f"7_{n}", named="7", number=n) for n in (1, 40, 90)]
    (leak,) = find_leaks(pool, [known("7_45", named="7", number=45)], reach=2)
    assert (leak.kind, leak.pool.name) == ("same-patient", "7_40")
    assert leak.detail == "patient 7 has 3 pool images"


def test_duplicates_inside_a_split_and_unreadable_files_are_notes(root):
    good = image(root, "Chest", "test", 0)
    shutil.copy(good, good.with_name("again.png"))
    shutil.copy(good, root / "Chest_AD/test/Ungood/img/sick.png")
    image(root, "Chest", "valid", 3).write_bytes(b"damaged")
    report = audit(root)
    assert report.leaks == []
    notes = [(n.kind, (n.pool or n.test).name, n.detail) for n in report.notes]
    # "again.png" sorts before "test_000.png".
    assert notes[0] == ("duplicate-in-test", "test_000.png", "same pixels as again.png")
    assert notes[1][:2] == ("duplicate-in-test", "sick.png")
    assert notes[1][2].endswith("labels differ (normal, abnormal)")
    assert notes[2][:2] == ("unreadable", "valid_003.png")


def test_missing_masks_do_not_end_an_audit(root):
    shutil.copy(
        image(root, "Brain", "test", 0, "Ungood"), root / "Brain_AD/valid/Ungood/img/new.png"
    )
    with pytest.raises(InputError, match="no mask"):
        read_domain(root / "Brain_AD").pool()
    assert found(audit(root)) == {("identical-file", "new.png", "test_000.png")}


def test_a_manifest_is_audited(root, tmp_path):
    paths = [image(root, "Brain", "valid", 0), image(root, "Brain", "test", 0)]
    rows = [f"{p},normal,anna,{s}" for p, s in zip(paths, ("pool", "test"), strict=True)]
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(["path,label,patient,split", *rows]))
    assert found(audit(file)) == {("same-patient", "valid_000.png", "test_000.png")}


def test_table_and_exclusion_list(root, tmp_path):
    source = image(root, "Chest", "test", 3)
    shutil.copy(source, image(root, "Chest", "valid", 0).with_name("img_1.png"))
    turned(source, image(root, "Chest", "valid", 0).with_name("img_2.png"))
    report = audit(root)
    csv_file, list_file = write_audit(report, tmp_path / "out")
    rows = list(csv.DictReader(csv_file.open()))
    assert [(r["domain"], r["kind"], r["pool_file"], r["test_file"]) for r in rows] == [
        ("Chest", kind, f"Chest_AD/valid/good/img/{name}", "Chest_AD/test/good/img/test_003.png")
        for kind, name in (("identical-file", "img_1.png"), ("near-duplicate", "img_2.png"))
    ]
    assert float(rows[1]["score"]) > 0.95
    lines = list_file.read_text().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("# identical-file: Chest_AD/valid/good/img/img_1.png (the same")
    domain = read_domain(root / "Chest_AD")
    kept = read_exclusions(list_file).keep(domain.test(), domain)
    assert [s.path for s in domain.test() if s not in kept] == [source]
    text = "\n".join(summary(report))
    assert "cannot be told, no image has a known patient" in text
    assert "  near-duplicate: 1\n" in text
    assert "test images to exclude: 1" in text
    assert text.endswith("2 leaks")


def test_two_audits_write_the_same_bytes(root, tmp_path):
    shutil.copy(image(root, "Brain", "test", 3), image(root, "Brain", "valid", 3))
    cache = tmp_path / "cache.sqlite"
    first = [f.read_bytes() for f in write_audit(audit(root, cache=cache), tmp_path / "a")]
    assert first == [f.read_bytes() for f in write_audit(audit(root, cache=cache), tmp_path / "b")]
    assert len(table(audit(root)).splitlines()) == 2


def test_progress_names_the_domain(clean):
    steps = []
    audit(clean / "Brain_AD", lambda *step: steps.append(step))
    assert steps[0] == ("Reading images", 0, 32, "")
    assert ("Comparing", 0, 1, "Brain: 0 of 16") in steps
    assert steps[-1] == ("Comparing", 1, 1, "")


def test_thumbnails_of_any_number_of_images(root):
    """A split where nothing can be read is compared by names alone."""
    for path in (root / "Brain_AD" / "valid").rglob("*.png"):
        path.write_bytes(b"damaged")
    (report,) = audit(root / "Brain_AD").domains
    assert report.leaks == []
    assert {note.kind for note in report.notes} == {"unreadable"}
    assert np.all([image.fingerprint.thumb is None for image in report.pool])


def test_half_a_data_set_is_refused_rather_than_called_clean(root, tmp_path):
    (tmp_path / "mine").mkdir()
    images = sorted((root / "Brain_AD" / "valid" / "good" / "img").iterdir())
    for label, image in zip(("normal", "abnormal"), images, strict=False):
        (tmp_path / "mine" / label).mkdir()
        shutil.copy(image, tmp_path / "mine" / label)
    with pytest.raises(InputError, match="there is no test split"):
        audit(tmp_path / "mine")


@pytest.mark.parametrize(
    ("row", "said"),
    [("a.png,abnormall,test", "line 3: the label is"), ("gone.png,normal,test", "do not exist")],
)
def test_a_manifest_with_a_row_that_cannot_be_used_is_refused(row, said, root, tmp_path):
    image = next((root / "Brain_AD" / "valid" / "good" / "img").iterdir())
    shutil.copy(image, tmp_path / "a.png")
    shutil.copy(image, tmp_path / "b.png")
    (tmp_path / "m.csv").write_text(f"path,label,split\nb.png,normal,pool\n{row}\n")
    with pytest.raises(InputError, match=said):
        audit(tmp_path / "m.csv")
