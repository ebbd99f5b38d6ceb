"""What a reader says when a file cannot be opened or is damaged: always one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recap.errors import InputError, RecapError

_LONGEST_REASON = 200


def not_there(path: Path, thing: str = "file") -> str:
    """Why a thing that was listed or named is not found."""
    if path.is_symlink():
        return (
            f"this is a link that leads nowhere, to {path.readlink()}. Bring that {thing} back, or "
            "remove the link."
        )
    return f"there is no such {thing}."


@contextmanager
def one_line_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever parsers and decoders say about a file of this kind into one `InputError`."""
    try:
        yield
    except RecapError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: {not_there(path)}", path=path) from error
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read this file.", path=path) from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: this is a folder, not a {kind}.", path=path) from error
    except MemoryError as error:
        raise InputError(
            f"{path}: this {kind} takes more memory than there is.",
            code="no_memory",
            path=path,
            remedy="Close other programs or crop it.",
        ) from error
    # A damaged file is answered with almost any exception.
    except Exception as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
        raise InputError(
            f"{path}: the {kind} cannot be read ({reason}).",
            path=path,
            remedy="Copy or export it again.",
        ) from error
