"""The benchmark's folder layout: one folder per domain, a labelled pool and a test split."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recap.data.folder import SUFFIXES, match_masks, name_some, natural_key
from recap.errors import InputError
from recap.types import Sample

PAPER_NAMES = {
    "Brain": "BrainMRI",
    "Liver": "LiverCT",
    "Retina_RESC": "RESC",
    "Retina_OCT2017": "OCT17",
    "Chest": "Chest",
    "Histopathology": "HIS",
}
MASK_FOLDERS = ("anomaly_mask", "label")
EXPECTED_TREE = """Expected:
  <Name>_AD/
    valid/  the labelled pool          test/  the test split
      good/img/*                         good/img/*
      Ungood/img/*                       Ungood/img/*
      Ungood/anomaly_mask/*              Ungood/anomaly_mask/*   (masks: if there are any)"""


@dataclass(frozen=True)
class Domain:
    """One dataset of the benchmark, such as Brain, in the folder `root`."""

    name: str
    root: Path

    def pool(self) -> list[Sample]:
        """Read the labelled pool (`valid/`) that supports are drawn from, normals first."""
        return self._split("valid")

    def test(self) -> list[Sample]:
        """Read the test split, normals first."""
        return self._split("test")

    def _split(self, split: str) -> list[Sample]:
        folder = self.root / split
        good, ungood = _images(folder / "good"), _images(folder / "Ungood")
        if not good and not ungood:
            raise InputError(f"{folder}: no images of this split of {self.name}.\n{EXPECTED_TREE}")
        masks = _masks(ungood, folder / "Ungood")
        return [Sample(path, abnormal=False, domain=self.name) for path in good] + [
            Sample(path, abnormal=True, mask=masks.get(path), domain=self.name) for path in ungood
        ]


def read_domain(path: Path) -> Domain:
    """Open one domain folder, named `<Name>_AD` or `<Name>`."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: there is no such folder.\n{EXPECTED_TREE}")
    if not _is_domain(path):
        raise InputError(f"{path}: not a domain of the benchmark's layout.\n{EXPECTED_TREE}")
    return Domain(path.resolve().name.removesuffix("_AD"), path)


def find_domains(root: Path) -> list[Domain]:
    """Open all domains in a folder (or the folder itself), in the paper's order, then by name.

    A folder that is named `<Name>_AD` but is not a domain is an error: leaving it out would
    change every average without a word.
    """
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder. Give the one that holds the domains.")
    if _is_domain(root):
        return [read_domain(root)]
    domains = [
        read_domain(folder)
        for folder in root.iterdir()
        if folder.is_dir() and (folder.name.endswith("_AD") or _is_domain(folder))
    ]
    if not domains:
        raise InputError(f"{root}: no domains in this folder.\n{EXPECTED_TREE}")
    doubled = {d.name for d in domains if sum(d.name == other.name for other in domains) > 1}
    if doubled:
        raise InputError(f"{root}: more than one folder for {', '.join(sorted(doubled))}.")
    order = list(PAPER_NAMES)
    return sorted(
        domains, key=lambda d: (order.index(d.name) if d.name in order else len(order), d.name)
    )


def has_masks(samples: Sequence[Sample]) -> bool:
    """Tell whether there are abnormal samples and every one of them has a mask."""
    abnormal = [sample for sample in samples if sample.abnormal]
    return bool(abnormal) and all(sample.mask is not None for sample in abnormal)


def _is_domain(path: Path) -> bool:
    return any(
        (path / split / label).is_dir()
        for split in ("valid", "test")
        for label in ("good", "Ungood")
    )


def _images(label_folder: Path) -> list[Path]:
    """List `img/*`, or the folder's own files where there is no `img`."""
    folder = label_folder / "img" if (label_folder / "img").is_dir() else label_folder
    if not folder.is_dir():
        return []
    found = [
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    ]
    return sorted(found, key=natural_key)


def _masks(images: list[Path], ungood: Path) -> dict[Path, Path]:
    folders = [ungood / name for name in MASK_FOLDERS if (ungood / name).is_dir()]
    if len(folders) > 1:
        raise InputError(f"{ungood}: has several mask folders ({name_some(folders)}). Keep one.")
    return match_masks(images, folders[0]) if folders else {}
