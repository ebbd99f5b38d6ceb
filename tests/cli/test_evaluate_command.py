import json

import pytest

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
    assert "2 test images are files that this detector was fitted on" in result.err


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
