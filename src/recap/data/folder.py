"""Plain folders of images: going through them, matching masks by name, labelled samples.

Links are followed; hidden files, and what recap itself wrote, are passed over.
"""

import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recap._download import sha256_of
from recap.errors import InputError, counted, some
from recap.io.decoding import not_there
from recap.io.formats import RASTER, bare_name, is_labelled_image, is_picture
from recap.types import Sample

# The files by which a saved detector, and a folder of results, are known.
_OUTPUTS = (("bundle.json",), ("scores.csv", "manifest.json"))
_SHARD_FILES = (re.compile(r"scores\.\d+-of-\d+\.csv"), re.compile(r"manifest\.\d+-of-\d+\.json"))
# Of an image with several lesions some data sets have several masks: x_mask, x_mask_1, x_mask_2.
_MASK_ENDING = re.compile(r"[_-]mask([_-]?[0-9]+)?$")
_MASK_FOLDERS = ("masks", "anomaly_mask", "label")
# Folders whose images are of another kind than those they would be listed with.
_OTHERS = {
    "normal": ("abnormal", "ungood", *_MASK_FOLDERS),
    "abnormal": ("normal", "good", *_MASK_FOLDERS),
}
_PICTURES = " ".join(RASTER.suffixes)
_OWN_FOLDER = "Move masks to a folder of their own, and name it with --masks."


def is_output(folder: Path) -> bool:
    """Tell whether a folder is a detector or holds results, whose pictures are not to work on."""
    # Not is_file, which fails in a folder that cannot be read; entering that tells.
    if any(all(os.access(folder / name, os.F_OK) for name in names) for names in _OUTPUTS):
        return True
    # Listing every folder once more is slow on network drives; results have their pictures there.
    return os.access(folder / "overlays", os.F_OK) and _holds_shards(folder)


def _holds_shards(folder: Path) -> bool:
    """Tell whether tables of shards lie here that were never joined."""
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError:
        return False
    return all(any(known.fullmatch(name) for name in names) for known in _SHARD_FILES)


def is_no_output(folder: Path) -> bool:
    """Tell whether a folder below the one that was named is to be entered."""
    return not is_output(folder)


def walk(
    root: Path,
    leave_out: Iterable[Path] = (),
    enter: Callable[[Path], bool] = is_no_output,
) -> Iterator[Path]:
    """Yield visible files; linked folders are followed, but none is entered twice.

    Folders below `root` that are to be left out are not entered at all, nor are those that `enter`
    refuses. A folder that cannot be read is an error: passing it over would lose images without a
    word.
    """
    for folder, files in _visits(Path(root), leave_out, enter):
        yield from (folder / each for each in files if not each.startswith("."))


def walk_folders(root: Path) -> Iterator[Path]:
    """Yield a folder and all those in which `walk` looks for files."""
    for folder, _ in _visits(Path(root), (), is_no_output):
        yield folder


def _visits(
    root: Path, leave_out: Iterable[Path], enter: Callable[[Path], bool]
) -> Iterator[tuple[Path, list[str]]]:
    """Folders, and the names of the files in each."""
    seen = {folder.resolve() for folder in leave_out} - {root.resolve()}
    # Links come after all real folders, so that what both lead to has its real name.
    starts = deque([root])
    while starts:
        start = starts.popleft()
        if start.resolve() in seen:
            continue
        for name, subfolders, files in os.walk(start, onerror=_refuse_folder):
            folder = Path(name)
            seen.add(folder.resolve())
            visible = [folder / each for each in sorted(subfolders) if not each.startswith(".")]
            new = [each for each in visible if each.resolve() not in seen and enter(each)]
            starts += [each for each in new if each.is_symlink()]
            subfolders[:] = [each.name for each in new if not each.is_symlink()]
            yield folder, files


def _refuse_folder(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        return
    raise InputError(
        f"{error.filename}: this folder cannot be read ({error.strerror}). Allow it or move it."
    ) from error


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
    """Find images named as another with _mask or -mask behind it; each with that other."""
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


@dataclass(frozen=True)
class MaskPairs:
    """Images and masks matched by name, with all that could not be matched."""

    matched: dict[Path, Path]
    unmatched: list[Path]
    ambiguous: dict[Path, list[Path]]
    """Images with several masks, or that share their name and mask with another image."""
    orphans: list[Path]


def natural_key(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Sort key that puts slice 2 before slice 10, the full path breaking ties."""
    parts = re.split(r"([0-9]+)", str(path).casefold())
    numbered = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part]
    return numbered, str(path)


def list_images(path: Path) -> list[Path]:
    """List the image files under a folder, naturally sorted; a file stands for itself."""
    return _list(Path(path), is_labelled_image, f"pictures ({_PICTURES}) and DICOM")


def list_masks(path: Path) -> list[Path]:
    """List the pictures under a folder of masks, naturally sorted."""
    return _list(Path(path), is_picture, _PICTURES)


def pair_masks(images: Sequence[Path], masks: Sequence[Path]) -> MaskPairs:
    """Find each image's mask: its name, or that with _mask or -mask behind it, suffixes apart.

    A number may follow: of several such masks each marks a part, which makes them ambiguous.
    """
    by_name: dict[str, list[Path]] = defaultdict(list)
    for mask in masks:
        name = bare_name(mask)
        for owner in dict.fromkeys((name, owner_name(name))):  # an image may end in _mask, too
            by_name[owner].append(mask)
    names = [bare_name(image) for image in images]
    shared = Counter(names)
    pairs = MaskPairs({}, [], {}, [])
    claimed: set[Path] = set()
    for image, name in zip(images, names, strict=True):
        found = by_name.get(name, [])
        claimed.update(found)
        if not found:
            pairs.unmatched.append(image)
        elif len(found) > 1 or shared[name] > 1:
            pairs.ambiguous[image] = found
        else:
            pairs.matched[image] = found[0]
    pairs.orphans.extend(mask for mask in masks if mask not in claimed)
    return pairs


def match_masks(images: Sequence[Path], masks: Path) -> dict[Path, Path]:
    """Match every image to its mask in a folder; whatever does not fit is an error."""
    files = list_masks(masks)
    _refuse_equal_names(files, "masks")
    _refuse_equal_names(images, "images")
    pairs = pair_masks(images, files)
    for image, found in pairs.ambiguous.items():
        raise InputError(
            f"{image}: has {len(found)} masks ({name_some(found)}). Merge them into one picture, "
            "or keep one."
        )
    if pairs.unmatched:
        raise InputError(
            f"{masks}: no mask for {len(pairs.unmatched)} of {len(images)} images "
            f"({name_some(pairs.unmatched)}). A mask has its image's name, or that name and _mask. "
            "Where some images have none, list all of them in a .csv manifest."
        )
    if pairs.orphans:
        raise InputError(
            f"{masks}: {counted(len(pairs.orphans), 'mask')} without an image "
            f"({name_some(pairs.orphans)}). Add what is missing, or remove the rest."
        )
    return pairs.matched


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
            f"Listed as normal and as abnormal: {counted(len(both), 'image')} "
            f"({name_some(sorted(both))}). Each image can be one only."
        )
    for given, files, kind in ((normal, healthy, "normal"), (abnormal, diseased, "abnormal")):
        if isinstance(given, str | Path):
            refuse_other_kind(Path(given), files, kind)
        refuse_masks_among(files, _OWN_FOLDER)
    _refuse_copies([*healthy, *diseased])
    found = {} if masks is None else match_masks(diseased, Path(masks))
    return [Sample(path, abnormal=False, domain=domain) for path in healthy] + [
        Sample(path, abnormal=True, mask=found.get(path), domain=domain) for path in diseased
    ]


def _refuse_copies(files: Sequence[Path]) -> None:
    """One image under two names would count twice, or teach its opposite."""
    sizes = {file: file.stat().st_size for file in files if file.is_file()}
    shared = Counter(sizes.values())
    first: dict[str, Path] = {}
    for file, size in sizes.items():
        if size == 0 or shared[size] == 1:  # reading an empty file will tell
            continue
        digest = sha256_of(file)
        if digest in first:
            raise InputError(
                f"{file} and {first[digest]} are the same image. Every image counts once, as "
                "normal or as abnormal: remove one."
            )
        first[digest] = file


def name_some(paths: Sequence[Path]) -> str:
    """Name a few files for an error message."""
    return some([path.name for path in paths])


def _list(path: Path, wanted: Callable[[Path], bool], in_words: str) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: {not_there(path, 'file or folder')}")
    found = [file for file in walk(path) if wanted(file)]
    if not found:
        raise InputError(f"{path}: no images in this folder. Looked for {in_words}.")
    return sorted(found, key=natural_key)


def _refuse_equal_names(files: Sequence[Path], kind: str) -> None:
    twice = {name for name, count in Counter(map(bare_name, files)).items() if count > 1}
    if twice:
        shown = name_some([file for file in files if bare_name(file) in twice])
        raise InputError(
            f"Several {kind} share a name ({shown}), so masks cannot be matched. Rename them."
        )


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
