import json

import pytest

import recap
from recap.config import setting_names
from recap.methods.recap.settings import RecapSettings
from recap.methods.registry import resolve_settings


def test_installation_as_json(command, tiny_folder):
    result = command("info", "--json")
    assert result.code == 0
    facts = json.loads(result.out)
    assert facts["versions"]["recap-ad"] == recap.__version__
    assert {"torch", "python"} <= facts["versions"].keys()
    assert "dinov2-small" in facts["encoders"]
    assert facts["cpu_threads"] >= 1


def test_installation_for_people(command, tiny_folder):
    result = command("info")
    assert result.code == 0
    assert "versions:\n  recap-ad: " in result.out


def test_settings_as_json_are_the_resolved_tree(command):
    default = recap.resolve_settings().model_dump(mode="json")
    assert json.loads(command("info", "--settings", "--json").out) == default
    paper = command("info", "--settings", "--json", "--preset", "paper", "--set", "seed=7")
    expected = recap.resolve_settings("paper", seed=7).model_dump(mode="json")
    assert json.loads(paper.out) == expected


def test_settings_for_people_name_every_setting(command):
    text = command("info", "--settings").out
    for name in setting_names(RecapSettings):
        assert f"{name.rsplit('.', 1)[-1]}: " in text


def test_a_bundle_tells_what_it_is(command, bundle):
    facts = json.loads(command("info", bundle, "--json").out)
    assert facts["mode"] == "normal-only"
    assert len(facts["support"]) == 3
    text = command("info", bundle).out
    assert "mode: normal-only" in text
    assert facts["support"][0]["sha256"] in text


@pytest.mark.parametrize("arguments", [["no.recap"], ["--settings", "--set", "sede=1"]])
def test_mistakes_are_exit_code_2(arguments, command):
    result = command("info", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("recap: error: ")


@pytest.mark.parametrize(
    "option",
    [["--preset", "nope"], ["--set", "a=1"], ["--config", "x.toml"], ["--method", "mvfa"]],
)
def test_options_that_would_be_ignored_are_refused(option, command, bundle):
    alone = command("info", *option)
    assert (alone.code, alone.out) == (2, "")
    assert f"{option[0]} needs --settings" in alone.err
    beside = command("info", bundle, "--settings", *option)
    assert (beside.code, beside.out) == (2, "")
    assert f"--settings, {option[0]} cannot stand beside a detector" in beside.err


def test_presets_that_help_names_are_taken(command):
    text = " ".join(command("info", "--help").out.split())
    for name in ("recap", "fast", "paper"):
        assert name in text
        assert command("info", "--settings", "--preset", name).code == 0
    for name in ("equal", "official"):
        assert name in text
        options = ["--method", "patchcore", "--preset", name]
        assert command("info", "--settings", *options).code == 0


def test_settings_of_another_method(command):
    result = command("info", "--settings", "--json", "--method", "mvfa", "--set", "seed=3")
    assert json.loads(result.out) == resolve_settings(method="mvfa", seed=3).model_dump(mode="json")
    wrong = command("info", "--settings", "--method", "mvfa", "--set", "options.epoch=3")
    assert "`recap info --settings --method mvfa` lists them all" in wrong.err
