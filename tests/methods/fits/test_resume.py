"""A fit that was killed goes on where it stopped and ends as if nothing had happened."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import recap
from recap.data.support import gather_support
from recap.errors import InputError, TrainingError
from recap.methods import features
from recap.methods import training as training_module
from recap.methods.recap.head import ReCAP
from recap.methods.recap.losses import Objective
from recap.scoring.fit import fit_sources, fit_support


def killer(at_stage, at):
    def progress(stage, done, total, detail):
        if (stage, done) == (at_stage, at):
            raise KeyboardInterrupt

    return progress


@pytest.fixture
def careful(monkeypatch):
    """Mark every image and every step."""
    monkeypatch.setattr(features, "ENCODE_AT_ONCE", 1)
    monkeypatch.setattr(training_module, "SAVE_EVERY_S", -1.0)


@pytest.mark.usefixtures("careful")
@pytest.mark.parametrize(
    ("preset", "stage", "at"),
    [("fast", "encode", 0), ("fast", "encode", 3), ("fast", "train", 0), ("paper", "encode", 3)],
)
def test_killed_while_encoding(
    preset, stage, at, arrays, tiny_settings, bytes_of, tmp_path, count_calls
):
    settings, work = tiny_settings(preset), tmp_path / "work"
    whole = bytes_of(recap.fit(**arrays, settings=settings))
    with pytest.raises(KeyboardInterrupt):
        recap.fit(**arrays, settings=settings, work_dir=work, progress=killer(stage, at))
    encoded = count_calls(ReCAP, "encode")
    resumed = recap.fit(**arrays, settings=settings, work_dir=work)
    left = 0 if stage == "train" else 5 - at
    assert len(encoded) == left + 1  # and one to learn the shape of the tokens
    assert bytes_of(resumed) == whole


@pytest.mark.usefixtures("careful")
@pytest.mark.parametrize(
    ("preset", "masks", "stage", "at", "left"),
    [
        ("fast", True, "train", 2, 2),
        ("fast", False, "train", 2, 2),
        ("paper", True, "train", 2, 14),  # in the midst of the first epoch of five steps
        ("paper", True, "train", 9, 7),
        ("recap", True, "train", 2, 2),
        ("recap", False, "train", 2, 2 + 3),  # and three of the branch for maps
        ("recap", False, "train_maps", 2, 2),
    ],
)
def test_killed_while_training(
    preset, masks, stage, at, left, arrays, tiny_settings, bytes_of, tmp_path, count_calls
):
    """Without masks the segmentation branch has no optimiser state, which must not matter."""
    settings, work = tiny_settings(preset, training={"epochs": 3}), tmp_path / "work"
    if not masks:
        del arrays["masks"]
    whole = bytes_of(recap.fit(**arrays, settings=settings))
    with pytest.raises(KeyboardInterrupt):
        recap.fit(**arrays, settings=settings, work_dir=work, progress=killer(stage, at))
    steps = count_calls(Objective, "__call__")
    resumed = recap.fit(**arrays, settings=settings, work_dir=work)
    assert len(steps) == left  # the kill came before that step was saved
    assert bytes_of(resumed) == whole


@pytest.mark.usefixtures("careful")
def test_killed_twice_and_in_the_last_epoch(arrays, tiny_settings, bytes_of, tmp_path):
    settings, work = tiny_settings(training={"epochs": 4}), tmp_path / "work"
    whole = bytes_of(recap.fit(**arrays, settings=settings))
    for at in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            recap.fit(**arrays, settings=settings, work_dir=work, progress=killer("train", at))
    assert bytes_of(recap.fit(**arrays, settings=settings, work_dir=work)) == whole


def test_a_finished_fit_is_not_repeated(arrays, tiny_settings, bytes_of, tmp_path, count_calls):
    settings, work = tiny_settings(), tmp_path / "work"
    support = gather_support(**arrays)
    first = bytes_of(fit_support(support, settings, work_dir=work))
    steps = count_calls(Objective, "__call__")
    assert bytes_of(fit_support(support, settings, work_dir=work)) == first
    assert steps == []
    assert bytes_of(recap.fit(**arrays, settings=settings, work_dir=work)) == first
    assert not work.exists()  # the call that gives the detector away leaves nothing behind


def test_a_folder_with_other_files_is_not_taken_for_unfinished_work(
    arrays, tiny_settings, tmp_path
):
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match=r"holds other files .*unfinished"):
        recap.fit(**arrays, settings=tiny_settings(), work_dir=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "precious"


@pytest.mark.usefixtures("careful")
def test_zero_shot_goes_on_as_well(phantoms, tiny_settings, bytes_of, tmp_path, count_calls):
    settings, work = tiny_settings(training={"epochs": 3}), tmp_path / "work"
    whole = bytes_of(fit_sources(phantoms[:2], settings))
    for stage, at in (("encode", 5), ("train", 2)):
        with pytest.raises(KeyboardInterrupt):
            fit_sources(phantoms[:2], settings, work_dir=work, progress=killer(stage, at))
    steps = count_calls(Objective, "__call__")
    assert bytes_of(fit_sources(phantoms[:2], settings, work_dir=work)) == whole
    assert len(steps) == 2


@pytest.fixture
def unfinished(arrays, tiny_settings, tmp_path, careful):
    """The folder of a fit that was killed after two of four epochs, and how to go on."""
    settings, work = tiny_settings(training={"epochs": 4}), tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        recap.fit(**arrays, settings=settings, work_dir=work, progress=killer("train", 3))
    return work, lambda **change: recap.fit(
        **{**arrays, "settings": settings, "work_dir": work, **change}
    )


def test_other_settings_are_refused_with_the_remedy(unfinished, tiny_settings):
    work, go_on = unfinished
    before = (work / "checkpoint.safetensors").read_bytes()
    with pytest.raises(
        TrainingError, match=r"other images or settings.*--restart, or delete this folder"
    ):
        go_on(settings=tiny_settings(training={"epochs": 9}))
    assert (work / "checkpoint.safetensors").read_bytes() == before
    assert go_on().card.mode == "few-shot"


def test_a_fit_goes_on_without_keeping_tokens(unfinished, arrays, tiny_settings):
    """The remedy for a full disk."""
    _, go_on = unfinished
    kept_none = {"epochs": 4, "cache_gb": 0.0}
    resumed = go_on(settings=tiny_settings(training=kept_none))
    whole = recap.fit(**arrays, settings=tiny_settings(training={"epochs": 4}))
    assert resumed.card.losses == whole.card.losses


def test_other_images_are_refused(unfinished, arrays):
    work, go_on = unfinished
    with pytest.raises(TrainingError, match=str(work)):
        go_on(normal=[*arrays["normal"][:2], arrays["normal"][2] * 0.5])


def test_a_full_disk_is_named_with_the_remedy(unfinished, monkeypatch):
    """Played at the last moment before the name is taken."""
    _, go_on = unfinished

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(
        InputError, match=r"Cannot write .*checkpoint\.safetensors: the disk is full"
    ):
        go_on()


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def garble(path):
    path.write_bytes(b"not a safetensors file" * 50)


def drop_notes(path):
    save_file(load_file(path), path)


def change_tensors(path, change):
    """All else stays as it is: what is found wrong is the tensors."""
    with safe_open(path, "pt") as file:
        notes = file.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata=notes)


def drop_a_tensor(path):
    change_tensors(path, lambda tensors: tensors.pop("model/1.theta"))


def reshape_a_tensor(path):
    change_tensors(path, lambda tensors: tensors.update({"model/1.theta": torch.zeros(2)}))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (truncate, ""),
        (empty, ""),
        (garble, ""),
        (drop_notes, "'place'"),
        (drop_a_tensor, "'model/1.theta'"),
        (reshape_a_tensor, "size"),
    ],
)
def test_a_damaged_checkpoint_is_named_with_the_remedy(damage, found, unfinished):
    work, go_on = unfinished
    damage(work / "checkpoint.safetensors")
    message = rf"checkpoint\.safetensors is damaged \(.*{found}.*--restart"
    with pytest.raises(TrainingError, match=message):
        go_on()


def test_a_half_written_checkpoint_is_ignored(unfinished, arrays, tiny_settings, bytes_of):
    work, go_on = unfinished
    (work / ".0123456789abcdef.partial").write_bytes(b"half")
    whole = recap.fit(**arrays, settings=tiny_settings(training={"epochs": 4}))
    assert bytes_of(go_on()) == bytes_of(whole)
