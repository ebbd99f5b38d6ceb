"""Serving the application until a signal comes."""

import logging
import signal
import socket
import sys
from typing import Any

import uvicorn

from recap.errors import SettingsError
from recap.service.app import create_app
from recap.service.connection import Connection
from recap.service.settings import ServerSettings

_GRACE_SECONDS = 10
_MOST_CONNECTIONS = 1000


class _Server(uvicorn.Server):
    """Says when it can be used, and tells the application at once that it is being stopped."""

    def __init__(self, config: uvicorn.Config, stopping: Any, address: str) -> None:
        super().__init__(config)
        self._told = stopping
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Loading detectors takes a while, and until then the address answers nobody."""
        await super().startup(sockets)
        if self.started:
            logging.getLogger("recap.service").info("Ready: open %s in a browser", self._address)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Come to a good end, and do not die of the signal after it."""
        self._told.set()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def run_server(settings: ServerSettings) -> None:
    """Serve until Ctrl-C or SIGTERM; jobs that are not finished go on after the next start."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    listener = _listen(settings)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        access_log=False,  # addresses may hold names; the application logs routes
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    logging.getLogger("recap.service").info("Loading detectors for %s", address)
    _Server(config, app.state.stopping, address).run([listener])


def _listen(settings: ServerSettings) -> socket.socket:
    """Take the port before any work is done."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"Cannot listen on {settings.host}:{settings.port} ({error.strerror}). Choose another "
            "--host or --port."
        ) from error
    return listener
