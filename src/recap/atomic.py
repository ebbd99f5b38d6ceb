"""Files that appear whole or not at all."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from recap.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is whole; makes the folder."""
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise InputError(
            f"Cannot write {path}: {error.strerror}. Choose a folder that you may write to."
        ) from error
    finally:
        # After a good rename it is gone already; a parent that is a file is a NotADirectoryError.
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write bytes, or text as UTF-8."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)
