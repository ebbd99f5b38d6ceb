"""Plain folders of images: listing, matching masks by name, labelled samples."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from recap.errors import InputError
from recap.types import Sample

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
MASK_ENDINGS = ("", "_mask", "-mask")


def natural_key(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Sort key that puts slice 2 before slice 10, the full path breaking ties."""
    parts = re.split(r"([0-9]+)", str(path).casefold())
    numbered = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part]
    return numbered, str(path)


def list_images(path: Path) -> list[Path]:
    """List the image files under a folder, naturally sorted; a file stands for itself."""
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: there is no such file or folder.")
    found = [file for file in _walk(path) if file.suffix.lower() in SUFFIXES]
    if not found:
        raise InputError(f"{path}: no images in this folder. Looked for {' '.join(SUFFIXES)}.")
    return sorted(found, key=natural_key)


def match_masks(images: Sequence[Path], masks: Path) -> dict[Path, Path]:
    """Find each image's mask: the same stem, or the stem with _mask or -mask behind it."""
    files = list_images(masks)
    by_stem = _unique_by_stem(files, "masks")
    _unique_by_stem(images, "images")
    matched, unmatched = {}, []
    for image in images:
        found = [by_stem[s] for e in MASK_ENDINGS if (s := image.stem + e) in by_stem]
        if len(found) > 1:
            raise InputError(f"{image}: has {len(found)} masks ({name_some(found)}). Keep one.")
        if found:
            matched[image] = found[0]
        else:
            unmatched.append(image)
    if unmatched:
        raise InputError(
            f"{masks}: no mask for {len(unmatched)} of {len(images)} images "
            f"({name_some(unmatched)}). A mask has its image's name, or that name and _mask."
        )
    orphans = sorted(set(files) - set(matched.values()), key=natural_key)
    if orphans:
        raise InputError(
            f"{masks}: {len(orphans)} masks belong to no image ({name_some(orphans)}). "
            "Add their images or remove them."
        )
    return matched


def folder_samples(
    normal: Path | Sequence[Path],
    abnormal: Path | Sequence[Path] | None = None,
    masks: Path | None = None,
    domain: str = "",
) -> list[Sample]:
    """Label the images of folders or lists: normals first, then abnormals with their masks."""
    if masks is not None and abnormal is None:
        raise InputError(f"{masks}: masks need abnormal images to belong to. Name their folder.")
    healthy = _expand(normal)
    diseased = [] if abnormal is None else _without(_expand(abnormal), masks)
    both = {path.resolve() for path in healthy} & {path.resolve() for path in diseased}
    if both:
        raise InputError(
            f"{len(both)} images are listed as normal and as abnormal "
            f"({name_some(sorted(both))}). Each image can be one only."
        )
    found = {} if masks is None else match_masks(diseased, Path(masks))
    return [Sample(path, abnormal=False, domain=domain) for path in healthy] + [
        Sample(path, abnormal=True, mask=found.get(path), domain=domain) for path in diseased
    ]


def name_some(paths: Sequence[Path], most: int = 5) -> str:
    """Name up to five files for an error message."""
    names = ", ".join(path.name for path in paths[:most])
    return names if len(paths) <= most else f"{names}, and {len(paths) - most} more"


def _walk(root: Path) -> Iterable[Path]:
    """Yield visible files; linked folders are followed, but none is entered twice."""
    seen = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        seen.add(Path(folder).resolve())
        subfolders[:] = sorted(
            name
            for name in subfolders
            if not name.startswith(".") and (Path(folder) / name).resolve() not in seen
        )
        yield from (Path(folder) / name for name in files if not name.startswith("."))


def _unique_by_stem(files: Sequence[Path], kind: str) -> dict[str, Path]:
    twice = {stem for stem, count in Counter(file.stem for file in files).items() if count > 1}
    if twice:
        shown = name_some([file for file in files if file.stem in twice])
        raise InputError(
            f"Several {kind} share a name ({shown}), so masks cannot be matched. Rename them."
        )
    return {file.stem: file for file in files}


def _expand(paths: Path | Sequence[Path]) -> list[Path]:
    if isinstance(paths, str | Path):
        return list_images(Path(paths))
    listed = [file for path in paths for file in list_images(path)]
    if not listed:
        raise InputError("The list of images is empty. Give at least one file or folder.")
    return list(dict.fromkeys(listed))


def _without(images: list[Path], masks: Path | None) -> list[Path]:
    """Drop files of a mask folder that lies inside the image folder."""
    if masks is None:
        return images
    inside = Path(masks).resolve()
    kept = [image for image in images if not image.resolve().is_relative_to(inside)]
    if not kept:
        raise InputError(f"{masks}: is both the image and the mask folder. Name two folders.")
    return kept
