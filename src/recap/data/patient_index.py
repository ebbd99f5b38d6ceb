"""A data set's own table of patients: index.csv or manifest.csv, in whichever words it is written.

Rows that give a path are found by that path, others by name. One name may occur in several
folders, so split and label must agree where the row and the folder both tell them.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from recap.data.manifest import LABELS, SPLITS, delimiter_of
from recap.errors import InputError

INDEX_FILES = ("index.csv", "manifest.csv")
FILE_COLUMNS = ("path", "file", "filename", "image")
PATIENT_COLUMNS = ("patient", "patient_id", "patient_or_source_id", "source_id", "volume", "case")
# A folder 0 or 1 is as likely a patient's.
_LABEL_FOLDERS = {word: abnormal for word, abnormal in LABELS.items() if word.isalpha()}


class Entry(NamedTuple):
    """A row that names a file without its folder."""

    split: str
    label: str
    patient: str


class Index(NamedTuple):
    """Patients by the path of their files, and what is known of files by name alone."""

    by_path: dict[str, str]
    by_name: dict[str, list[Entry]]

    def patient(self, relative: Path) -> str:
        """Whom a file shows; "" where no row tells, or several tell different things."""
        if relative.as_posix() in self.by_path:
            return self.by_path[relative.as_posix()]
        folders = [name.casefold() for name in relative.parts[:-1]]
        found: dict[tuple[int, int], set[str]] = defaultdict(set)
        for entry in self.by_name.get(relative.name, ()):
            split, label = _by_split(entry.split, folders), _by_label(entry.label, folders)
            if split is not None and label is not None:
                found[split, label].add(entry.patient)
        nearest = found[min(found)] if found else set()
        return nearest.pop() if len(nearest) == 1 else ""


@lru_cache(maxsize=16)
def read_index(file: Path, mtime_ns: int) -> Index:
    """Read a table; it is empty where the columns are not there."""
    index = Index({}, defaultdict(list))
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            delimiter = delimiter_of(stream)
            rows = csv.DictReader(stream, delimiter=delimiter, restkey="", restval="")
            columns = {name.strip().lower(): name for name in rows.fieldnames or ()}
            files = next((columns[name] for name in FILE_COLUMNS if name in columns), None)
            patients = next((columns[name] for name in PATIENT_COLUMNS if name in columns), None)
            if files is None or patients is None:
                return index
            split, label = columns.get("split", ""), columns.get("label", "")
            for row in rows:
                name = Path(row[files].strip()).as_posix()
                patient = row[patients].strip()
                if "/" in name:
                    index.by_path[name] = patient
                else:
                    told = [row[c].strip().lower() if c else "" for c in (split, label)]
                    index.by_name[name].append(Entry(told[0], told[1], patient))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read as a CSV file in UTF-8 ({error}).") from error
    return index


def _by_split(told: str, folders: Sequence[str]) -> int | None:
    """How near a row's split is to the folder's: 0 is the same, None another one."""
    here = next((SPLITS[name] for name in folders if name in SPLITS), None)
    if told not in SPLITS or not told or here is None:
        return 2
    if SPLITS[told] == here:
        return 0
    # Some indexes call the pool train.
    return 1 if (SPLITS[told], here) == ("train", "pool") else None


def _by_label(told: str, folders: Sequence[str]) -> int | None:
    """How near a row's label is to the folder's: 0 is the same, None the opposite."""
    if told in folders:
        return 0
    here = next((_LABEL_FOLDERS[name] for name in folders if name in _LABEL_FOLDERS), None)
    if told not in LABELS or here is None:
        return 1
    return 0 if LABELS[told] == here else None
