"""Support sets: published lists, draws that any machine repeats, and what must stay out of both."""

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recap._download import sha256_of
from recap._files import write_atomic
from recap.data.benchmark import Domain
from recap.data.patients import patient_of, stored_patient
from recap.errors import InputError, SettingsError, counted, some
from recap.types import CLASSES, Sample

LINE = re.compile(r"([na])-0:(.*)")
"""A line of a published list: the letter of a class, and the names of its files."""
_LETTERS = dict(zip("na", CLASSES, strict=True))
NEEDS_NONE = "Methods of normal images alone, such as normal_only, need none."
Names = dict[str, list[str]]
"""File names of each class, in the order of the list."""
Records = dict[str, list[dict[str, str | None]]]
"""What the JSON form keeps of each file: name, label and hashes."""


@dataclass(frozen=True)
class Support:
    """The labelled images that a few-shot detector is fitted on."""

    normal: tuple[Sample, ...]
    abnormal: tuple[Sample, ...]


def read_support(domain: Domain, file: Path) -> Support:
    """Read a support list against the domain's pool, in its order.

    The list has the lines `n-0: f1 f2 …` and `a-0: …`, or is the JSON form that `write_support`
    makes. Where the JSON form lies beside the list, changed files are refused by name.
    """
    file = Path(file)
    twin = file if file.suffix.lower() == ".json" else _twin(file)
    records = _parse_json(twin) if twin.exists() or twin == file else None
    names = _names(records) if records and twin == file else _parse(file)
    if records and _names(records) != names:
        raise InputError(
            f"{file}: lists other files than {twin.name} beside it. Remove the one that is wrong."
        )
    candidates = _find_in_pool(domain, names, file)
    if records:
        return _build(_unchanged(candidates, records, twin))
    for found in (c for label in CLASSES for c in candidates[label]):
        if len(found) > 1:
            raise InputError(
                f"{file}: {len(found)} files of the pool have the name {found[0].path.name}. "
                "Use the JSON form of the list, which knows their hashes."
            )
    return _build({label: [found[0] for found in candidates[label]] for label in CLASSES})


def draw_support(
    domain: Domain,
    shots: int,
    draw: int = 0,
    *,
    by_patient: bool = False,
    normal_only: bool = False,
) -> Support:
    """Draw `shots` images of each class; smaller draws are the start of larger ones.

    The order is that of the SHA-256 of "<draw>:<file name>", so it depends on no random
    generator, seed or file system. With `by_patient` no patient gives a class a second image
    before every patient of the class has given one. With `normal_only`, for methods that look at
    nothing else, the pool may have fewer abnormal images, or none.
    """
    if shots < 1:
        raise SettingsError(f"shots must be at least 1, not {shots}.")
    pool = domain.pool()
    drawn = {}
    for abnormal, label in enumerate(CLASSES):
        samples = [sample for sample in pool if sample.abnormal == bool(abnormal)]
        needed = min(shots, len(samples)) if normal_only and abnormal else shots
        if len(samples) < needed:
            fewer = "Use fewer shots." if samples or not abnormal else NEEDS_NONE
            raise InputError(
                f"{domain.root}: the pool has {counted(len(samples), f'{label} image')}, "
                f"fewer than the {shots} asked for. {fewer}"
            )
        samples.sort(key=lambda sample: _rank(draw, sample))
        drawn[label] = (_in_rounds(samples, domain) if by_patient else samples)[:shots]
    return _build(drawn)


def held_out_pool(domain: Domain, support: Support | None = None) -> list[Sample]:
    """The pool without the support images and whatever else shows their patients.

    For choosing between settings: nothing of `test/` is read.
    """
    used = () if support is None else (*support.normal, *support.abnormal)
    files = {sample.path for sample in used}
    patients = {known_patient(sample) for sample in used} - {""}
    return [
        sample
        for sample in domain.pool()
        if sample.path not in files and known_patient(sample) not in patients
    ]


def known_patient(sample: Sample) -> str:
    """Find whom a sample shows, by manifest, file name or DICOM; empty where nothing says."""
    known = sample.patient or patient_of(sample.path, sample.domain)
    return known or stored_patient(sample.path)


def write_support(support: Support, file: Path) -> None:
    """Write a support set in the published format, with its hashes in `<file>.json` beside it.

    A file named `.json` gets the JSON form alone, which may hold names with spaces.
    """
    file = Path(file)
    only_json = file.suffix.lower() == ".json"
    text = "" if only_json else _as_list(support)
    records = {"normal": support_hashes(support.normal)}
    records["abnormal"] = support_hashes(support.abnormal)
    # Hashes first: a list without them would pass unchecked, if the second write fails.
    write_atomic(file if only_json else _twin(file), json.dumps(records, indent=2) + "\n")
    if not only_json:
        write_atomic(file, text)


def support_hashes(samples: Sequence[Sample]) -> list[dict[str, str | None]]:
    """Name, label and the SHA-256 of image and mask, to record what a detector was fitted on."""
    return [
        {
            "name": sample.path.name,
            "label": CLASSES[sample.abnormal],
            "sha256": _sha256(sample.path),
            "mask_sha256": None if sample.mask is None else _sha256(sample.mask),
        }
        for sample in samples
    ]


def _twin(file: Path) -> Path:
    return file.with_name(file.name + ".json")


def _names(records: Records) -> Names:
    return {label: [str(record["name"]) for record in records[label]] for label in CLASSES}


def _build(chosen: dict[str, list[Sample]]) -> Support:
    return Support(normal=tuple(chosen["normal"]), abnormal=tuple(chosen["abnormal"]))


def _parse(file: Path) -> Names:
    names: Names = {}
    for line in filter(None, map(str.strip, read_list(file).splitlines())):
        match = LINE.fullmatch(line)
        if match is None or _LETTERS[match[1]] in names:
            raise InputError(
                f"{file}: unexpected line {line[:40]!r}. "
                "Expected one line 'n-0: file file …' and one line 'a-0: file file …'."
            )
        listed = names[_LETTERS[match[1]]] = match[2].split()
        # A list with its JSON form beside it may name two files of different folders.
        if len(set(listed)) < len(listed) and not _twin(file).exists():
            raise InputError(f"{file}: the {match[1]}-0 line names a file twice.")
    if names.keys() != set(CLASSES):
        raise InputError(f"{file}: needs a line that starts with n-0: and one with a-0:.")
    return names


def _parse_json(file: Path) -> Records:
    try:
        content: Any = json.loads(read_list(file))
        records = {label: list(content[label]) for label in CLASSES}
        complete = all(
            isinstance(record["name"], str) and isinstance(record["sha256"], str)
            for label in CLASSES
            for record in records[label]
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{file}: not a support set as `recap data support` writes it.") from error
    if not complete:
        raise InputError(f"{file}: a file is without name or sha256. Draw the support set again.")
    return records


def read_list(file: Path) -> str:
    """The text of a support list."""
    try:
        return file.read_text(encoding="utf-8-sig")  # some editors add a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: the support list cannot be read ({error}).") from error


def _find_in_pool(domain: Domain, names: Names, file: Path) -> dict[str, list[list[Sample]]]:
    """All files of the pool that have each listed name, in the order of the list."""
    by_name: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in domain.pool():
        by_name[CLASSES[sample.abnormal], sample.path.name].append(sample)
    missing = [name for label in CLASSES for name in names[label] if (label, name) not in by_name]
    if missing:
        raise InputError(
            f"{file}: {len(missing)} of its files are not in the pool of {domain.root} "
            f"({some(missing)}). Use the list made for this dataset, or draw a support set."
        )
    return {label: [by_name[label, name] for name in names[label]] for label in CLASSES}


def _unchanged(
    candidates: dict[str, list[list[Sample]]], records: Records, file: Path
) -> dict[str, list[Sample]]:
    """The files that still have the hashes of the list; others are refused by name."""
    chosen: dict[str, list[Sample]] = {label: [] for label in CLASSES}
    changed = []
    for label in CLASSES:
        for found, record in zip(candidates[label], records[label], strict=True):
            same = [s for s in found if s not in chosen[label] and _has_hashes(s, record)]
            chosen[label].extend(same[:1])
            changed.extend([] if same else [str(found[0].path)])
    if changed:
        raise InputError(
            f"{file}: {len(changed)} of its files, or their masks, have changed since it was "
            f"written ({some(changed)}). Restore them, or draw the support set again."
        )
    return chosen


def _has_hashes(sample: Sample, record: dict[str, str | None]) -> bool:
    (now,) = support_hashes([sample])
    return all(now[key] == record.get(key) for key in ("sha256", "mask_sha256"))


def _in_rounds(ranked: Sequence[Sample], domain: Domain) -> list[Sample]:
    """Reorder so that each patient's first image comes before any patient's second."""
    patients = [known_patient(sample) for sample in ranked]
    if not any(patients):
        raise InputError(
            f"{domain.root}: no patients are known. Name them in the patient column of a manifest, "
            "or draw without regard to patients."
        )
    given: Counter[str] = Counter()
    rounds = []
    for index, patient in enumerate(patients):
        # An image of nobody known counts as a patient of its own.
        rounds.append((given[patient] if patient else 0, index))
        given[patient] += 1
    return [ranked[index] for _, index in sorted(rounds)]


def _as_list(support: Support) -> str:
    lines = []
    for letter, samples in (("n", support.normal), ("a", support.abnormal)):
        names = [sample.path.name for sample in samples]
        for name in names:
            is_text = name.encode(errors="ignore").decode() == name
            if name.split() != [name] or not is_text:
                why = "separates names by spaces" if is_text else "is UTF-8, which this name is not"
                raise InputError(
                    f"{name!r}: the list {why}. Save the support set to a file that ends in .json."
                )
        lines.append(" ".join([f"{letter}-0:", *names]))
    return "\n".join(lines) + "\n"


def _rank(draw: int, sample: Sample) -> bytes:
    # File names need not be valid UTF-8.
    name = f"{draw}:{sample.path.name}".encode(errors="surrogateescape")
    return hashlib.sha256(name).digest()


def _sha256(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}).") from error


@dataclass(frozen=True)
class Exclusions:
    """The images that a list leaves out, by domain and path, with the digests it gives."""

    source: Path
    sha256: str
    images: dict[str, dict[str, str]]

    def keep(self, samples: Sequence[Sample], domain: Domain) -> list[Sample]:
        """Drop the listed images of a domain's test split; entries must fit what is there."""
        listed = self.images.get(domain.name, {})
        found = {relative_path(sample.path, domain): sample for sample in samples}
        missing = sorted(set(listed) - set(found))
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(
                f"{self.source}: '{missing[0]}'{more} is not in the test split of {domain.name}. "
                "The list was made for other data; audit this data set and use its own list."
            )
        for path, sha256 in listed.items():
            file = found[path].path
            if sha256 and sha256_of(file) != sha256:
                raise InputError(
                    f"{file}: is not the file that {self.source} was made for (its sha256 "
                    "differs). Audit this data set and use its own list."
                )
        kept = [sample for path, sample in found.items() if path not in listed]
        for abnormal in sorted({s.abnormal for s in samples} - {s.abnormal for s in kept}):
            raise InputError(
                f"{self.source}: leaves no {CLASSES[abnormal]} test images of {domain.name}. "
                "Remove entries from the list; its comments say why each is there."
            )
        return kept

    def unmatched(self, domain: Domain) -> list[str]:
        """Entries of data sets that are neither this domain nor beside it.

        A list may be for several domains, so that those of its neighbours are no mistake.
        """
        beside = domain.root.resolve().parent.iterdir()
        names = {(p.name if p.is_dir() else p.stem).removesuffix("_AD") for p in beside}
        return [
            f"{name}/{path}"
            for name, paths in self.images.items()
            if name not in (domain.name, *names)
            for path in paths
        ]


def read_exclusions(file: Path) -> Exclusions:
    """Read a list of test images to leave out."""
    file = Path(file)
    try:
        # Entries are file names, which need not be UTF-8.
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
        lines = text.splitlines()
        sha256 = sha256_of(file)
    except OSError as error:
        raise InputError(f"{file}: the exclusion list cannot be read ({error}).") from error
    images: dict[str, dict[str, str]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            entry, _, digest = line.strip().partition("\t")
            domain, _, path = entry.strip().partition("/")
            if not path:
                raise InputError(
                    f"{file}: line {number} is {line.strip()[:60]!r}. "
                    "Expected a path such as Brain_AD/test/good/img/name.png."
                )
            images.setdefault(domain.removesuffix("_AD"), {})[path] = digest.strip().lower()
    return Exclusions(file, sha256, images)


def relative_path(path: Path, domain: Domain) -> str:
    """A file's path from its domain's folder, with slashes."""
    folder = domain.root.parent if domain.layout == "manifest" else domain.root
    return Path(os.path.relpath(path, folder)).as_posix()


def entry_of(path: Path, domain: Domain) -> str:
    """The entry that names a file in a list: the domain's folder and the path from there."""
    root = domain.root.resolve()
    return (
        f"{root.stem if domain.layout == 'manifest' else root.name}/{relative_path(path, domain)}"
    )
