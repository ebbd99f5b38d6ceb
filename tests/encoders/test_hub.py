"""The hub's protocol, played by a small server on this machine."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.encoders import _cache as ledger
from recap.encoders import _hub as hub
from recap.encoders.weights import locate, pull
from recap.errors import WeightsError
from recap.progress import silent

COMMIT = "d" * 40


class Hub:
    """Answers like the hub, from a dictionary of files, and remembers what was asked for."""

    def __init__(self):
        self.files, self.stated, self.asked, self.refusal = {}, {}, [], None
        self.failing = {}
        hub_self = self

        class Answers(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                self.answer(body=True)

            def answer(self, body):
                name = self.path.split("?")[0].rsplit("/", 1)[-1]
                hub_self.asked.append((self.path.split("/resolve/")[-1].split("/")[0], name))
                if status := hub_self.failing.get(name):
                    self.send_error(status)
                    return
                data = hub_self.files.get(name)
                refusal = hub_self.refusal or (None if data is not None else "EntryNotFound")
                self.send_response(404 if refusal else 200)
                if refusal:
                    self.send_header("X-Error-Code", refusal)
                data = b"" if refusal else data
                digest = hub_self.stated.get(name, hashlib.sha256(data).hexdigest())
                self.send_header("ETag", f'"{digest}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def served(machine, tmp_path, write_folder, monkeypatch):
    """A hub that offers a tiny encoder (and a pickle that nobody may take)."""
    played = Hub()
    folder = write_folder(tmp_path / "origin")
    played.files = {
        "config.json": (folder / "config.json").read_bytes(),
        "model.safetensors": (folder / "model.safetensors").read_bytes(),
        "preprocessor_config.json": json.dumps({"image_mean": [0.1] * 3}).encode(),
        "pytorch_model.bin": b"\x80\x02",
    }
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", played.address)
    yield played
    played.server.shutdown()
    played.server.server_close()


def test_pull_from_the_hub(served, machine):
    files = pull("lab/other", silent)
    assert files == locate("lab/other")
    assert files.folder == machine / "encoders" / "lab--other"
    assert files.sha256 == hashlib.sha256(served.files["model.safetensors"]).hexdigest()
    assert sorted(path.name for path in files.folder.iterdir()) == [
        "config.json",
        "ledger.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    record = ledger.load_record(files.folder / "ledger.json")
    assert (record.source, record.revision) == ("hub", COMMIT)


def test_only_safe_files_are_asked_for(served):
    pull("lab/other", silent)
    names = {name for _, name in served.asked}
    assert names == {"config.json", "model.safetensors", "preprocessor_config.json"}


def test_named_encoders_are_asked_for_at_their_revision(served, named):
    entry = named()
    pull("tiny", silent)
    assert served.asked[0] == (entry.revision, "model.safetensors")


def test_normalisation_is_optional(served):
    del served.files["preprocessor_config.json"]
    assert pull("lab/other", silent).source == "cache"


def test_a_repository_of_pickles(served, machine):
    del served.files["model.safetensors"]
    with pytest.raises(WeightsError, match=r"lab/other has no model\.safetensors") as caught:
        pull("lab/other", silent)
    assert "AutoModel.from_pretrained('lab/other').save_pretrained" in str(caught.value)
    assert "AutoImageProcessor.from_pretrained('lab/other').save_pretrained" in str(caught.value)
    assert "recap weights add" in str(caught.value)
    assert list((machine / "encoders").iterdir()) == []


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_a_hub_that_fails_is_not_one_without_the_file(file, served, machine):
    """Without its normalisation an encoder would be another one, and nobody told."""
    served.failing[file] = 403  # a 500 is the same, but asked for again for twenty seconds
    with pytest.raises(WeightsError, match=r"hub did not send lab/other: .*403") as caught:
        pull("lab/other", silent)
    assert "pickle" not in str(caught.value)
    assert list((machine / "encoders").iterdir()) == []


def test_a_repository_that_is_not_there(served):
    served.refusal = "RepoNotFound"
    with pytest.raises(WeightsError, match="no model 'lab/other'"):
        pull("lab/other", silent)


def test_a_gated_repository(served):
    served.refusal = "GatedRepo"
    with pytest.raises(WeightsError, match="HF_TOKEN"):
        pull("lab/other", silent)


def test_the_digest_that_the_hub_states_is_checked(served, machine):
    served.stated["model.safetensors"] = "0" * 64
    with pytest.raises(WeightsError, match=f"the hub states {'0' * 64}: it was not kept"):
        pull("lab/other", silent)
    assert list((machine / "encoders").iterdir()) == []


def test_the_pin_is_checked_even_if_the_hub_agrees_with_itself(
    served, named, tmp_path, write_weights
):
    named()
    other = write_weights(tmp_path / "other.safetensors", seed=1)
    served.files["model.safetensors"] = other.read_bytes()
    with pytest.raises(WeightsError, match="The file offered as 'tiny'"):
        pull("tiny", silent)


def test_offline_means_no_connection(served, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE is set"):
        pull("lab/other", silent)
    assert served.asked == []


def test_the_probe_goes_to_the_proxy(served, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    assert "hub.invalid" in hub.why_unreachable()
    monkeypatch.setenv("https_proxy", served.address)
    assert hub.why_unreachable() is None


def test_a_silent_name_server_does_not_hold_us(machine, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "PROBE_TIMEOUT_S", 0.1)
    answered = threading.Event()

    def look_up(*args, **kwargs):
        answered.wait(5)
        raise OSError("too late")

    monkeypatch.setattr(hub.socket, "create_connection", look_up)
    assert "did not answer" in hub.why_unreachable()
    answered.set()


@given(st.from_regex(r"[\w./-]{1,12}", fullmatch=True))
def test_hub_ids_are_those_that_the_library_accepts(name):
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if hub.is_hub_id(name):
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            pytest.fail(f"{name!r}: {error}")


def test_models_with_a_text_tower_bring_their_tokeniser(served):
    config = json.loads(served.files["config.json"])
    served.files["config.json"] = json.dumps({**config, "text_config": {}}).encode()
    served.files |= {"vocab.json": b"{}", "merges.txt": b"#version: 0.2\n"}
    files = pull("lab/other", silent)
    assert (files.folder / "merges.txt").read_bytes() == served.files["merges.txt"]
    assert (files.folder / "vocab.json").is_file()
    assert not (files.folder / "tokenizer.json").exists()
