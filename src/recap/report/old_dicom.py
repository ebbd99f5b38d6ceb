"""DICOM results of earlier runs: those that no row of the table names are removed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from recap._files import error_message
from recap.errors import InputError
from recap.scoring.rows import Row

FOLDER = "dicom"
_OURS = ("map*.dcm", "segments*.dcm", "report.dcm", "capture-*.dcm")


def clear_results(folder: Path) -> None:
    """Remove the results in the folder of one case; other files stay."""
    for old in _results(folder):
        old.unlink()


def clear_case(out: Path, name: str) -> None:
    """Remove the results of a case, if a scored folder has any."""
    folder = out / FOLDER / name
    with _in_words():
        if folder.is_dir():
            clear_results(folder)


def clear_unnamed(out: Path, rows: Sequence[Row]) -> None:
    """Remove the results in all folders that no row names: of files that failed or are gone."""
    named = {out / row.dicom for row in rows if row.dicom}
    with _in_words():
        for name, _, _ in os.walk(out / FOLDER, topdown=False):
            folder = Path(name)
            if folder not in named:
                for old in _results(folder):
                    if not old.is_dir():  # a case may be called like a result: its own folder
                        old.unlink()
                with suppress(OSError):  # it holds something else
                    folder.rmdir()


def _results(folder: Path) -> Iterator[Path]:
    return (path for pattern in _OURS for path in folder.glob(pattern))


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(error_message(error)) from error
