"""What the service writes about its work: ids, routes and times; no file names and no patients."""

import logging
import time

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap.failures import log_failure
from recap.service.metrics import Metrics

log = logging.getLogger("recap.service")
_CLOSED = 499
"""The client went away before its answer."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


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
            log_failure(log, error, f"{scope['method']} {_route(scope)}")
            if not status:
                answer = JSONResponse({"detail": "The service made a mistake."}, 500)
                await answer(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - started
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            self._metrics.request(method, _route(scope), status, seconds)
            log.info("%s %s %d %.0f ms", method, _route(scope), status, 1000 * seconds)


def _route(scope: Scope) -> str:
    """The pattern of an address, because addresses may hold names."""
    return str(getattr(scope.get("route"), "path", "other"))
