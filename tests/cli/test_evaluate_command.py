import json
import shutil

import pytest
from PIL import Image as PillowImage

import recap
from recap.scoring.evaluate import evaluate


def test_numbers_on_stdout_and_in_json(command, bundle, domains, tmp_path):
    file = tmp_path / "new" / "result.json"
    result = command("evaluate", bundle, domains[0].root, "--json", file)
    assert result.code == 0
    written = json.loads(file.read_text())
    assert written == evaluate(recap.load(bundle), domains[0])
    lines = {tuple(line.split()[:2]): line.split()[-1] for line in result.out.splitlines()}
    assert len(lines) == len(written["image"]) + len(written["pixel"])
    assert float(lines["image", "auroc"]) == pytest.approx(written["image"]["auroc"], abs=5e-5)
    assert float(lines["pixel", "auroc"]) == pytest.approx(written["pixel"]["auroc"], abs=5e-5)


def test_a_runtime_is_measured_like_torch(command, bundle, domains):
    plain = command("evaluate", bundle, domains[1].root)
    assert command("evaluate", bundle, domains[1].root, "--runtime", "torch").out == plain.out
    missing = command("evaluate", bundle, domains[1].root, "--runtime", "onnx")
    assert missing.code == 2
    assert "recap export" in missing.err


def test_a_domain_without_masks_says_so(command, bundle, domains, tmp_path):
    result = command("evaluate", bundle, domains[1].root, "--json", tmp_path / "r.json")
    assert "no masks" in result.out
    assert json.loads((tmp_path / "r.json").read_text())["pixel"] is None


def test_fitted_on_the_test_split_is_a_warning(command, domains, tiny, tmp_path):
    good = domains[0].root / "test" / "good"
    command("fit", "--normal", good, "--out", tmp_path / "b", *tiny)
    result = command("evaluate", tmp_path / "b", domains[0].root)
    assert result.code == 0
    assert "test images that this detector was fitted on, byte for byte: 2." in result.err


def test_a_folder_that_is_no_domain(command, bundle, tmp_path):
    result = command("evaluate", bundle, tmp_path)
    assert result.code == 2
    assert "Expected" in result.err


def test_excluded_images_are_counted(command, bundle, domains, tmp_path):
    (tmp_path / "list.txt").write_text("Brain_AD/test/good/img/test_000.png\n")
    options = ["--exclude", tmp_path / "list.txt", "--json", tmp_path / "r.json"]
    result = command("evaluate", bundle, domains[0].root, *options)
    assert result.code == 0
    assert "1 of 4 test images excluded" in result.out
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["images"] == {"normal": 1, "abnormal": 2}
    assert (written["excluded"]["images"], written["excluded"]["of"]) == (1, 4)


def test_a_stale_exclusion_list_is_an_error(command, bundle, domains, tmp_path):
    (tmp_path / "list.txt").write_text("Brain_AD/test/good/img/gone.png\n")
    result = command("evaluate", bundle, domains[0].root, "--exclude", tmp_path / "list.txt")
    assert result.code == 2
    assert "gone.png" in result.err


@pytest.mark.parametrize("place", ["", "file/result.json"])
def test_a_json_file_that_cannot_be_written_is_told_before_scoring(
    command, bundle, domains, tmp_path, place, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setattr("recap.scoring.evaluate.measure", lambda *_: pytest.fail("scored"))
    result = command("evaluate", bundle, domains[0].root, "--json", tmp_path / place)
    assert result.code == 2
    assert f"Cannot write {tmp_path / place}" in result.err


def test_numbers_are_printed_even_if_their_file_cannot_be_written(
    command, bundle, domains, tmp_path, monkeypatch
):
    # Full only since it was checked.
    monkeypatch.setattr("recap.cli.evaluate.check_file", lambda path: None)
    result = command("evaluate", bundle, domains[0].root, "--json", tmp_path)
    assert result.code == 2
    assert "image auroc" in result.out


@pytest.mark.parametrize(("folder", "word"), [("good", "normal"), ("Ungood", "abnormal")])
def test_a_test_split_of_one_class_is_refused_before_scoring(
    command, bundle, domains, tmp_path, folder, word, monkeypatch
):
    root = tmp_path / "Brain_AD"
    shutil.copytree(domains[0].root, root)
    shutil.rmtree(root / "test" / folder)
    monkeypatch.setattr("recap.scoring.evaluate.measure", lambda *_: pytest.fail("scored"))
    result = command("evaluate", bundle, root)
    assert result.code == 2
    assert f"{root / 'test' / folder}: no {word} test images" in result.err


def test_masks_that_mark_nothing_are_named_and_cost_no_image_metric(
    command, bundle, domains, tmp_path
):
    root = tmp_path / "Brain_AD"
    shutil.copytree(domains[0].root, root)
    first, second = sorted((root / "test/Ungood/anomaly_mask").iterdir())
    PillowImage.new("L", (70, 70)).save(first)
    some = command("evaluate", bundle, root)
    assert some.code == 0
    assert f"masks that mark nothing: {first}. " in some.err
    assert "pixel auroc" in some.out
    PillowImage.new("L", (70, 70)).save(second)
    none = command("evaluate", bundle, root)
    assert none.code == 0
    assert "image auroc" in none.out
    assert "its masks mark nothing" in none.out
    assert str(second) in none.err


def test_an_exclusion_list_for_other_data_is_a_warning(command, bundle, domains, tmp_path):
    (tmp_path / "list.txt").write_text("foo/bar.png\n")
    result = command("evaluate", bundle, domains[0].root, "--exclude", tmp_path / "list.txt")
    assert result.code == 0
    assert "0 of 4 test images excluded" in result.out
    assert "Warning: list.txt: entries that match no image here: foo/bar.png." in result.err
