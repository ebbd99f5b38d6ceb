import json

import pytest
import typer
from typer.testing import CliRunner

import raw_trees
from recap.cli.data import prepare_command
from recap.data import read_domain
from recap.data.prepare.run import NAMES
from recap.errors import InputError, SettingsError
from toy_source import tree

app = typer.Typer(rich_markup_mode=None)
app.command("prepare")(prepare_command)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def raw(tmp_path):
    return raw_trees.oct_tree(tmp_path / "raw")


def test_prepares_and_says_what_there_is(raw, tmp_path):
    result = invoke("oct17", "--from", raw, "--to", tmp_path / "out", "--workers", 0)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "out/Retina_OCT2017_AD"
    assert result.stdout.splitlines() == [
        "test/Ungood: 18",
        "test/good: 6",
        "train/good: 6",
        "valid/Ungood: 18",
        "valid/good: 6",
        str(folder),
    ]
    assert "Preparing: 54/54" in result.stderr
    assert "Note: OCT17: as published, the same patient may be in pool" in result.stderr
    assert len(read_domain(folder).pool()) == 24


def test_a_broken_input_is_exit_code_1_and_a_line(raw, tmp_path):
    broken = raw / "OCT2017/test/DME/DME-10-1.jpeg"
    broken.write_bytes(broken.read_bytes()[:300])
    arguments = ("oct17", "--from", raw, "--to", tmp_path / "out", "--workers", 1)
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "\ntest/DME/DME-10-1.jpeg: OCT2017/test/DME/DME-10-1.jpeg: " in result.stderr
    assert "Missing or broken: 1 input;" in result.stderr
    assert "test/Ungood: 17" in result.stdout
    broken.write_bytes((raw / "OCT2017/test/DME/DME-10-2.jpeg").read_bytes())
    assert invoke(*arguments).exit_code == 0


def test_options_reach_the_manifest(raw, tmp_path):
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "2-shot.txt").write_text("n-0: NORMAL-30-1.jpeg\na-0: CNV-10-2.jpeg")
    common = ("oct17", "--from", raw, "--workers", 1, "--to")
    assert invoke(*common, tmp_path / "a", "--pool-lists", lists, "--limit", 2).exit_code == 0
    folder = tmp_path / "a/Retina_OCT2017_AD"
    options = json.loads((folder / "manifest.json").read_text())["made_by"]["options"]
    assert options == {
        "limit": 2,
        "organ_only": False,
        "masks": False,
        "patient_split": False,
        "pool_abnormal": ["CNV-10-2.jpeg"],
        "pool_normal": ["NORMAL-30-1.jpeg"],
        "train": True,
    }
    assert invoke(*common, tmp_path / "b", "--patient-split", "--no-train").exit_code == 0
    assert not any(name.startswith("train/") for name in tree(tmp_path / "b"))


def test_wrong_uses_are_one_error(raw, tmp_path):
    to = ("--to", tmp_path / "out")
    assert isinstance(invoke("mri", "--from", raw, *to).exception, SettingsError)
    wrong = invoke("chest", "--from", raw, *to).exception
    assert isinstance(wrong, InputError)
    assert "stage_2_train_images/" in str(wrong)
    (tmp_path / "empty").mkdir()
    unlisted = invoke("oct17", "--from", raw, *to, "--pool-lists", tmp_path / "empty")
    assert "no support lists" in str(unlisted.exception)
    assert invoke("oct17", *to).exit_code == 2
    assert not (tmp_path / "out").exists()


def test_help_names_every_source_and_what_it_needs():
    text = invoke("--help").stdout
    assert all(f"\n  {name} " in text for name in NAMES)
    for folder in ("BraTS2021_*_flair.nii.gz", "Edema_validationset/", "stage_2_train_images/"):
        assert folder in text
