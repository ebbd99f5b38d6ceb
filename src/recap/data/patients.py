"""The patient of an image: from the data set's own index, the benchmark's file names, or DICOM."""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from recap.data.benchmark import PAPER_NAMES
from recap.data.manifest import LABELS, SPLITS, delimiter_of
from recap.errors import InputError, RecapError
from recap.io.formats import is_picture, sniff

INDEX_FILES = ("index.csv", "manifest.csv")
FILE_COLUMNS = ("path", "file", "filename", "image")
PATIENT_COLUMNS = ("patient", "patient_id", "patient_or_source_id", "source_id", "volume", "case")
# A folder 0 or 1 is as likely a patient's.
_LABEL_FOLDERS = {word: abnormal for word, abnormal in LABELS.items() if word.isalpha()}
# NAME_AD/valid/good/img/file: an index further up belongs to something else.
_LEVELS_TO_INDEX = 4
# Where a convention cannot be mistaken for another one, it holds in every data set.
_ANYWHERE = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # TCGA_FG_A4MU_20030903_028, and slides: TCGA-FG-A4MU-01Z-00-DX1
        r"(?P<patient>TCGA[-_][A-Z0-9]{2}[-_][A-Z0-9]{4})([-_]\d{8}([-_](?P<slice>\d+))?)?([-_.].*)?",
        # BraTS2021_01471_flair_60, BraTS20_Training_001_80, BraTS-GLI-00005-000-t2f_77
        r"(?P<patient>BraTS\d*(_[a-z]+)?_\d+|BraTS-[A-Z]+-\d+)(-\d{3})?"
        r"([-_](flair|t1ce|t1|t2|t1n|t1c|t2w|t2f))?([-_](?P<slice>\d+))?",
        # CNV-6294785-1
        r"(CNV|DME|DRUSEN|NORMAL)-(?P<patient>\d+)-(?P<slice>\d+)",
        # Normal-<uuid>, Lung_Opacity_<uuid>: RSNA has one image of each patient
        r"(.*[-_])?(?P<patient>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})",
        # 10688_x016_y304: a field of a slide
        r"(?P<patient>.+)_x\d+_y\d+",
    )
]
_VOLUME_SLICE = re.compile(r"(volume-|liver_)?(?P<patient>\d+)_(?P<slice>\d+)")
# 00001682_001: the second number counts visits, not slices.
_NIH = re.compile(r"(?P<patient>\d{8})_\d{3}")
_BY_DOMAIN = {
    "Brain": _VOLUME_SLICE,
    "Liver": _VOLUME_SLICE,
    "Retina_RESC": _VOLUME_SLICE,
    "Chest": _NIH,
}


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
        """Find whom a file shows; "" where no row tells, or several tell different things."""
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
    """Rate how near a row's split is to the folder's: 0 is the same, None another one."""
    here = next((SPLITS[name] for name in folders if name in SPLITS), None)
    if told not in SPLITS or not told or here is None:
        return 2
    if SPLITS[told] == here:
        return 0
    # Some indexes call the pool train.
    return 1 if (SPLITS[told], here) == ("train", "pool") else None


def _by_label(told: str, folders: Sequence[str]) -> int | None:
    """Rate how near a row's label is to the folder's: 0 is the same, None the opposite."""
    if told in folders:
        return 0
    here = next((_LABEL_FOLDERS[name] for name in folders if name in _LABEL_FOLDERS), None)
    if told not in LABELS or here is None:
        return 1
    return 0 if LABELS[told] == here else None


def patient_of(path: Path, domain: str) -> str:
    """The patient (or volume, or field) that an image shows; "" where nothing tells."""
    return listed_patient(path) or named_patient(path, domain)


def slice_of(path: Path, domain: str) -> int | None:
    """The number of a slice in its volume, from its file's name; None where that does not tell."""
    number = _parts(path, domain).get("slice")
    return None if number is None else int(number)


def named_patient(path: Path, domain: str) -> str:
    """The patient that the file's name tells."""
    return (_parts(path, domain).get("patient") or "").replace("-", "_")


def listed_patient(path: Path) -> str:
    """The patient that the data set's index.csv or manifest.csv gives this file."""
    path = Path(path).absolute()
    for folder in path.parents[:_LEVELS_TO_INDEX]:
        for name in INDEX_FILES:
            if (folder / name).is_file():
                index = read_index(folder / name, (folder / name).stat().st_mtime_ns)
                return index.patient(path.relative_to(folder))
    return ""


def stored_patient(path: Path) -> str:
    """The PatientID of a DICOM file; "" for other files, and where it has none."""
    try:
        if is_picture(path) or sniff(path) != "dicom":
            return ""
        return _patient_id(path, path.stat().st_mtime_ns)
    except (RecapError, OSError):  # whoever reads its pixels is told
        return ""


@lru_cache(maxsize=2**14)
def _patient_id(path: Path, mtime_ns: int) -> str:
    from recap.io.dicom.file import careful, scan_header
    from recap.io.dicom.header import text

    with careful(path):
        return text(scan_header(path, ["PatientID"])[0], "PatientID")


def _parts(path: Path, domain: str) -> Mapping[str, str | None]:
    name = domain.removesuffix("_AD")
    short = next((short for short, paper in PAPER_NAMES.items() if paper == name), name)
    stem, own = Path(path).stem, _BY_DOMAIN.get(short)
    for pattern in (*_ANYWHERE, *([own] if own else ())):
        match = pattern.fullmatch(stem)
        if match:
            return match.groupdict()
    return {}
