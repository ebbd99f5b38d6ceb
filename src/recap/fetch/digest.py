"""What was fetched must be what was expected."""

import hashlib
from pathlib import Path

from recap.errors import InputError


class FetchError(InputError):
    """A file could not be fetched, or is not the one expected."""


def silent(message: str) -> None:
    """A progress callback that says nothing."""


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as hexadecimal digits."""
    return digest_of(path, "sha256")


def digest_of(path: Path, algorithm: str) -> str:
    """The digest of a file by a named algorithm, as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def check_digest(
    path: Path,
    expected: str,
    algorithm: str = "sha256",
    advice: str = "It was not kept: the file was damaged on the way or replaced at its source; "
    "try again.",
) -> None:
    """Refuse a file that has not the digest expected."""
    seen = digest_of(path, algorithm)
    if seen != expected.lower():
        raise FetchError(f"{path.name} has {algorithm} {seen}, expected {expected}. {advice}")
