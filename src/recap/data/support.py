"""The images a detector is fitted on: labelled, in memory, with what identifies them."""

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from recap.config import ReadingSettings
from recap.data.check import LOOKS_LIKE_MASK, MARKS_NOTHING, looks_like_mask
from recap.data.folder import folder_samples
from recap.data.supports import support_hashes
from recap.errors import InputError, counted
from recap.io import image_from_array, mask_from_array, read_image
from recap.io.raster import read_mask_of, refuse_one_image
from recap.io.resize import SquareResize
from recap.io.window import parse_window
from recap.types import CLASSES, BoolArray, Image, Sample

Picture = str | Path | np.ndarray | PillowImage.Image | Image
Pictures = str | Path | np.ndarray | Iterable[Picture]
"""A folder or file, or several files or arrays."""
Masks = str | Path | np.ndarray | Iterable[str | Path | np.ndarray | None]
THUMBNAIL_PX = 128
_AS_THE_FILE_SAYS = ReadingSettings()


@dataclass(frozen=True)
class SupportImage:
    """One labelled image with its mask, and the record that the bundle keeps of it."""

    image: Image
    abnormal: bool
    mask: BoolArray | None
    record: dict[str, str | None]


def load_support(
    samples: Sequence[Sample], reading: ReadingSettings = _AS_THE_FILE_SAYS
) -> list[SupportImage]:
    """Read labelled files."""
    parse_window(reading.window)  # pictures have no need of it, but what is scored later may
    loaded = []
    for sample, record in zip(samples, support_hashes(samples), strict=True):
        image = read_image(sample.path, reading)
        mask = None if sample.mask is None else read_mask_of(image, sample.mask)
        _refuse_empty(mask, f"{sample.mask}")
        _refuse_swapped(image, mask, f"{sample.path}")
        loaded.append(SupportImage(image, sample.abnormal, mask, record))
    return loaded


def gather_support(
    normal: Pictures,
    abnormal: Pictures | None = None,
    masks: Masks | None = None,
    reading: ReadingSettings = _AS_THE_FILE_SAYS,
) -> list[SupportImage]:
    """Support images from folders, lists of files, or lists of arrays."""
    parse_window(reading.window)
    given = [_listed(normal, "normal"), _listed(abnormal, "abnormal"), _listed(masks, "masks")]
    # A path alone stands for a folder; None for what is not given.
    each = [images if isinstance(images, list) else [images] for images in given]
    kinds = {isinstance(image, str | Path) for image in chain(*each) if image is not None}
    if len(kinds) == 2:
        raise InputError("Arrays and files cannot be mixed. Give lists of arrays throughout.")
    if kinds != {False}:
        return load_support(_file_samples(*given), reading)
    healthy = [_from_array(array, None, False, f"normal[{i}]") for i, array in enumerate(given[0])]
    diseased = given[1] or []
    marks = [None] * len(diseased) if given[2] is None else given[2]
    _one_each(diseased, marks)
    pairs = zip(diseased, marks, strict=True)
    support = healthy + [
        _from_array(array, mask, True, f"abnormal[{i}]") for i, (array, mask) in enumerate(pairs)
    ]
    _refuse_copies(support)
    return support


def _refuse_copies(support: Sequence[SupportImage]) -> None:
    """Arrays as files: one image given twice would count twice, or teach its opposite."""
    first: dict[tuple[str | None, tuple[int, int]], str | None] = {}
    for item in support:
        # A blank image of another shape has the same bytes.
        key, name = (item.record["sha256"], item.image.size_hw), item.record["name"]
        if key in first:
            raise InputError(
                f"{name} and {first[key]} are the same image. Every image counts once, as "
                "normal or as abnormal: remove one."
            )
        first[key] = name


def _listed(given: Any, name: str) -> Any:
    """A path as it is; anything else as a list, which can be looked at and gone through again."""
    if given is None and name != "normal":
        return None
    if isinstance(given, str | Path):
        return given
    if isinstance(given, Image | PillowImage.Image) or not isinstance(given, Iterable):
        raise InputError(
            f"{name}: give a folder, or a list of files or of arrays, not a value of type "
            f"{type(given).__name__}."
        )
    refuse_one_image(given, name)
    return list(given)


def _file_samples(normal: Any, abnormal: Any, masks: Any) -> list[Sample]:
    if not isinstance(masks, list):
        return folder_samples(normal, abnormal, None if masks is None else Path(masks))
    if not isinstance(abnormal, list):
        raise InputError("A list of masks needs a list of abnormal images in the same order.")
    _one_each(abnormal, masks)
    samples = folder_samples(normal, abnormal)
    diseased = [sample for sample in samples if sample.abnormal]
    if len(diseased) != len(masks):
        raise InputError("A list of masks needs a list of files, each image once, not of folders.")
    healthy = [sample for sample in samples if not sample.abnormal]
    pairs = zip(diseased, masks, strict=True)
    return healthy + [
        sample if mask is None else replace(sample, mask=Path(mask)) for sample, mask in pairs
    ]


def _one_each(diseased: Sequence[Any], masks: Sequence[Any]) -> None:
    if len(masks) != len(diseased):
        raise InputError(
            f"{counted(len(diseased), 'abnormal image')} but {counted(len(masks), 'mask')}. Give "
            "one each."
        )


def stack_support(support: Sequence[SupportImage], size_px: int) -> tuple[Tensor, Tensor]:
    """Pixels (N, 3, S, S) in 0..1 and masks (N, S, S) at the encoder's input size."""
    pixels, masks = [], []
    for item in support:
        resize = SquareResize(item.image.size_hw, size_px)
        pixels.append(torch.from_numpy(resize.apply(item.image.pixels)).permute(2, 0, 1))
        mask = (
            np.zeros((size_px, size_px), bool)
            if item.mask is None
            else resize.apply_mask(item.mask)
        )
        masks.append(torch.from_numpy(np.ascontiguousarray(mask)))
    return torch.stack(pixels), torch.stack(masks)


def support_records(support: Sequence[SupportImage]) -> list[dict[str, Any]]:
    """List what the bundle keeps of each support image, its size among it."""
    return [{**item.record, "size_hw": list(item.image.size_hw)} for item in support]


def spread_over(count: int, most: int) -> list[int]:
    """Numbers of at most `most` of `count` images, evenly spread over them all."""
    chosen = min(count, most)
    return [number * count // chosen for number in range(chosen)]


def supervised_maps(support: Sequence[SupportImage]) -> list[bool]:
    """Mark whose maps are supervised: abnormal images with a mask and, if any, the normals."""
    with_masks = any(item.mask is not None for item in support)
    return [item.mask is not None or (with_masks and not item.abnormal) for item in support]


def thumbnails(support: Sequence[SupportImage]) -> dict[int, bytes]:
    """Small 8-bit pictures (PNG) of the normal images, by their number in the bundle's list."""
    normal = [item.image for item in support if not item.abnormal]  # first in the list, as given
    made = {}
    for number, image in enumerate(normal):
        levels = (np.clip(image.pixels, 0, 1) * 255).round().astype(np.uint8)
        picture = PillowImage.fromarray(levels)
        picture.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG", optimize=True)
        made[number] = buffer.getvalue()
    return made


def _from_array(array: Any, mask: Any, abnormal: bool, name: str) -> SupportImage:
    image = array if isinstance(array, Image) else image_from_array(array, name)
    digest = hashlib.sha256(np.ascontiguousarray(image.pixels).tobytes()).hexdigest()
    lesion = None if mask is None else mask_from_array(mask, f"{name}, its mask")
    if lesion is not None and lesion.shape != image.size_hw:
        raise InputError(f"{name}: its mask has shape {lesion.shape}, the image {image.size_hw}.")
    _refuse_empty(lesion, f"{name}, its mask")
    _refuse_swapped(image, lesion, name)
    mask_digest = None if lesion is None else hashlib.sha256(lesion.tobytes()).hexdigest()
    record: dict[str, str | None] = {
        "name": name,
        "label": CLASSES[abnormal],
        "sha256": digest,
        "mask_sha256": mask_digest,
    }
    return SupportImage(image, abnormal, lesion, record)


def _refuse_empty(mask: BoolArray | None, name: str) -> None:
    """A lesion that is marked nowhere would teach that it is healthy tissue."""
    if mask is not None and not mask.any():
        raise InputError(
            f"{name}: {MARKS_NOTHING}. Mark the lesion, or leave the image out; without lesions it "
            "is a normal image."
        )


def _refuse_swapped(image: Image, mask: BoolArray | None, name: str) -> None:
    """Folders named the wrong way round would fit on masks, with pictures for their lesions."""
    if mask is not None and looks_like_mask(image):
        raise InputError(f"{name}: {LOOKS_LIKE_MASK}")
