"""Files that are listed as images but are of another kind, told by their names: masks, lesions."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from recap.data.names import bare_name
from recap.errors import InputError

MASK_ENDINGS = ("", "_mask", "-mask")
_MASK_FOLDERS = ("masks", "anomaly_mask", "label")
# Folders whose images are of another kind than those they would be listed with.
_OTHERS = {
    "normal": ("abnormal", "ungood", *_MASK_FOLDERS),
    "abnormal": ("normal", "good", *_MASK_FOLDERS),
}


def folder_of_other_kind(root: Path, files: Iterable[Path], kind: str) -> Path | None:
    """The first folder below `root` whose name says that its images are not of this class."""
    for file in files:
        below = file.relative_to(root).parts[:-1]
        for depth, name in enumerate(below, start=1):
            if name.lower() in _OTHERS[kind]:
                return root.joinpath(*below[:depth])
    return None


def refuse_other_kind(root: Path, files: Iterable[Path], kind: str) -> None:
    """Of a folder that holds all images, lesions and masks would be taken for what they are not."""
    other = folder_of_other_kind(root, files, kind)
    if other is not None:
        raise InputError(
            f"{root}: the images in its folder {other.name}/ would count as {kind}. Name the "
            f"folder that holds {kind} images alone, such as {root / kind}."
        )


def masks_among(images: Sequence[Path]) -> dict[Path, Path]:
    """Which images have the name of another and _mask or -mask behind it, and of which."""
    by_name = {bare_name(image): image for image in images}
    endings = [ending for ending in MASK_ENDINGS if ending]
    found = {}
    for image in images:
        name = bare_name(image)
        for ending in endings:
            owner = by_name.get(name.removesuffix(ending)) if name.endswith(ending) else None
            if owner is not None:
                found[image] = owner
    return found


def refuse_masks_among(images: Sequence[Path], remedy: str) -> None:
    """A mask that lies beside its image would be fitted or measured as an image."""
    for mask, image in masks_among(images).items():
        raise InputError(f"{mask}: looks like the mask of {image.name}. {remedy}")
