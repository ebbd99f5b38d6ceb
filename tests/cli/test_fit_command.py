import os
import shutil

import pytest

import recap
from recap._files import alone
from recap.data import draw_support
from recap.data.supports import write_support
from recap.errors import EXIT_CODES
from recap.methods import training
from recap.methods.recap.losses import Objective
from recap.scoring.bundle import read_card


def files(bundle):
    return {path.name: path.read_bytes() for path in bundle.iterdir()}


def test_fit_on_folders(command, tiny, brain_folders, tmp_path):
    out = tmp_path / "brain.recap"
    result = command("fit", *brain_folders, "--out", out, *tiny)
    assert result.code == 0
    assert "few-shot" in result.out
    assert "Fitted on 3 normal and 3 abnormal images." in result.out
    assert f"recap score {out} NEW_IMAGES --out results" in result.out
    assert "Training: 1/1 loss" in result.err
    card = read_card(out)
    assert card.losses["segmentation"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["brain.recap"]  # no unfinished work


def test_fit_on_normal_images_alone(command, tiny, brain_folders, tmp_path):
    result = command("fit", *brain_folders[:2], "--out", tmp_path / "b", *tiny)
    assert result.code == 0
    assert "lesions made up on those images" in result.out
    assert read_card(tmp_path / "b").mode == "normal-only"


def test_the_command_and_the_python_api_make_the_same_bundle(
    command, tiny, tiny_folder, brain_folders, domains, tmp_path
):
    command("fit", *brain_folders, "--out", tmp_path / "cli", "--seed", 3, *tiny)
    settings = recap.resolve_settings(
        seed=3,
        encoder={"name": str(tiny_folder), "input_px": 70},
        training={"epochs": 1, "augment": False},
    )
    recap.fit(*brain_folders[1::2], settings=settings).save(tmp_path / "api")
    assert files(tmp_path / "cli") == files(tmp_path / "api")


def test_shots_are_drawn_from_the_pool(command, tiny, domains, tmp_path):
    for draw in (0, 1):
        options = ["--dataset", domains[0].root, "--shots", 2, "--draw", draw]
        assert command("fit", *options, "--out", tmp_path / f"{draw}", *tiny).code == 0
        expected = draw_support(domains[0], 2, draw)
        names = [sample.path.name for sample in (*expected.normal, *expected.abnormal)]
        assert [record["name"] for record in read_card(tmp_path / f"{draw}").support] == names


def test_a_support_list_is_the_draw_that_it_lists(command, tiny, domains, tmp_path):
    write_support(draw_support(domains[0], 2), tmp_path / "list.txt")
    root = domains[0].root
    command("fit", "--dataset", root, "--shots", 2, "--out", tmp_path / "a", *tiny)
    list_file = tmp_path / "list.txt"
    command("fit", "--dataset", root, "--support", list_file, "--out", tmp_path / "b", *tiny)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_zero_shot_leaves_the_target_out(command, tiny, domains, tmp_path):
    sources = ["--sources", domains[0].root.parent, "--target", "Brain"]
    assert command("fit", *sources, "--out", tmp_path / "z", *tiny).code == 0
    card = read_card(tmp_path / "z")
    assert card.mode == "zero-shot"
    assert {record["domain"] for record in card.support} == {"Chest"}


def test_settings_from_file_and_command_line(command, tiny, brain_folders, tmp_path):
    config = tmp_path / "s.toml"
    config.write_text('preset = "paper"\nseed = 4\n[memory]\ncoreset = 9\nweight = 0.2\n')
    options = ["--config", config, "--set", "memory.weight=0.3"]
    assert command("fit", *brain_folders, *options, "--out", tmp_path / "b", *tiny).code == 0
    settings = read_card(tmp_path / "b").settings
    assert (settings.preset, settings.seed) == ("paper", 4)
    assert (settings.memory.coreset, settings.memory.weight) == (9, 0.3)
    assert settings.model.write_back


def test_random_weights_need_no_weights(command, tiny, brain_folders, tmp_path, tiny_folder):
    (tmp_path / "encoder").mkdir()
    shutil.copy(tiny_folder / "config.json", tmp_path / "encoder")
    options = [*tiny, "--encoder", tmp_path / "encoder", "--random-weights"]
    assert command("fit", *brain_folders[:2], *options, "--out", tmp_path / "b").code == 0
    assert read_card(tmp_path / "b").encoder.sha256 == "random"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Say what to fit on"),
        (["--abnormal", "somewhere"], "Say what to fit on"),
        (["--normal", "a", "--dataset", "b"], "--normal cannot stand beside --dataset"),
        (["--normal", "a", "--shots", "2"], "--shots cannot stand beside --normal"),
        (["--normal", "a", "--draw", "5"], "--draw cannot stand beside --normal"),
        (["--sources", "r", "--target", "t", "--draw", "0"], "--draw cannot stand beside"),
        (["--sources", "r", "--target", "t", "--shots", "2"], "--shots cannot stand beside"),
        (["--dataset", "b"], "either --shots K or --support FILE"),
        (["--dataset", "b", "--shots", "2", "--support", "f"], "either --shots K or --support"),
        (["--sources", "root"], "both --sources ROOT and --target NAME"),
        (["--target", "Brain"], "both --sources ROOT and --target NAME"),
        (["--normal", "no-such-folder"], "no-such-folder"),
        (["--normal", "a", "--set", "epochs=3"], "Did you mean 'training.epochs'?"),
        (["--normal", "a", "--set", "training.epochs=0"], "training.epochs = 0"),
        (["--normal", "a", "--set", "nonsense"], "section.key=value"),
        (["--normal", "a", "--preset", "turbo"], "Choose from: "),
        (["--normal", "a", "--config", "no.toml"], "no.toml"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(options, message, command, tmp_path):
    result = command("fit", *options, "--out", tmp_path / "b")
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("recap: error: ")
    assert message in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "b").exists()


def test_missing_weights_name_the_remedy(command, brain_folders, tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    result = command("fit", *brain_folders, "--out", tmp_path / "b", "--encoder", "dinov2-base")
    assert result.code == 2
    assert "recap weights" in result.err


def test_wrong_usage_is_exit_code_2(command):
    assert command("fit").code == 2  # no --out
    assert command("fit", "--out", "x", "--nonsense").code == 2
    assert command("nonsense").code == 2


def test_an_existing_bundle_needs_overwrite(command, tiny, brain_folders, tmp_path):
    out = tmp_path / "b"
    fit = ["fit", *brain_folders[:2], "--out", out, *tiny]
    command(*fit)
    before = files(out)
    refused = command(*fit, "--seed", 1)
    assert (refused.code, files(out) == before) == (2, True)
    assert "--overwrite" in refused.err
    assert command(*fit, "--seed", 1, "--overwrite").code == 0
    assert read_card(out).settings.seed == 1


def test_overwrite_spares_what_is_no_bundle(command, tiny, brain_folders, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "recap.scoring.fit.fit_support", lambda *a, **k: pytest.fail("worked in vain")
    )
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").write_bytes(b"dear")
    options = ["--out", tmp_path / "photos", "--overwrite"]
    result = command("fit", *brain_folders, *options, *tiny)
    assert result.code == 2
    assert "not a recap bundle" in result.err
    assert (tmp_path / "photos" / "one.png").read_bytes() == b"dear"


@pytest.mark.parametrize("option", [[], ["--overwrite"]])
def test_a_file_in_the_way_is_called_one(option, command, tiny, brain_folders, tmp_path):
    (tmp_path / "b").write_text("text")
    result = command("fit", *brain_folders[:2], "--out", tmp_path / "b", *tiny, *option)
    assert result.code == 2
    assert "is a file, but a detector is a folder" in result.err
    assert "--overwrite" not in result.err
    assert (tmp_path / "b").read_text() == "text"


@pytest.fixture
def interrupted(command, tiny, brain_folders, tmp_path, monkeypatch):
    """The command of a fit that was stopped by Ctrl-C after two of three steps."""
    monkeypatch.setattr(training, "SAVE_EVERY_S", -1.0)
    fit = ["fit", *brain_folders, "--out", tmp_path / "b", *tiny, "--set", "training.epochs=3"]
    steps, original = [], Objective.__call__

    def stop(*args):
        steps.append(args)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(Objective, "__call__", stop)
    return fit, command(*fit), steps


def test_an_interrupted_fit_goes_on(interrupted, command, tmp_path):
    fit, result, steps = interrupted
    assert result.code == 130
    assert "Run the same command again to go on" in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "b").exists()
    assert command(*fit).code == 0
    assert len(steps) == 4
    whole = [str(tmp_path / "whole") if part == tmp_path / "b" else part for part in fit]
    command(*whole)
    assert files(tmp_path / "b") == files(tmp_path / "whole")
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.skipif(os.name != "posix", reason="needs locks of the system")
@pytest.mark.parametrize("again", [[], ["--restart"]])
def test_a_second_fit_to_the_same_place_is_refused(again, interrupted, command, tmp_path):
    """The first that ends would remove the work of both."""
    fit, _, _ = interrupted
    place = fit[fit.index("--out") + 1]
    work = place.with_name(f"{place.name}.partial")
    with alone(place.with_name(f".{place.name}.partial.lock")):
        refused = command(*fit, *again)
    assert refused.code == EXIT_CODES["in_use"]
    assert f"{place} is being written by another run" in refused.err
    assert (work / "checkpoint.safetensors").is_file()


def test_what_is_assumed_of_the_encoder_is_said(command, tiny, brain_folders, tmp_path):
    result = command("fit", *brain_folders[:2], "--out", tmp_path / "b", *tiny)
    assert "no preprocessor_config.json says how pixels are normalised" in result.out


def test_other_settings_meet_unfinished_work(interrupted, command, tmp_path):
    fit, _, steps = interrupted
    refused = command(*fit, "--seed", 8)
    assert refused.code == 2
    assert "--restart" in refused.err
    assert command(*fit, "--seed", 8, "--restart").code == 0
    assert len(steps) == 6


def test_a_detector_may_be_replaced_by_a_link_to_it_or_from_within(
    command, tiny, brain_folders, tmp_path, monkeypatch
):
    out, link = tmp_path / "b.recap", tmp_path / "links" / "b"
    link.parent.mkdir()
    link.symlink_to(out)
    fit = ["fit", *brain_folders[:2], *tiny]
    assert command(*fit, "--out", out).code == 0
    assert command(*fit, "--out", link, "--overwrite").code == 0
    assert link.is_symlink()
    monkeypatch.chdir(out)
    assert command(*fit, "--out", ".", "--overwrite").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"b.recap", "links"}
    assert read_card(out).mode == "normal-only"


@pytest.mark.parametrize("method", ["recap", "patchcore"])
def test_an_unknown_window_is_told_before_the_work(command, tiny, tmp_path, method):
    options = ["--method", method, "--set", "reading.window=lungs", "--out", tmp_path / "b"]
    result = command("fit", "--normal", tmp_path / "not-there", *options)
    assert result.code == 2
    assert "reading.window = 'lungs' is not a window" in result.err
