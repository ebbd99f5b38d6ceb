"""`recap serve` refuses what it cannot or should not serve."""

import asyncio
import socket

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")


def test_others_are_not_served_without_a_token(command, bundle, tmp_path):
    result = command("serve", bundle, "--host", "0.0.0.0", "--data", tmp_path / "data")
    assert result.code == 2
    assert "--token-file" in result.err
    assert not (tmp_path / "data").exists()


def test_a_short_token_is_refused(command, bundle, tmp_path):
    (tmp_path / "token").write_text("secret")
    result = command("serve", bundle, "--token-file", tmp_path / "token")
    assert result.code == 2
    assert "at least 16" in result.err


def test_a_folder_that_is_no_bundle_is_refused(command, tmp_path):
    result = command("serve", tmp_path, "--data", tmp_path / "data", "--port", "0")
    assert result.code == 2
    assert "not a recap bundle" in result.err


def test_a_port_that_is_taken_is_told(command, bundle, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = command("serve", bundle, "--data", tmp_path / "data", "--port", port)
    assert result.code == 2
    assert "Choose another" in result.err


@pytest.mark.parametrize("started", [True, False])
def test_the_address_is_named_again_once_it_answers(started, monkeypatch, caplog):
    import uvicorn

    from recap.service.app import _Server

    async def start(self, sockets=None):
        self.started = started

    monkeypatch.setattr(uvicorn.Server, "startup", start)
    server = _Server(uvicorn.Config(lambda: None), None, "http://127.0.0.1:8000")
    with caplog.at_level("INFO"):
        asyncio.run(server.startup())
    assert ("Ready: open http://127.0.0.1:8000 in a browser" in caplog.text) == started
