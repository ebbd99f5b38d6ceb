"""Who may ask: a token, or the cookie that a viewer got for it; and no other page's browser."""

import hashlib
import hmac
import secrets
import time
from urllib.parse import urlsplit

from fastapi import HTTPException, Request

from recap.service.limits import Rate
from recap.service.settings import ServerSettings, is_loopback

COOKIE = "recap_session"
SESSION_SECONDS = 12 * 3600
WRONG_TOKENS_PER_MINUTE = 20
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


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
        """Whether a token is the right one; how long that takes tells nothing about it."""
        return hmac.compare_digest(_digest(given.encode("utf-8", "replace")), self._digest)

    def new_session(self) -> str:
        """A cookie's value: random, dated and signed."""
        content = f"{secrets.token_hex(16)}.{int(time.time()) + SESSION_SECONDS}"
        return f"{content}.{self._sign(content)}"

    def is_session(self, cookie: str) -> bool:
        """Whether a cookie was given out here and is still good."""
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(content).encode()):
            return False
        return int(content.rpartition(".")[2]) > time.time()

    def admits(self, request: Request) -> bool:
        """Whether a request carries the token or a session; a wrong token is counted."""
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
    """Whom limits are counted for."""
    return request.client.host if request.client else ""


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
