"""Errors that a user can act on, and the one table of their codes.

A message says what was wrong, the value seen, and what to do. Programs go by the fields: the code,
the path, the remedy. What a code means to a shell, to an HTTP client and to a row of a table is
looked up here and nowhere else. Beside them: words of messages, and what logs say of errors that
nobody expected.
"""

import errno
import logging
import traceback
from collections.abc import Sequence
from importlib import import_module
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, ClassVar, Literal, get_args

Code = Literal[
    "failed",  # for a reason of its own
    "input",  # a file, folder or array cannot be used
    "empty",  # there is nothing to work on
    "unsupported",  # a kind of file that nobody reads
    "too_large",  # more than is read
    "settings",  # a setting or option is unknown or impossible
    "weights",  # weights are damaged, or not the ones expected
    "no_weights",  # weights are not here
    "bundle",  # a saved detector is incomplete or does not fit
    "training",  # training cannot go on
    "database",  # the service's database is damaged, or not that of its folders
    "extra",  # an optional package is not installed
    "download",  # what was fetched is not what it should be, or cannot be fetched
    "archive",  # an archive of images does not take or give what it should
    "in_use",  # another process holds it
    "no_room",  # a disk or a quota is full
    "no_memory",  # it takes more memory than there is
    "defect",  # an error that nobody raised on purpose
]
CODES: tuple[Code, ...] = get_args(Code)
SHOWN = 5
"""Names of a long list that a message shows."""
_LOGGED_FRAMES = 6

EXIT_CODES: dict[Code, int] = dict.fromkeys(CODES, 2) | {
    # The same command may do better later, without a change to it.
    **dict.fromkeys(("in_use", "no_room", "no_memory", "download", "archive"), 3),
    "defect": 1,
}
"""How a command ends when an error stops it; rows that failed alone are 1."""

HTTP_STATUSES: dict[Code, int] = dict.fromkeys(CODES, 422) | {
    "unsupported": 415,
    "too_large": 413,
    "no_memory": 413,
    "no_room": 507,
    "in_use": 409,
    "extra": 501,
    "defect": 500,
}
"""What the service answers when an error stops a request."""


class RecapError(Exception):
    """Base of all errors raised on purpose; the command prints them without a traceback.

    Args:
        message: What was wrong, with the value seen, and what to do unless that is the remedy.
        code: The kind of error; by default that of the class.
        path: The file or folder that it is about.
        remedy: What to do; stands behind the message.

    >>> error = InputError("scan.png: the file is empty.", path="scan.png", remedy="Copy it again.")
    >>> str(error), error.code, error.path
    ('scan.png: the file is empty. Copy it again.', 'input', 'scan.png')
    """

    _code: ClassVar[Code] = "failed"

    def __init_subclass__(cls, code: Code | None = None) -> None:
        """Give a class the code of its errors: `class NoRoomError(RecapError, code="no_room")`."""
        if code is not None:
            cls._code = code

    def __init__(
        self,
        message: str = "",
        *,
        code: Code | None = None,
        path: str | PathLike[str] | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message)
        self.code: Code = code or self._code
        self.path = "" if path is None else fspath(path)
        self.remedy = remedy

    def __str__(self) -> str:
        return " ".join(part for part in (*self.args, self.remedy) if part)

    @property
    def reason(self) -> str:
        """The message without the path at its start, for a place that shows the path already."""
        return str(self).removeprefix(f"{self.path}: ") if self.path else str(self)


class InputError(RecapError, code="input"):
    """A file, folder or array given by the user cannot be used."""


class SettingsError(RecapError, code="settings"):
    """A setting is unknown or has an impossible value."""


class WeightsError(RecapError, code="weights"):
    """The weights of an encoder are missing, damaged or not the ones expected."""


class BundleError(RecapError, code="bundle"):
    """A saved detector is incomplete or does not fit this installation."""


class TrainingError(RecapError, code="training"):
    """Training cannot go on."""


class OtherFitError(TrainingError):
    """A folder for unfinished work holds that of another fit."""


def code_of(error: BaseException) -> Code:
    """Tell the kind of any error; a full disk counts as one whatever was made of it on the way."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return "no_room"
        cause = cause.__cause__
    match error:
        case RecapError():
            return error.code
        case MemoryError():
            return "no_memory"
        case OSError():
            return "input"
    return "defect"


def is_full(error: BaseException) -> bool:
    """Tell whether an error, or one that it comes from, is a disk or a quota without room."""
    return code_of(error) == "no_room"


def require(module: str, extra: str) -> Any:
    """Import an optional module, or say which extra of recap-ad brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise RecapError(
            f"This needs the Python package '{module.split('.')[0]}', which is not installed.",
            code="extra",
            remedy=f"Install it with: pip install 'recap-ad[{extra}]'",
        ) from error


def log_failure(log: logging.Logger, error: BaseException, what: str) -> None:
    """Log an error's kind and where it rose. Its text may name a patient."""
    frames = traceback.extract_tb(error.__traceback__)[-_LOGGED_FRAMES:]
    places = " < ".join(f"{PurePath(f.filename).name}:{f.lineno}" for f in reversed(frames))
    log.error("%s failed: %s at %s", what, type(error).__name__, places)


def counted(number: int, thing: str) -> str:
    """Let a word agree with its number.

    >>> counted(1, "image"), counted(2, "image")
    ('1 image', '2 images')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def some(names: Sequence[str]) -> str:
    """Name the first of many, and say how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
