"""Bearer tokens, read from files: on a command line, every user of the machine could see them."""

import re
from pathlib import Path

from recap.errors import SettingsError


def read_token(path: Path, shortest: int = 1, remedy: str = "Copy it into the file again.") -> str:
    """The token: the only line of a file. Errors never quote it."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"Cannot read the token file {path}: {error}.") from error
    if len(token) < shortest or not re.fullmatch(r"[!-~]+", token):
        least = f" of at least {shortest}" if shortest > 1 else " of"
        raise SettingsError(
            f"{path}: a token is one line{least} letters, digits or signs, without spaces; this "
            f"file has {len(token)} characters in {len(token.splitlines())} lines. {remedy}"
        )
    return token
