"""Labelled data sets: the benchmark's layouts, plain folders and CSV manifests as one `Domain`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recap.data.folder import (
    folder_of_other_kind,
    match_masks,
    name_some,
    natural_key,
    refuse_masks_among,
    walk,
)
from recap.data.manifest import Split, manifest_samples
from recap.errors import InputError
from recap.io.decoding import not_there
from recap.io.formats import is_labelled_image
from recap.types import CLASSES, Sample

Layout = Literal["benchmark", "folders", "manifest"]
PAPER_NAMES = {
    "Brain": "BrainMRI",
    "Liver": "LiverCT",
    "Retina_RESC": "RESC",
    "Retina_OCT2017": "OCT17",
    "Chest": "Chest",
    "Histopathology": "HIS",
}
MASK_FOLDERS = ("anomaly_mask", "label")
SPLIT_FOLDERS: dict[Split, str] = {"train": "train", "pool": "valid", "test": "test"}
EXPECTED = (
    "Expected NAME_AD/{valid,test}/{good,Ungood}/img/ with masks, if any, in Ungood/anomaly_mask/ "
    "or Ungood/label/; or the folders normal/, abnormal/ and masks/; or a .csv manifest with the "
    "columns path, label, mask, patient, split."
)


@dataclass(frozen=True)
class Listing:
    """The files of one split, before masks are matched to abnormal images."""

    normal: list[Path]
    abnormal: list[Path]
    mask_folders: list[Path]


@dataclass(frozen=True)
class Domain:
    """One data set, such as Brain; `root` is its folder or its manifest."""

    name: str
    root: Path
    layout: Layout = "benchmark"

    def train(self) -> list[Sample]:
        """Read the further normals of `train/`; an empty list where there is no such split."""
        return self._read("train")

    def pool(self) -> list[Sample]:
        """Read the labelled pool that supports are drawn from (`valid/`), normals first."""
        return self._read("pool")

    def test(self) -> list[Sample]:
        """Read the test split, normals first."""
        return self._read("test")

    def _read(self, split: Split) -> list[Sample]:
        if self.layout == "manifest":
            return manifest_samples(self.root, split, self.name)
        files = list_split(self.root, self.layout, split)
        if not files.normal and not files.abnormal and split != "train":
            raise InputError(no_images(self, split))
        self._refuse_other_kinds(files, split)
        masks: dict[Path, Path] = {}
        if files.abnormal and files.mask_folders:
            if len(files.mask_folders) > 1:
                raise InputError(
                    f"{files.mask_folders[0].parent}: has several mask folders "
                    f"({name_some(files.mask_folders)}). Keep one."
                )
            masks = match_masks(files.abnormal, files.mask_folders[0])
        return [Sample(path, abnormal=False, domain=self.name) for path in files.normal] + [
            Sample(path, abnormal=True, mask=masks.get(path), domain=self.name)
            for path in files.abnormal
        ]

    def _refuse_other_kinds(self, files: Listing, split: Split) -> None:
        masks = mask_place(self.root, self.layout, split)
        for images in (files.normal, files.abnormal):
            refuse_masks_among(images, f"Move masks to {masks}.")
        if self.layout == "folders":
            for folder, reason in misplaced_folders(self.root, files).items():
                raise InputError(f"{folder}: {reason}.")


def misplaced_folders(root: Path, files: Listing) -> dict[Path, str]:
    """Folders below normal/ and abnormal/ that say to be of another kind, and what is wrong."""
    found = {}
    for kind, images in zip(CLASSES, (files.normal, files.abnormal), strict=True):
        folder = folder_of_other_kind(root / kind, images, kind)
        if folder is not None:
            found[folder] = f"its images would count as {kind}. Move it out of {root / kind}"
    return found


def read_domain(path: Path) -> Domain:
    """Open one data set: a folder of any known layout, or a CSV manifest."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: {not_there(path, 'folder or file')} {EXPECTED}")
    layout = layout_of(path)
    if layout is None:
        raise InputError(f"{path}: not a data set of a known layout. {EXPECTED}")
    name = path.resolve().stem if layout == "manifest" else path.resolve().name
    return Domain(name.removesuffix("_AD"), path, layout)


def layout_of(path: Path) -> Layout | None:
    """Tell the layout of a folder or file; None where it is no data set."""
    try:
        if path.is_file():
            return "manifest" if path.suffix.lower() == ".csv" else None
        labels = (path / split / kind for split in ("valid", "test") for kind in ("good", "Ungood"))
        if any(folder.is_dir() for folder in labels):
            return "benchmark"
        return "folders" if any((path / kind).is_dir() for kind in CLASSES) else None
    except PermissionError as error:
        # The system names a folder that is looked for in it, which need not be there.
        raise InputError(
            f"{path}: this folder cannot be read ({error.strerror}). Allow it or move it."
        ) from error


def find_domains(root: Path) -> list[Domain]:
    """Open all domains in a folder (or the folder itself), in the paper's order, then by name.

    A folder that is named `<Name>_AD` but is not a domain is an error: leaving it out would
    change every average without a word.
    """
    root = Path(root)
    if not root.exists():
        raise InputError(
            f"{root}: {not_there(root, 'folder')} Give the one that holds the domains."
        )
    if layout_of(root) or root.is_file():
        return [read_domain(root)]
    domains = [read_domain(folder) for folder in domain_folders(root)]
    if not domains:
        raise InputError(f"{root}: no domains in this folder. {EXPECTED}")
    doubled = {d.name for d in domains if sum(d.name == other.name for other in domains) > 1}
    if doubled:
        raise InputError(f"{root}: more than one folder for {', '.join(sorted(doubled))}.")
    return sorted(domains, key=lambda domain: paper_order(domain.name))


def domain_folders(root: Path) -> list[Path]:
    """The folders in a folder that are domains, or are named as if they were."""
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir())
    return [folder for folder in folders if folder.name.endswith("_AD") or _is_domain(folder)]


def _is_domain(folder: Path) -> bool:
    try:
        return layout_of(folder) is not None
    except InputError:  # no permission: lost+found, say, at the top of a disk
        return False


def paper_order(name: str) -> tuple[int, str]:
    """Sort key: the paper's domains in its order, then the others by name."""
    order = list(PAPER_NAMES)
    return (order.index(name) if name in order else len(order), name)


def list_split(root: Path, layout: Layout, split: Split) -> Listing:
    """List the images of a split and find its mask folders; what is not there is empty."""
    if layout == "folders":
        if split != "pool":
            return Listing([], [], [])
        normal, abnormal = (
            sorted(filter(is_labelled_image, walk(root / name)), key=natural_key)
            for name in CLASSES
        )
        place = mask_place(root, "folders", "pool")
        return Listing(normal, abnormal, [place] if place.is_dir() else [])
    folder = root / SPLIT_FOLDERS[split]
    if split == "train":
        return Listing(_images(folder / "good"), [], [])
    masks = [folder / "Ungood" / name for name in MASK_FOLDERS]
    return Listing(
        normal=_images(folder / "good"),
        abnormal=_images(folder / "Ungood"),
        mask_folders=[mask for mask in masks if mask.is_dir()],
    )


def mask_place(root: Path, layout: Layout, split: Split) -> Path:
    """Name the folder where the masks of a split belong."""
    if layout == "folders":
        return root / "masks"
    return root / SPLIT_FOLDERS[split] / "Ungood" / MASK_FOLDERS[0]


def _images(label_folder: Path) -> list[Path]:
    """List `img/*`, or the folder's own files where there is no `img`."""
    folder = label_folder / "img" if (label_folder / "img").is_dir() else label_folder
    if not folder.is_dir():
        return []
    found = [f for f in folder.iterdir() if not f.name.startswith(".") and is_labelled_image(f)]
    return sorted(found, key=natural_key)


def no_images(domain: Domain, split: Split) -> str:
    """Explain that a split has no images, and what is missing."""
    if domain.layout == "folders" and split == "test":
        return (
            f"{domain.root}: normal/ and abnormal/ are all pool, so there is no test split. "
            "List the files in a .csv manifest with a split column, or use the folders "
            "{valid,test}/{good,Ungood}/img/."
        )
    where = domain.root / SPLIT_FOLDERS[split] if domain.layout == "benchmark" else domain.root
    return f"{where}: no images of the {split} split of {domain.name}. {EXPECTED}"
