"""A local server of one file that knows ranges and can misbehave in chosen ways."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Site:
    """What the server serves and how; change it between or during requests."""

    data: bytes
    etag: str | None = '"v1"'
    modified: str | None = None
    knows_ranges: bool = True
    says_length: bool = True
    content_type: str = "application/zip"
    cut_after: int | None = None
    """Bytes of each answer after which the connection is cut."""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Status and headers of the next answers, instead of the file."""
    asked: list[dict[str, str]] = field(default_factory=list)
    """The headers of every request."""
    url: str = ""


@contextmanager
def serve(data: bytes) -> Iterator[Site]:
    """Serve bytes at `site.url` on this machine."""
    site = Site(data)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(dict(self.headers))
            if site.answers:
                status, headers = site.answers.pop(0)
                self._head(status, {"Content-Length": "0", **headers})
            else:
                self._send_file()

        def _send_file(self) -> None:
            start, status = self._start(), 200
            headers = {"Content-Type": site.content_type, "ETag": site.etag}
            headers["Last-Modified"] = site.modified
            if start >= len(site.data) > 0 and start:
                return self._head(416, {"Content-Length": "0"})
            if start:
                status = 206
                end = len(site.data) - 1
                headers["Content-Range"] = f"bytes {start}-{end}/{len(site.data)}"
            body = site.data[start:]
            if site.says_length:
                headers["Content-Length"] = str(len(body))
            self._head(status, headers)
            self.wfile.write(body if site.cut_after is None else body[: site.cut_after])

        def _start(self) -> int:
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            same = self.headers.get("If-Range") in (None, site.etag, site.modified)
            return int(asked[1]) if asked and site.knows_ranges and same else 0

        def _head(self, status: int, headers: dict[str, Any]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if value is not None:
                    self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    site.url = f"http://127.0.0.1:{server.server_address[1]}/data/bmad.zip"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
