"""Who may ask, and how much: tokens, the cookies that viewers get for them, and limits.

Other pages' browsers may not ask at all, and every answer has headers by which browsers run our own
scripts only, embed nothing, and keep no data.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap.service.settings import ServerSettings, is_loopback

COOKIE = "recap_session"
SESSION_SECONDS = 12 * 3600
WRONG_TOKENS_PER_MINUTE = 20
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MOST_CLIENTS = 4096
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "font-src 'self'",
        "worker-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Rate:
    """So many calls a minute for each client; half a minute's worth may come at once."""

    def __init__(self, per_minute: int) -> None:
        self._per_second = per_minute / 60
        self._most = max(1.0, per_minute / 2)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._guard = threading.Lock()

    def wait_seconds(self, client: str, now: float | None = None) -> float:
        """Count one call; 0 if it may go on, else when to come back."""
        now = time.monotonic() if now is None else now
        with self._guard:
            left, then = self._left.pop(client, (self._most, now))
            left = min(self._most, left + (now - then) * self._per_second)
            self._left[client] = (max(left - 1, 0) if left >= 1 else left, now)
            # The clients that were away the longest are forgotten: they have all calls left.
            while len(self._left) > MOST_CLIENTS:
                self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._per_second


class Places:
    """A number of places; whoever finds none comes back later rather than waiting in line."""

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Hold a place; false if there is none."""
        held = self._free.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                self._free.release()


class Gate:
    """Checks tokens and sessions. Without a token everybody on this machine may pass."""

    def __init__(self, settings: ServerSettings) -> None:
        self.needs_token = settings.token is not None
        self._digest = _digest((settings.token or "").encode())
        # Sessions outlive a restart, and end when the token is changed.
        self._key = _digest(b"session:" + self._digest)
        self._loopback = settings.is_loopback
        self._hosts = {settings.host, *settings.public_hosts}
        self._wrong = Rate(WRONG_TOKENS_PER_MINUTE)

    def is_token(self, given: str) -> bool:
        """Compare a token with the right one; the time that it takes tells nothing about it."""
        return hmac.compare_digest(_digest(given.encode("utf-8", "replace")), self._digest)

    def new_session(self) -> str:
        """Make a cookie's value: random, dated and signed."""
        content = f"{secrets.token_hex(16)}.{int(time.time()) + SESSION_SECONDS}"
        return f"{content}.{self._sign(content)}"

    def is_session(self, cookie: str) -> bool:
        """Tell if a cookie was given out here and is still good."""
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(content).encode()):
            return False
        return int(content.rpartition(".")[2]) > time.time()

    def admits(self, request: Request) -> bool:
        """Tell if a request carries the token or a session; a wrong token is counted."""
        if not self.needs_token:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self.is_token(given.strip()):
                return True
            self.count_wrong(request)
            return False
        return self.is_session(request.cookies.get(COOKIE, ""))

    def check(self, request: Request) -> None:
        """Refuse a request that may not see data."""
        if self.admits(request):
            return
        raise HTTPException(
            401, "Send the token: Authorization: Bearer TOKEN.", {"WWW-Authenticate": "Bearer"}
        )

    def count_wrong(self, request: Request) -> None:
        """Slow down whoever guesses tokens.

        The right one is taken all the same: behind a proxy all clients have one address, and none
        of them may lock the others out.
        """
        wait = self._wrong.wait_seconds(client_of(request))
        if wait:
            seconds = str(int(wait) + 1)
            raise HTTPException(429, "Too many wrong tokens.", {"Retry-After": seconds})

    def check_origin(self, request: Request) -> None:
        """Refuse what another site's page makes a browser send.

        A name that was made to point at this machine is refused by its Host; a form of another
        page by its Origin.
        """
        host = request.headers.get("host", "")
        if self._loopback and not self._is_own(host):
            raise HTTPException(421, "This service answers to this machine's own names only.")
        if request.method in _SAFE_METHODS:
            return
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "same-origin")
        # Origins are compared as they are written: browsers write them in one way only.
        foreign = origin is not None and origin.partition("://")[2] != host
        if foreign or site not in ("same-origin", "none"):
            raise HTTPException(403, "Another site's page may not send this.")

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name in self._hosts

    def _sign(self, content: str) -> str:
        return hmac.new(self._key, content.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def client_of(request: Request) -> str:
    """Name the client whose calls are counted."""
    return request.client.host if request.client else ""


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


class SecurityHeaders:
    """Adds the headers to whatever is answered, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)
