"""The web application: all routes, what stands before them, and how it is served.

uvicorn waits without end for the head of a request. Whoever reaches the port, token or not, could
open as many connections as there may be, say nothing, and keep everybody else out: a `Connection`
ends when nothing is asked on it. What is logged are ids, routes and times; no file names and no
patients.
"""

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from anyio import to_thread
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from recap.errors import HTTP_STATUSES, RecapError, SettingsError, code_of, log_failure
from recap.service import routes, site
from recap.service.answers import API, own_pages_only, signed_in
from recap.service.auth import SecurityHeaders
from recap.service.metrics import Metrics
from recap.service.service import Service, build_service
from recap.service.settings import ServerSettings

HEAD_SECONDS = 30.0
"""The time for the head of a request; the body is read by those who know how long it is."""
_GRACE_SECONDS = 10
_MOST_CONNECTIONS = 1000
_CLOSED = 499
"""The client went away before its answer."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_log = logging.getLogger("recap.service")


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
    _log.info("Loading detectors for %s", address)
    _Server(config, app.state.stopping, address).run([listener])


def create_app(settings: ServerSettings) -> FastAPI:
    """Build the application. It holds the data folder from now on, and works while it is served."""
    from recap import __version__

    service = build_service(settings)
    app = FastAPI(
        title="recap",
        version=__version__,
        description="Scores medical images for anomalies. Research use only.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=_lifespan,
        dependencies=[Depends(own_pages_only)],
    )
    app.state.service = service
    app.state.stopping = threading.Event()
    app.state.static = site.static_files()
    _include_routes(app)
    app.add_exception_handler(RecapError, _refused)
    app.add_middleware(Observed, metrics=service.metrics)
    app.add_middleware(SecurityHeaders)
    return app


def _include_routes(app: FastAPI) -> None:
    private = [Depends(signed_in)]
    for router in (routes.jobs, routes.results, routes.bundles):
        app.include_router(router, dependencies=private)
    app.include_router(site.sessions)
    for prefix in ("", API):
        shown = prefix == API
        app.include_router(site.health, prefix=prefix, include_in_schema=shown)
        app.include_router(
            site.measures, prefix=prefix, include_in_schema=shown, dependencies=private
        )
    app.include_router(site.site)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    # Uploads that wait for an inspector hold a thread each; all others keep theirs.
    to_thread.current_default_thread_limiter().total_tokens += service.settings.uploads_at_once
    await run_in_threadpool(service.start)
    try:
        yield
    finally:
        app.state.stopping.set()
        await run_in_threadpool(service.stop)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    code = code_of(error)
    return JSONResponse({"detail": str(error), "code": code}, HTTP_STATUSES[code])


class Observed:
    """Counts and logs every request by its route; an unexpected error becomes a plain 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except ClientDisconnect:
            status = status or _CLOSED
        except Exception as error:
            log_failure(_log, error, f"{scope['method']} {_route(scope)}")
            if not status:
                answer = JSONResponse({"detail": "The service made a mistake."}, 500)
                await answer(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - started
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            self._metrics.request(method, _route(scope), status, seconds)
            _log.info("%s %s %d %.0f ms", method, _route(scope), status, 1000 * seconds)


def _route(scope: Scope) -> str:
    """Find the pattern of an address, because addresses may hold names."""
    return str(getattr(scope.get("route"), "path", "other"))


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
            _log.info("Ready: open %s in a browser", self._address)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Come to a good end, and do not die of the signal after it."""
        self._told.set()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


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


class Connection(H11Protocol):
    """A connection on which a whole head must come in time, the first one and each after it."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(HEAD_SECONDS, self._close_idle)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()

    def _close_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
