"""Files that are listed as images but are of another kind, told by their names: masks, lesions."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from recap.errors import InputError
from recap.io.formats import bare_name

# Of an image with several lesions some data sets have several masks: x_mask, x_mask_1, x_mask_2.
_MASK_ENDING = re.compile(r"[_-]mask([_-]?[0-9]+)?$")
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


def owner_name(mask: str) -> str:
    """The name of the image that a mask of this name belongs to; its own if nothing shows."""
    return _MASK_ENDING.sub("", mask)


def masks_among(images: Sequence[Path]) -> dict[Path, Path]:
    """Which images have the name of another and _mask or -mask behind it, and of which."""
    by_name = {bare_name(image): image for image in images}
    found = {}
    for image in images:
        name = bare_name(image)
        owner = by_name.get(owner_name(name))
        if owner is not None and owner_name(name) != name:
            found[image] = owner
    return found


def refuse_masks_among(images: Sequence[Path], remedy: str) -> None:
    """A mask that lies beside its image would be fitted or measured as an image."""
    for mask, image in masks_among(images).items():
        raise InputError(f"{mask}: looks like the mask of {image.name}. {remedy}")
