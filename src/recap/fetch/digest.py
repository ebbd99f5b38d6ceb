"""What was fetched must be what was expected."""

import hashlib
from pathlib import Path

from recap.errors import InputError


class FetchError(InputError, code="download"):
    """A file could not be fetched, or is not the one expected."""


def silent(message: str) -> None:
    """A progress callback that says nothing."""


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as hexadecimal digits."""
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
