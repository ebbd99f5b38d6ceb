"""Files that appear whole or not at all."""

import secrets
from pathlib import Path

from recap.errors import InputError


def write_atomic(path: Path, data: bytes) -> None:
    """Write the bytes under a temporary name beside the target, then rename; makes the folder."""
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            file.write(data)
        partial.replace(path)
    except OSError as error:
        raise InputError(
            f"Cannot write {path}: {error.strerror}. Choose a folder that you may write to."
        ) from error
    finally:
        # After a good rename it is gone already; a parent that is a file is a NotADirectoryError.
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
