"""Names of ours for files of clients, and numbers for the cases that they make up.

What a client calls a file is shown, and never used.
"""

import re
from itertools import count
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from recap.data.cases import Found, find_cases
from recap.errors import Code
from recap.io.formats import FORMATS, known_suffixes
from recap.service.jobs import Job

_HALVES = (".hdr", ".img", ".hdr.gz", ".img.gz")
_LINKS = {suffix for row in FORMATS for suffix in row.links}
_LONGEST_NAME = 200


class Placer:
    """Hands out names: numbers in the order of arrival, with a known ending or none.

    The two halves of a NIfTI pair keep a common number, because readers look for them so.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """The client's name of each file, by its name here."""
        self._numbers: dict[str, int] = {}
        self._next = 0

    def place(self, given: str) -> str:
        """Name a file that the client calls `given`."""
        shown = shown_name(given)
        stem, suffix = split_suffix(shown)
        # No other files share numbers, or they would stand before those that came between.
        number = self._numbers.get(stem, self._next) if suffix in _HALVES else self._next
        name = f"{number:06d}{suffix}"
        if number == self._next or name in self.names:
            number, self._next = self._next, self._next + 1
            name = f"{number:06d}{suffix}"
        if suffix in _HALVES:
            self._numbers[stem] = number
        self.names[name] = shown
        return name


def split_suffix(name: str) -> tuple[str, str]:
    """Split a name from its known ending, which comes in small letters."""
    # Not those of slides in many files (.mrxs, .vms): their main file names the others, and could
    # name any file of this machine.
    known = (s for s in known_suffixes() if s not in _LINKS and name.lower().endswith(s))
    ending = next(known, "")
    return name[: len(name) - len(ending)], ending


def shown_name(given: str) -> str:
    """Clean a client's name: one printable line, without the folders above it."""
    parts = PurePosixPath(given.replace("\\", "/")).parts
    kept = "/".join(part for part in parts if part not in ("/", "..", "."))
    printable = "".join(sign if sign.isprintable() else "_" for sign in kept)
    clean = printable.encode("utf-8", "replace").decode("utf-8")
    return clean[-_LONGEST_NAME:] or "file"


def case_name(found: Found, names: dict[str, str], number: int, deidentify: bool) -> str:
    """Name a case as answers do."""
    if deidentify:
        return f"case-{number + 1}"
    given = names.get(found.files[0].name, found.name)
    if found.series is None:
        return given
    folder = str(PurePosixPath(given).parent)
    name = PurePosixPath(found.name).name
    return name if folder == "." else f"{folder}/{name}"


def in_client_words(text: str, folder: Path, names: dict[str, str], hide: bool = False) -> str:
    """Reword a message about files, with the client's names for them and no folder of ours."""
    text = text.replace(f"{folder}/", "").replace(str(folder), "upload")
    if hide:
        return text
    if not names:
        return text
    # The longest first, because a name may be the start of another; all at once, because what a
    # client calls one file may be the name of another here.
    ours = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"(?<![\w.-])(?:{ours})", lambda found: names[found[0]], text)


class Unread(NamedTuple):
    """A case that could not be read when it was uploaded, and why."""

    name: str
    error: str
    number: int
    code: Code = "input"


def job_cases(job: Job, upload: Path) -> dict[int, Found]:
    """Number the cases of a job's files, the same every time."""
    taken = {each.number for each in unread_cases(job)}
    free = (number for number in count() if number not in taken)
    return dict(zip(free, find_cases([upload], upload).cases, strict=False))


def unread_cases(job: Job) -> list[Unread]:
    """List the cases of a job's upload that could not be read."""
    return [Unread(*each) for each in job.options.get("problems", [])]
