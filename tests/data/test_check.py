import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from recap.data.check import DataReport, inspect_all, inspect_data
from recap.errors import InputError


def draw(path: Path, value: int, size: tuple[int, int] = (8, 6), mode: str = "L") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = value if mode == "L" else (value,) * 3
    PillowImage.new(mode, size, colour).save(path)
    return path


def write_domain(root: Path) -> Path:
    """Two of each class in each split, with masks; every image has a grey value of its own."""
    value = 0
    for split in ("valid", "test"):
        for label in ("good", "Ungood"):
            for name in ("a", "b"):
                value += 1
                draw(root / split / label / f"img/{name}.png", value)
                if label == "Ungood":
                    draw(root / split / label / f"anomaly_mask/{name}.png", 255)
    return root


def kinds(report: DataReport) -> Counter[str]:
    return Counter(problem.kind for problem in report.problems)


def test_a_sound_data_set(tmp_path: Path) -> None:
    root = write_domain(tmp_path / "Knee_AD")
    draw(root / "train/good/1.png", 99, (5, 5), "RGB")
    draw(root / "valid/Ungood/box_mask/a.png", 255)
    (root / "README.md").touch()
    steps: list[tuple[int, int]] = []
    report = inspect_data(root, lambda _, done, total, name: steps.append((done, total)))
    assert (report.name, report.layout, report.problems) == ("Knee", "benchmark", [])
    assert report.images == {
        "train": {"normal": 1, "abnormal": 0},
        "pool": {"normal": 2, "abnormal": 2},
        "test": {"normal": 2, "abnormal": 2},
    }
    assert report.masks == {"train": 0, "pool": 2, "test": 2}
    assert report.sizes == {"8x6": 8, "5x5": 1}
    assert report.colours == {"grey": 8, "RGB": 1}
    assert report.ignored == {".": 1, "valid/Ungood/box_mask": 1}
    assert steps[-1] == (9, 9)
    assert json.loads(json.dumps(report.as_json()))["images"]["pool"]["normal"] == 2


def test_every_problem_is_named(tmp_path: Path) -> None:
    root = write_domain(tmp_path / "Knee_AD")
    test, pool = root / "test", root / "valid"
    (test / "good/img/broken.png").write_bytes(b"\x89PNG broken")
    (test / "good/img/empty.png").touch()
    (pool / "Ungood/anomaly_mask/a.png").unlink()
    draw(pool / "Ungood/anomaly_mask/z.png", 255)
    draw(pool / "Ungood/anomaly_mask/b_mask.png", 255)
    draw(test / "Ungood/anomaly_mask/a.png", 255, (9, 6))
    draw(test / "Ungood/anomaly_mask/b.png", 0)
    shutil.copy(pool / "good/img/a.png", test / "Ungood/img/c.png")
    (test / "Ungood/anomaly_mask/c.png").write_bytes(b"no mask")
    report = inspect_data(root)
    found = {(p.kind, Path(p.path).relative_to(root).as_posix()) for p in report.problems}
    assert found == {
        ("unreadable image", "test/good/img/broken.png"),
        ("unreadable image", "test/good/img/empty.png"),
        ("image without mask", "valid/Ungood/img/a.png"),
        ("orphan mask", "valid/Ungood/anomaly_mask/z.png"),
        ("ambiguous mask", "valid/Ungood/img/b.png"),
        ("mask of other size", "test/Ungood/anomaly_mask/a.png"),
        ("empty mask", "test/Ungood/anomaly_mask/b.png"),
        ("unreadable mask", "test/Ungood/anomaly_mask/c.png"),
        ("duplicate", "test/Ungood/img/c.png"),
    }
    (duplicate,) = (p for p in report.problems if p.kind == "duplicate")
    assert "(test, abnormal)" in duplicate.reason
    assert f"{pool / 'good/img/a.png'} (pool, normal)" in duplicate.reason
    assert report.images["test"] == {"normal": 4, "abnormal": 3}


def test_what_to_do_about_masks_that_could_be_of_several_images(tmp_path: Path) -> None:
    root = write_domain(tmp_path / "Knee_AD")
    abnormal = root / "valid" / "Ungood"
    draw(abnormal / "anomaly_mask" / "b_mask.png", 255)
    draw(abnormal / "img" / "a.tif", 90)
    told = {Path(p.path).name: p.reason for p in inspect_data(root).problems}
    assert told["b.png"] == "which of b.png, b_mask.png? Merge them, or keep one"
    for twin in ("a.png", "a.tif"):
        assert told[twin] == "another image has its name too: whose is a.png? Rename one image"


def test_duplicates_within_a_class(tmp_path: Path) -> None:
    root = write_domain(tmp_path / "Knee_AD")
    for name in ("c", "d"):
        shutil.copy(root / "test/good/img/a.png", root / f"test/good/img/{name}.png")
    assert kinds(inspect_data(root)) == {"duplicate": 2}


def test_mask_folders_that_do_not_fit(tmp_path: Path) -> None:
    root = write_domain(tmp_path / "Knee_AD")
    (root / "test/Ungood/label").mkdir()
    shutil.rmtree(root / "valid/Ungood/anomaly_mask")
    (root / "valid/Ungood/anomaly_mask").mkdir()
    report = inspect_data(root)
    assert kinds(report) == {"layout": 3, "image without mask": 2}
    assert report.masks == {"pool": 0, "test": 2}


def test_plain_folders(tmp_path: Path) -> None:
    draw(tmp_path / "normal/1.png", 1)
    draw(tmp_path / "abnormal/p/2.png", 2)
    draw(tmp_path / "masks/2.png", 255)
    report = inspect_data(tmp_path)
    assert (report.layout, report.problems) == ("folders", [])
    assert report.images == {"pool": {"normal": 1, "abnormal": 1}}
    shutil.rmtree(tmp_path / "normal")
    shutil.rmtree(tmp_path / "abnormal")
    (tmp_path / "normal").mkdir()
    assert kinds(inspect_data(tmp_path)) == {"layout": 1, "orphan mask": 1}


def test_masks_beside_their_images(tmp_path: Path) -> None:
    for name, value in (("normal/1", 1), ("normal/1_mask", 2), ("abnormal/2", 3)):
        draw(tmp_path / f"{name}.png", value)
    draw(tmp_path / "abnormal/2-mask.png", 255)
    problems = inspect_data(tmp_path).problems
    assert {(p.kind, Path(p.path).name, p.reason) for p in problems} == {
        ("mask among images", "1_mask.png", "looks like the mask of 1.png"),
        ("mask among images", "2-mask.png", "looks like the mask of 2.png"),
    }


def test_masks_below_the_images_of_plain_folders(tmp_path: Path) -> None:
    draw(tmp_path / "normal/1.png", 1)
    draw(tmp_path / "abnormal/2.png", 2)
    draw(tmp_path / "abnormal/masks/2.png", 255)
    (problem,) = inspect_data(tmp_path).problems
    assert (problem.kind, problem.path) == ("layout", str(tmp_path / "abnormal/masks"))
    assert problem.reason.startswith("its images would count as abnormal")


def test_further_folders_beside_plain_ones_are_checked(tmp_path: Path) -> None:
    draw(tmp_path / "normal/1.png", 1)
    (tmp_path / "normal/notes.txt").touch()
    for name, value in (("2", 2), ("copy", 1), ("p/3", 3)):
        draw(tmp_path / f"more-normal/{name}.png", value)
    (tmp_path / "more-normal/bad.png").write_bytes(b"nothing")
    report = inspect_data(tmp_path)
    found = {(p.kind, Path(p.path).relative_to(tmp_path).as_posix()) for p in report.problems}
    assert found == {
        ("unreadable image", "more-normal/bad.png"),
        ("duplicate", "more-normal/copy.png"),
    }
    (duplicate,) = (p for p in report.problems if p.kind == "duplicate")
    assert duplicate.reason.startswith("(more-normal) has the bytes of ")
    assert report.further == {"more-normal": 3, "more-normal/p": 1}
    assert report.ignored == {"normal": 1}
    assert report.images == {"pool": {"normal": 1, "abnormal": 0}}


def test_manifest_with_patients(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        draw(tmp_path / f"{name}.png", value)
    rows = ["path,label,patient,split", "a.png,0,p1,", "b.png,1,p1,", "c.png,1,p1,test"]
    rows += ["d.png,0,p2,test", "d.png,what,,", "gone.png,0,,"]
    file = tmp_path / "knee.csv"
    file.write_text("\n".join(rows))
    report = inspect_data(file)
    assert kinds(report) == {"manifest row": 1, "missing file": 1}
    assert report.patients == {"pool": 1, "test": 2}
    assert report.patients_in_pool_and_test == ["p1"]
    file.write_text("image\na.png")
    assert kinds(inspect_data(file)) == {"layout": 1}


def test_patients_in_file_names(tmp_path: Path) -> None:
    for i, name in enumerate(("NORMAL-7-1", "NORMAL-7-2", "NORMAL-8-1")):
        draw(tmp_path / f"Retina_OCT2017_AD/test/good/img/{name}.png", i)
    assert inspect_data(tmp_path / "Retina_OCT2017_AD").patients == {"test": 2}


def test_a_damaged_index_of_patients(tmp_path: Path) -> None:
    root = write_domain(tmp_path / "Knee_AD")
    (root / "index.csv").write_bytes(b"file,patient\n\xff,1")
    report = inspect_data(root)
    assert kinds(report) == {"layout": 1}
    assert report.images["pool"] == {"normal": 2, "abnormal": 2}


def test_a_folder_of_data_sets(tmp_path: Path) -> None:
    for name in ("Zebra_AD", "Liver_AD", "Brain"):
        write_domain(tmp_path / name)
    (tmp_path / "Chest_AD").mkdir()
    (tmp_path / "notes").mkdir()
    reports = inspect_all(tmp_path)
    assert [r.name for r in reports] == ["Brain", "Liver", "Chest", "Zebra"]
    assert [len(r.problems) for r in reports] == [0, 0, 1, 0]
    assert reports[2].layout is None


def test_no_data_set(tmp_path: Path) -> None:
    (report,) = inspect_all(tmp_path)
    assert kinds(report) == {"layout": 1}
    with pytest.raises(InputError, match="no such"):
        inspect_all(tmp_path / "none")


def test_sixteen_bit_images_are_read(tmp_path: Path) -> None:
    path = tmp_path / "normal/deep.png"
    path.parent.mkdir()
    PillowImage.fromarray(np.full((4, 4), 40_000, np.uint16)).save(path)
    assert inspect_data(tmp_path).problems == []


def test_areas_of_grey_in_a_mask_are_told(tmp_path: Path) -> None:
    root = write_domain(tmp_path / "Knee_AD")
    mask = root / "test/Ungood/anomaly_mask/a.png"
    drawn = np.zeros((6, 8), np.uint8)
    drawn[:, :2], drawn[1:5, 4:] = 255, 100
    PillowImage.fromarray(drawn).save(mask)
    (problem,) = inspect_data(root).problems
    assert (problem.kind, problem.path) == ("grey in mask", str(mask))
    assert problem.reason.startswith("areas of 39% of full brightness count as healthy")


def test_swapped_images_and_masks_are_told(tmp_path: Path) -> None:
    picture = np.linspace(0, 255, 48).reshape(6, 8).astype(np.uint8)
    for name, drawn in (("right", picture), ("swapped", np.where(picture > 127, 255, 0))):
        for folder, pixels in (("abnormal", drawn), ("masks", 255 * (picture > 200))):
            path = tmp_path / name / folder / "a.png"
            path.parent.mkdir(parents=True)
            PillowImage.fromarray(pixels.astype(np.uint8)).save(path)
    assert inspect_data(tmp_path / "right").problems == []
    (problem,) = inspect_data(tmp_path / "swapped").problems
    assert problem.path == str(tmp_path / "swapped/abnormal/a.png")
    assert problem.reason.endswith("Are images and masks swapped?")
