"""CSV manifests: one row per image with path, label and, where known, mask, patient and split.

Paths are relative to the CSV file. The order of the columns is free and unknown ones are ignored.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from recap.data.folder import name_some
from recap.errors import InputError
from recap.types import Sample

Split = Literal["train", "pool", "test"]
REQUIRED = ("path", "label")
LABELS = {
    **dict.fromkeys(("normal", "good", "0"), False),
    **dict.fromkeys(("abnormal", "ungood", "1"), True),
}
SPLITS: dict[str, Split] = {
    "": "pool",
    "pool": "pool",
    "valid": "pool",
    "val": "pool",
    "test": "test",
    "train": "train",
}


@dataclass(frozen=True)
class Manifest:
    """The rows of a manifest that can be used, by split, and what is wrong with the others."""

    samples: dict[Split, list[Sample]] = field(
        default_factory=lambda: {"train": [], "pool": [], "test": []}
    )
    wrong_rows: list[str] = field(default_factory=list)
    missing: list[Path] = field(default_factory=list)


def read_manifest(file: Path, domain: str = "") -> Manifest:
    """Read a CSV manifest; rows that cannot be used are listed beside the good ones."""
    manifest = Manifest()
    seen: set[Path] = set()
    for number, row in _rows(file):
        try:
            split, sample = _parse(row, file.parent, domain)
        except ValueError as error:
            manifest.wrong_rows.append(f"line {number}: {error}")
            continue
        if sample.path in seen:
            manifest.wrong_rows.append(f"line {number}: '{row['path']}' was listed before")
            continue
        seen.add(sample.path)
        gone = [path for path in (sample.path, sample.mask) if path and not path.is_file()]
        manifest.missing.extend(gone)
        if not gone:
            manifest.samples[split].append(sample)
    return manifest


def manifest_samples(file: Path, split: Split, domain: str = "") -> list[Sample]:
    """Read one split of a manifest, normals first; anything wrong in the file is an error."""
    manifest = read_manifest(file, domain)
    if manifest.wrong_rows:
        more = len(manifest.wrong_rows) - 1
        also = f" (and {more} more)" if more else ""
        raise InputError(
            f"{file}: {manifest.wrong_rows[0]}{also}. Correct the manifest.", path=file
        )
    if manifest.missing:
        raise InputError(
            f"{file}: {len(manifest.missing)} of its files do not exist "
            f"({name_some(manifest.missing)}). Paths are relative to the manifest's folder.",
            path=file,
        )
    if not manifest.samples[split] and split != "train":
        raise InputError(
            f"{file}: no rows of the {split} split. Write '{split}' into the split column of the "
            "rows that belong to it.",
            path=file,
        )
    return sorted(manifest.samples[split], key=lambda sample: sample.abnormal)


def delimiter_of(stream: IO[str]) -> str:
    """Find what separates the columns in the first line; the stream goes back to its start."""
    header = stream.readline()
    stream.seek(0)
    # Spreadsheets in many countries write semicolons.
    return max(",;\t", key=header.count)


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line numbers and rows with trimmed values and lower-case column names."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter=delimiter_of(stream), strict=True)
            columns = [name.strip().lower() for name in next(reader, [])]
            _check_columns(columns, file)
            for values in reader:
                if any(value.strip() for value in values):
                    padded = [*values, *[""] * (len(columns) - len(values))]
                    row = zip(columns, padded, strict=False)
                    yield reader.line_num, {name: value.strip() for name, value in row}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{file}: cannot be read as a CSV file in UTF-8 ({error}).", path=file
        ) from error


def _check_columns(columns: list[str], file: Path) -> None:
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise InputError(
            f"{file}: the column{'s' * (len(missing) > 1)} {' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing; its first line has "
            f"{', '.join(filter(None, columns)) or 'no columns'}. "
            "A manifest needs path and label, and may have mask, patient and split.",
            path=file,
        )
    twice = [name for name in (*REQUIRED, "mask", "patient", "split") if columns.count(name) > 1]
    if twice:
        raise InputError(f"{file}: the column {twice[0]} is there twice. Keep one.", path=file)


def _parse(row: dict[str, str], folder: Path, domain: str) -> tuple[Split, Sample]:
    if not row["path"]:
        raise ValueError("the path is empty")
    label, split = row["label"].lower(), row.get("split", "").lower()
    if label not in LABELS:
        raise ValueError(f"the label is '{row['label']}', not normal or abnormal (or 0 or 1)")
    if split not in SPLITS:
        raise ValueError(f"the split is '{row['split']}', not pool, test or train")
    abnormal = LABELS[label]
    if abnormal and SPLITS[split] == "train":
        raise ValueError("train is for normal images only; put this one into the pool")
    # Some sets give normal images an empty mask; it says nothing.
    mask = row.get("mask", "") if abnormal else ""
    sample = Sample(
        path=folder / row["path"],
        abnormal=abnormal,
        mask=folder / mask if mask else None,
        domain=domain,
        patient=row.get("patient", ""),
    )
    return SPLITS[split], sample
