"""The numbers of a job's cases: those of the upload, with the cases that could not be read.

The files of a case that cannot be read are not kept, so its number is: else the cases after it
would move up, and a case's number would be that of another file.
"""

from itertools import count
from pathlib import Path
from typing import NamedTuple

from recap.data.cases import Found, find_cases
from recap.service.jobs import Job


class Unread(NamedTuple):
    """A case that could not be read when it was uploaded, and why."""

    name: str
    error: str
    number: int | None = None
    """None in jobs of versions that put such cases after all others."""


def job_cases(job: Job, upload: Path) -> dict[int, Found]:
    """The cases of a job's files by their numbers, the same every time."""
    taken = {each.number for each in unread_cases(job)}
    free = (number for number in count() if number not in taken)
    return dict(zip(free, find_cases([upload], upload).cases, strict=False))


def unread_cases(job: Job) -> list[Unread]:
    """What could not be read of a job's upload."""
    return [Unread(*each) for each in job.options.get("problems", [])]
