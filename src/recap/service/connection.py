"""HTTP connections that end when nothing is asked on them.

uvicorn waits without end for the head of a request. Whoever reaches the port, token or not, could
open as many connections as there may be, say nothing, and keep everybody else out.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0
"""How long the head of a request may take; the body is read by those who know how long it is."""


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
