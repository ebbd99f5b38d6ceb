import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from dicom_files import save_dicom
from recap.data.benchmark import Domain, read_domain
from recap.data.prepare import listed_names
from recap.data.supports import (
    Support,
    draw_support,
    held_out_pool,
    known_patient,
    read_support,
    support_hashes,
    write_support,
)
from recap.errors import InputError, SettingsError
from recap.types import Sample


@pytest.fixture
def domain(tmp_path: Path) -> Domain:
    root = tmp_path / "Brain_AD"
    for label, masks in (("good", None), ("Ungood", "anomaly_mask")):
        for folder in filter(None, ("img", masks)):
            path = root / "valid" / label / folder
            path.mkdir(parents=True)
            for i in range(12):
                (path / f"{label[0]}{i}.png").write_bytes(f"{folder}{i}".encode())
    return Domain("Brain", root)


def names(support: Support) -> tuple[list[str], list[str]]:
    return [s.path.name for s in support.normal], [s.path.name for s in support.abnormal]


@pytest.mark.parametrize(
    "text",
    [
        "n-0: g7.png g2.png\na-0: U11.png U3.png",
        "a-0: U11.png  U3.png \nn-0: g7.png g2.png\n",
        "\r\nn-0:g7.png g2.png\r\na-0: U11.png U3.png\r\n",
    ],
)
def test_published_lists_keep_their_order(domain: Domain, tmp_path: Path, text: str) -> None:
    (tmp_path / "2-shot.txt").write_bytes(text.encode())
    support = read_support(domain, tmp_path / "2-shot.txt")
    assert names(support) == (["g7.png", "g2.png"], ["U11.png", "U3.png"])
    assert all(not s.abnormal for s in support.normal)
    assert support.abnormal[0].mask == domain.root / "valid/Ungood/anomaly_mask/U11.png"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n-0: g1.png gone.png\na-0: U1.png", r"gone\.png"),
        ("n-0: U1.png\na-0: U1.png", r"not in the pool"),
        ("n-0: g1.png", "a-0"),
        ("n-0: g1.png\na-0: U1.png\nn-0: g2.png", "unexpected line"),
        ("g1.png\nU1.png", "unexpected line"),
        ("n-0: g1.png g1.png\na-0: U1.png", "twice"),
    ],
)
def test_wrong_lists(domain: Domain, tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(InputError, match=reason) as caught:
        read_support(domain, tmp_path / "list.txt")
    assert "list.txt" in str(caught.value)


def test_missing_list(domain: Domain, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt"):
        read_support(domain, tmp_path / "none.txt")


def test_draws_are_fixed_nested_and_differ(domain: Domain) -> None:
    # Ranked by hand: sha256sum of "0:g0.png" and so on.
    ranked = sorted(range(12), key=lambda i: hashlib.sha256(f"0:g{i}.png".encode()).hexdigest())
    four = names(draw_support(domain, 4))
    assert four[0] == [f"g{i}.png" for i in ranked[:4]]
    assert four == names(draw_support(domain, 4))
    assert names(draw_support(domain, 2)) == (four[0][:2], four[1][:2])
    assert names(draw_support(domain, 4, draw=1)) != four
    assert len({*names(draw_support(domain, 12))[1]}) == 12


def test_impossible_draws(domain: Domain) -> None:
    with pytest.raises(InputError, match="12 normal images, fewer than the 13"):
        draw_support(domain, 13)
    with pytest.raises(SettingsError, match="not 0"):
        draw_support(domain, 0)


def test_a_pool_without_abnormal_images_is_enough_for_some_methods(tmp_path: Path) -> None:
    good = tmp_path / "Knee_AD/valid/good/img"
    good.mkdir(parents=True)
    for i in range(3):
        (good / f"g{i}.png").touch()
    domain = read_domain(tmp_path / "Knee_AD")
    support = draw_support(domain, 2, normal_only=True)
    assert (len(support.normal), support.abnormal) == (2, ())
    with pytest.raises(InputError, match=r"0 abnormal images.* such as normal_only, need none"):
        draw_support(domain, 2)
    with pytest.raises(InputError, match="3 normal images, fewer than the 4"):
        draw_support(domain, 4, normal_only=True)


def test_too_few_abnormal_images_do_not_matter_to_methods_without_them(tmp_path: Path) -> None:
    for folder, count in (("good", 3), ("Ungood", 1)):
        images = tmp_path / "Knee_AD/valid" / folder / "img"
        images.mkdir(parents=True)
        for i in range(count):
            (images / f"{folder}{i}.png").touch()
    domain = read_domain(tmp_path / "Knee_AD")
    support = draw_support(domain, 2, normal_only=True)
    assert (len(support.normal), len(support.abnormal)) == (2, 1)
    with pytest.raises(InputError, match="1 abnormal image, fewer than the 2"):
        draw_support(domain, 2)


def test_where_there_are_abnormal_images_all_methods_have_the_same_draw(domain: Domain) -> None:
    assert draw_support(domain, 3, normal_only=True) == draw_support(domain, 3)
    with pytest.raises(InputError, match="fewer than the 13"):
        draw_support(domain, 13, normal_only=True)


def test_written_lists_read_back(domain: Domain, tmp_path: Path) -> None:
    support = draw_support(domain, 3, draw=5)
    write_support(support, tmp_path / "deep/3-shot.txt")
    assert read_support(domain, tmp_path / "deep/3-shot.txt") == support


@pytest.mark.parametrize("name", ["list.txt", "list.json"])
def test_lists_with_a_byte_order_mark(domain: Domain, tmp_path: Path, name: str) -> None:
    """As editors on Windows save them."""
    support = draw_support(domain, 2)
    file = tmp_path / name
    write_support(support, file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_support(domain, file) == support
    if file.suffix == ".txt":
        assert listed_names([file]) == tuple(
            tuple(sorted(sample.path.name for sample in samples))
            for samples in (support.normal, support.abnormal)
        )


def test_names_with_spaces_cannot_be_listed(domain: Domain, tmp_path: Path) -> None:
    (domain.root / "valid/good/img/g 1.png").touch()
    with pytest.raises(InputError, match=r"g 1\.png"):
        write_support(Support(tuple(domain.pool()), ()), tmp_path / "list.txt")


def test_hashes(domain: Domain) -> None:
    support = draw_support(domain, 1)
    (record,) = support_hashes(support.abnormal)
    number = support.abnormal[0].path.stem.removeprefix("U")
    assert record == {
        "name": f"U{number}.png",
        "label": "abnormal",
        "sha256": hashlib.sha256(f"img{number}".encode()).hexdigest(),
        "mask_sha256": hashlib.sha256(f"anomaly_mask{number}".encode()).hexdigest(),
    }
    assert support_hashes(support.normal)[0]["mask_sha256"] is None


@pytest.fixture
def patients(tmp_path: Path) -> Domain:
    """p0 has six images of each class, p1 three, p2 one; and two that nobody is known of."""
    lines = ["path,label,patient"]
    for label in ("normal", "abnormal"):
        for patient, count in (("p0", 6), ("p1", 3), ("p2", 1), ("", 2)):
            for i in range(count):
                path = tmp_path / f"{label}-{patient}-{i}.png"
                path.write_bytes(path.name.encode())
                lines.append(f"{path.name},{label},{patient}")
    (tmp_path / "knee.csv").write_text("\n".join(lines))
    return read_domain(tmp_path / "knee.csv")


@pytest.mark.parametrize("draw", range(5))
def test_draws_by_patient_go_round(patients: Domain, draw: int) -> None:
    whole = draw_support(patients, 12, draw, by_patient=True)
    for samples in (whole.normal, whole.abnormal):
        rounds = [[s.patient for s in samples[a:b]] for a, b in ((0, 5), (5, 7), (7, 9), (9, 12))]
        assert sorted(rounds[0]) == ["", "", "p0", "p1", "p2"]
        assert [sorted(names) for names in rounds[1:]] == [["p0", "p1"]] * 2 + [["p0"] * 3]
        # Within a round the order is that of the plain draw.
        plain = [s.path for s in draw_support(patients, 12, draw).normal]
        if samples is whole.normal:
            ranks = [plain.index(s.path) for s in samples[:5]]
            assert ranks == sorted(ranks)
    for shots in range(1, 12):
        part = draw_support(patients, shots, draw, by_patient=True)
        assert part == Support(whole.normal[:shots], whole.abnormal[:shots])


@pytest.mark.parametrize("draw", range(5))
def test_what_is_held_out_of_the_pool_shows_nobody_of_the_support(
    patients: Domain, domain: Domain, draw: int
) -> None:
    support = draw_support(patients, 2, draw)
    used = {*support.normal, *support.abnormal}
    held_out = held_out_pool(patients, support)
    known = {known_patient(s) for s in used} - {""}
    left = [s for s in patients.pool() if s not in used and known_patient(s) not in known]
    assert held_out == left
    assert 0 < len(held_out) < len(patients.pool()) - len(used) or not known
    assert held_out_pool(patients) == patients.pool()
    assert len(held_out_pool(domain, draw_support(domain, 3))) == len(domain.pool()) - 6


def test_patients_are_found_in_file_names(domain: Domain, tmp_path: Path) -> None:
    root = tmp_path / "eyes/Retina_OCT2017_AD"
    for label, word in (("good", "NORMAL"), ("Ungood", "CNV")):
        folder = root / "valid" / label / "img"
        folder.mkdir(parents=True)
        for patient, count in ((11, 8), (22, 1), (33, 1)):
            for i in range(count):
                (folder / f"{word}-{patient}-{i}.png").touch()
    drawn = draw_support(read_domain(root), 3, by_patient=True)
    assert {known_patient(s) for s in drawn.normal} == {"11", "22", "33"}
    with pytest.raises(InputError, match="no patients are known"):
        draw_support(domain, 1, by_patient=True)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    for label in ("good", "Ungood"):
        folder = tmp_path / "Eye_AD/valid" / label / "img"
        folder.mkdir(parents=True)
        (folder / os.fsdecode(b"caf\xe9.png")).write_bytes(label.encode())
    domain = Domain("Eye", tmp_path / "Eye_AD")
    support = draw_support(domain, 1)
    with pytest.raises(InputError, match=r"is UTF-8, which this name is not.*\.json"):
        write_support(support, tmp_path / "list.txt")
    write_support(support, tmp_path / "list.json")
    assert read_support(domain, tmp_path / "list.json") == support


def test_patients_are_found_in_dicom_files(tmp_path: Path) -> None:
    path = save_dicom(tmp_path / "a", np.zeros((4, 4), np.uint8), PatientID="anna")
    assert known_patient(Sample(path, abnormal=False)) == "anna"
    assert known_patient(Sample(path, abnormal=False, patient="berta")) == "berta"
    (tmp_path / "b.dcm").write_bytes(b"nonsense")
    assert known_patient(Sample(tmp_path / "b.dcm", abnormal=False)) == ""


def test_hashes_are_written_and_checked(domain: Domain, tmp_path: Path) -> None:
    support = draw_support(domain, 3)
    write_support(support, tmp_path / "3-shot.txt")
    records = json.loads((tmp_path / "3-shot.txt.json").read_text())
    assert records["abnormal"] == support_hashes(support.abnormal)
    changed = support.abnormal[1]
    changed.path.write_bytes(b"other")
    with pytest.raises(InputError, match=rf"1 of its files.*{changed.path.name}.*draw") as caught:
        read_support(domain, tmp_path / "3-shot.txt")
    assert "3-shot.txt.json" in str(caught.value)
    changed.path.write_bytes(f"img{changed.path.stem[1:]}".encode())
    assert read_support(domain, tmp_path / "3-shot.txt") == support
    assert changed.mask is not None
    changed.mask.write_bytes(b"other")
    with pytest.raises(InputError, match=changed.path.name):
        read_support(domain, tmp_path / "3-shot.txt")


def test_list_and_hashes_must_agree(domain: Domain, tmp_path: Path) -> None:
    write_support(draw_support(domain, 2), tmp_path / "list.txt")
    (tmp_path / "list.txt").write_text("n-0: g1.png\na-0: U1.png")
    with pytest.raises(InputError, match="other files than"):
        read_support(domain, tmp_path / "list.txt")
    for damaged in ("{", "[]", '{"normal": [1], "abnormal": []}', "[" * 100_000):
        (tmp_path / "list.txt.json").write_text(damaged)
        with pytest.raises(InputError, match=r"list\.txt\.json"):
            read_support(domain, tmp_path / "list.txt")


def test_names_with_spaces_in_the_json_form(domain: Domain, tmp_path: Path) -> None:
    (domain.root / "valid/good/img/g 1.png").write_bytes(b"spaced")
    pool = domain.pool()
    support = Support(tuple(s for s in pool if not s.abnormal), (pool[-1],))
    write_support(support, tmp_path / "all.json")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["all.json"]
    assert read_support(domain, tmp_path / "all.json") == support
    with pytest.raises(InputError, match=r"none\.json"):
        read_support(domain, tmp_path / "none.json")


def test_equal_names_are_told_apart_by_hash(tmp_path: Path) -> None:
    for folder in ("p1", "p2", "p3"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(folder.encode())
    rows = ["path,label", "p1/a.png,0", "p2/a.png,0", "p3/a.png,1"]
    (tmp_path / "knee.csv").write_text("\n".join(rows))
    domain = read_domain(tmp_path / "knee.csv")
    pool = domain.pool()
    support = Support((pool[1],), (pool[2],))
    write_support(support, tmp_path / "list.txt")
    assert read_support(domain, tmp_path / "list.txt") == support
    (tmp_path / "list.txt.json").unlink()
    with pytest.raises(InputError, match=r"2 files of the pool have the name a\.png"):
        read_support(domain, tmp_path / "list.txt")


def test_unwritable_place(domain: Domain, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Cannot write"):
        write_support(draw_support(domain, 1), tmp_path / "file/list.txt")
