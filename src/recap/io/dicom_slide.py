"""Whole slides that come as DICOM files: one for each size, and pictures of the glass beside it."""

from recap.io.dicom_tags import Tags, integer, text

_WHOLE_SLIDE = "1.2.840.10008.5.1.4.1.1.77.1.6"
# What the third value of ImageType says of pictures that hold no tissue, or no more than others.
_BESIDE = {
    "LABEL": "the picture of a slide's label, not of tissue.",
    "OVERVIEW": "the picture of a slide's glass, not of tissue.",
    "THUMBNAIL": "a small copy of a slide, not an image of its own.",
}


def why_beside_slide(header: Tags) -> str:
    """Why a file that belongs to a slide is no case; empty for all others."""
    kinds = _kinds(header)
    if "RESAMPLED" in kinds:
        return _BESIDE["THUMBNAIL"]
    return next((reason for kind, reason in _BESIDE.items() if kind in kinds), "")


def why_no_picture(header: Tags) -> str:
    """Why a file is not read: it has a slide's tiles for frames, or shows no tissue."""
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
