"""A connection that ends when its peer stands still, or brings more than it may.

pynetdicom waits without end for the rest of what has begun: half a message of a sender that lost
its power would keep its association open, and its study unscored; an archive that stops reading
would keep all other results from being sent. It also takes a message of any length into memory
before anybody is asked.
"""

import logging
import socket
from typing import Any

_log = logging.getLogger(__name__)


class Connection(socket.socket):
    """The socket of an association; beyond its limits it fails like one that was cut."""

    def __init__(self, opened: socket.socket, silence_s: float, most_bytes: int | None) -> None:
        super().__init__(opened.family, opened.type, opened.proto, opened.detach())
        self.settimeout(silence_s)
        self._most = most_bytes
        self._received = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        """The next bytes of a message."""
        data = super().recv(size, flags)
        self._received += len(data)
        if self._most is not None and self._received > self._most:
            _log.error("a peer was cut off: its image has more bytes than are taken")
            raise OSError("too many bytes")
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        """Answer, by which what was received until now is dealt with."""
        self._received = 0
        return super().send(data, flags)


def limit(event: Any, silence_s: float, most_bytes: int | None = None) -> None:
    """Set limits to an association that is about to begin (a handler of EVT_CONN_OPEN)."""
    held = event.assoc.dul.socket
    held.socket = Connection(held.socket, silence_s, most_bytes)
