"""Support sets: published lists read as they are, and draws that any machine repeats."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recap.data.benchmark import Domain
from recap.errors import InputError, SettingsError
from recap.types import CLASSES, Sample

_LINE = re.compile(r"([na])-0:(.*)")


@dataclass(frozen=True)
class Support:
    """The labelled images that a few-shot detector is fitted on."""

    normal: tuple[Sample, ...]
    abnormal: tuple[Sample, ...]


def read_support(domain: Domain, file: Path) -> Support:
    """Read a list of lines `n-0: f1 f2 …` and `a-0: …` against the domain's pool, in its order."""
    names = _parse(Path(file))
    pool = domain.pool()
    by_class = {
        letter: {sample.path.name: sample for sample in pool if sample.abnormal == (letter == "a")}
        for letter in "na"
    }
    missing = [name for letter in "na" for name in names[letter] if name not in by_class[letter]]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise InputError(
            f"{file}: {len(missing)} of its files are not in the pool {domain.root / 'valid'} "
            f"({shown}). Use the list made for this dataset, or draw a support set."
        )
    return Support(
        normal=tuple(by_class["n"][name] for name in names["n"]),
        abnormal=tuple(by_class["a"][name] for name in names["a"]),
    )


def draw_support(domain: Domain, shots: int, draw: int = 0) -> Support:
    """Draw `shots` images of each class; smaller draws are the start of larger ones.

    The order is that of the SHA-256 of "<draw>:<file name>", so it depends on no random
    generator, seed or file system.
    """
    if shots < 1:
        raise SettingsError(f"shots must be at least 1, not {shots}.")
    pool = domain.pool()
    drawn = []
    for abnormal in (False, True):
        samples = [sample for sample in pool if sample.abnormal == abnormal]
        if len(samples) < shots:
            raise InputError(
                f"{domain.root / 'valid'}: the pool has {len(samples)} {CLASSES[abnormal]} images, "
                f"fewer than the {shots} asked for. Use fewer shots."
            )
        samples.sort(key=lambda sample: _rank(draw, sample))
        drawn.append(tuple(samples[:shots]))
    return Support(normal=drawn[0], abnormal=drawn[1])


def write_support(support: Support, file: Path) -> None:
    """Write a support set in the published format."""
    lines = []
    for letter, samples in (("n", support.normal), ("a", support.abnormal)):
        names = [sample.path.name for sample in samples]
        spaced = [name for name in names if name.split() != [name]]
        if spaced:
            raise InputError(
                f"{spaced[0]!r}: the list separates names by spaces. Rename the file without any."
            )
        lines.append(" ".join([f"{letter}-0:", *names]))
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


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


def _parse(file: Path) -> dict[str, list[str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: the support list cannot be read ({error}).") from error
    names: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None or match[1] in names:
            raise InputError(
                f"{file}: unexpected line {line[:40]!r}. "
                "Expected one line 'n-0: file file …' and one line 'a-0: file file …'."
            )
        names[match[1]] = match[2].split()
        if len(set(names[match[1]])) < len(names[match[1]]):
            raise InputError(f"{file}: the {match[1]}-0 line names a file twice.")
    if names.keys() != {"n", "a"}:
        raise InputError(f"{file}: needs a line that starts with n-0: and one with a-0:.")
    return names


def _rank(draw: int, sample: Sample) -> bytes:
    return hashlib.sha256(f"{draw}:{sample.path.name}".encode()).digest()


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}).") from error
