"""The values of a DICOM header, and what they say of the kind of file."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

_LONGEST, _LONGEST_NUMBER = 256, 16
# The functional groups in which enhanced files keep what others say at the top.
_GROUPS = (
    "PixelMeasuresSequence",
    "PlanePositionSequence",
    "PlaneOrientationSequence",
    "PixelValueTransformationSequence",
    "FrameVOILUTSequence",
)
MAKER = "recap"
MODEL = "recap-ad"
MAKER_KEYWORDS = ("Manufacturer", "ManufacturerModelName")
_WHOLE_SLIDE = "1.2.840.10008.5.1.4.1.1.77.1.6"
# What the third value of ImageType says of pictures that hold no tissue, or no more than others.
_BESIDE = {
    "LABEL": "the picture of a slide's label, not of tissue.",
    "OVERVIEW": "the picture of a slide's glass, not of tissue.",
    "THUMBNAIL": "a small copy of a slide, not an image of its own.",
}


class Tags(Protocol):
    """Anything that has values by keyword, as a pydicom data set does."""

    def get(self, keyword: str) -> Any:
        """The value, or None."""


@dataclass(frozen=True)
class LayeredTags:
    """Data sets of which the first that says something is right."""

    layers: tuple[Tags, ...]

    def get(self, keyword: str) -> Any:
        """The value, or None."""
        found = (_value(layer, keyword) for layer in self.layers)
        return next((value for value in found if value is not None), None)


def text(tags: Tags, keyword: str) -> str:
    """A value as one short printable line; several are joined as the file joins them."""
    value = _value(tags, keyword)
    if value is None or isinstance(value, bytes):
        return ""
    several = hasattr(value, "__iter__") and not isinstance(value, str)
    line = "\\".join(map(str, value)) if several else str(value)
    return "".join(filter(str.isprintable, line[:_LONGEST])).strip()


def numbers(tags: Tags, keyword: str) -> tuple[float, ...]:
    """All values as finite numbers; none if one of them is not."""
    return _as_numbers(_value(tags, keyword))


def _as_numbers(value: Any) -> tuple[float, ...]:
    if value is None or isinstance(value, bytes):
        return ()
    # What is too long for a number, or comes under the name of a text, is a string to pydicom.
    several = value.split("\\") if isinstance(value, str) else value
    try:
        found = tuple(map(float, several if hasattr(several, "__iter__") else [several]))
    except (TypeError, ValueError, OverflowError):
        return ()
    return found if all(map(math.isfinite, found)) else ()


def stated_number(tags: Tags, keyword: str) -> float | None:
    """A number without which the pixels would mean something else: None where the file names none.

    What it names and cannot be read raises, because it is not for us to guess it.
    """
    for layer in tags.layers if isinstance(tags, LayeredTags) else (tags,):
        try:
            value = layer.get(keyword)
        except Exception as error:  # pydicom parses a value when it is asked for it
            raise ValueError(f"its {keyword} is damaged") from error
        if value is None or (hasattr(value, "__len__") and not len(value)):
            continue
        if not (found := _as_numbers(value)):
            raise ValueError(f"its {keyword} is no number: {str(value)[:_LONGEST_NUMBER]!r}")
        return found[0]
    return None


def number(tags: Tags, keyword: str) -> float | None:
    """The first value as a finite number."""
    found = numbers(tags, keyword)
    return found[0] if found else None


def integer(tags: Tags, keyword: str) -> int:
    """The first value as a whole number, or 0."""
    return int(number(tags, keyword) or 0)


def items(tags: Tags, keyword: str) -> list[Any]:
    """The items of a sequence."""
    value = _value(tags, keyword)
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return []
    return [item for item in value if hasattr(item, "get")]


def frame_tags(header: Any, frame: int) -> Tags:
    """Collect the tags of one frame: its own functional groups, the shared ones, the top."""
    groups = (
        _item(header, "PerFrameFunctionalGroupsSequence", frame),
        _item(header, "SharedFunctionalGroupsSequence", 0),
    )
    layers = (_item(group, name, 0) for group in groups if group for name in _GROUPS)
    return LayeredTags((*(layer for layer in layers if layer), header))


def _item(tags: Tags, keyword: str, number: int) -> Any | None:
    """One item of a sequence: going through all of them for each frame would take for ever."""
    try:
        found = tags.get(keyword)[number]
    except Exception:  # none, too few, damaged: see below
        return None
    return found if hasattr(found, "get") else None


def _value(tags: Tags, keyword: str) -> Any:
    # pydicom parses a value when it is asked for it, and a damaged one may raise anything. What
    # cannot be parsed is as good as absent: the pixels may well be sound.
    try:
        return tags.get(keyword)
    except Exception:
        return None


def is_own(header: Tags) -> bool:
    """Tell whether a data set is a result of recap rather than an image to look at."""
    return tuple(text(header, keyword) for keyword in MAKER_KEYWORDS) == (MAKER, MODEL)


def why_beside_slide(header: Tags) -> str:
    """Explain why a file that belongs to a slide is no case; empty for all others."""
    kinds = _kinds(header)
    if "RESAMPLED" in kinds:
        return _BESIDE["THUMBNAIL"]
    return next((reason for kind, reason in _BESIDE.items() if kind in kinds), "")


def why_no_picture(header: Tags) -> str:
    """Explain why a file is not read: it has a slide's tiles for frames, or shows no tissue."""
    if _kinds(header) and integer(header, "NumberOfFrames") > 1:
        # Each tile would be an image, edges, background and all, without its place in the slide.
        return (
            "a whole slide in DICOM, which is not read. Convert it to a pyramidal TIFF, as libvips "
            "does: vips tiffsave FILE slide.tif --tile --pyramid"
        )
    return why_beside_slide(header)


def _kinds(header: Tags) -> list[str]:
    """The values of ImageType of a file of a slide, never none; of all others, none."""
    if text(header, "SOPClassUID") != _WHOLE_SLIDE:
        return []
    return text(header, "ImageType").upper().split("\\")
