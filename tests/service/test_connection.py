import asyncio
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("fastapi")

import uvicorn
from fastapi import HTTPException

from recap.service import app as application
from recap.service.app import Connection
from recap.service.settings import ServerSettings
from recap.service.site import _given_token

HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def app(scope, receive, send):
    assert scope["type"] == "http"
    if scope["path"] == "/slow":
        while (await receive())["more_body"]:
            pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@pytest.fixture
def port(monkeypatch):
    """An application on connections that wait a short while."""
    monkeypatch.setattr("recap.service.app.HEAD_SECONDS", 0.5)
    config = uvicorn.Config(app, http=Connection, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(30)


def is_closed(peer):
    peer.settimeout(20)
    return peer.recv(1000) == b""


@pytest.mark.parametrize("said", [b"", b"G", HEAD[:-2]])
def test_who_asks_nothing_is_let_go(port, said):
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(said)
        assert is_closed(peer)


def test_so_is_who_asks_no_further(port):
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(HEAD)
        assert b"204" in peer.recv(1000)
        peer.sendall(HEAD[:5])
        assert is_closed(peer)


def test_a_long_body_takes_as_long_as_it_takes(port):
    def body():
        for _ in range(6):
            time.sleep(0.2)
            yield b"part"

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        assert client.post("/slow", content=body()).status_code == 204
        assert client.get("/").status_code == 204


def test_the_service_has_such_connections(monkeypatch):
    started = []

    def serve(config, *_):
        started.append(config)
        return SimpleNamespace(run=lambda sockets: None)

    app = SimpleNamespace(state=SimpleNamespace(stopping=None))
    monkeypatch.setattr(application, "_Server", serve)
    monkeypatch.setattr(application, "create_app", lambda settings: app)
    application.run_server(ServerSettings(bundles=(), data=Path(), port=0))
    assert [config.http for config in started] == [Connection]


def test_a_token_does_not_take_for_ever():
    async def stream():
        yield b'{"to'
        await asyncio.sleep(30)

    with pytest.raises(HTTPException) as refused:
        asyncio.run(_given_token(SimpleNamespace(stream=stream), seconds=0.1))
    assert refused.value.status_code == 408
