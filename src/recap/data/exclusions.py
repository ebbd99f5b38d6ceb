"""Lists of test images to leave out, as `recap data audit` writes them.

One line for each image: its path from the folder that holds the domain, such as
`Brain_AD/test/good/img/01471_60.png`, and, after a tab, its SHA-256 if it is to be checked. Lines
that start with # say why.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recap._download import sha256_of
from recap.data.benchmark import Domain
from recap.errors import InputError
from recap.types import CLASSES, Sample


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
            self._check_digest(found[path].path, sha256)
        kept = [sample for path, sample in found.items() if path not in listed]
        self._check_classes(samples, kept, domain)
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

    def _check_digest(self, path: Path, sha256: str) -> None:
        if sha256 and sha256_of(path) != sha256:
            raise InputError(
                f"{path}: is not the file that {self.source} was made for (its sha256 differs). "
                "Audit this data set and use its own list."
            )

    def _check_classes(
        self, samples: Sequence[Sample], kept: Sequence[Sample], domain: Domain
    ) -> None:
        for abnormal in sorted({s.abnormal for s in samples} - {s.abnormal for s in kept}):
            raise InputError(
                f"{self.source}: leaves no {CLASSES[abnormal]} test images of {domain.name}. "
                "Remove entries from the list; its comments say why each is there."
            )


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
