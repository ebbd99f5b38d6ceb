"""How DICOM results of recap are told from images: by who made them."""

from recap.io.dicom_tags import Tags, text

MAKER = "recap"
MODEL = "recap-ad"
MAKER_KEYWORDS = ("Manufacturer", "ManufacturerModelName")


def is_own(header: Tags) -> bool:
    """Whether a data set is a result of recap rather than an image to look at."""
    return tuple(text(header, keyword) for keyword in MAKER_KEYWORDS) == (MAKER, MODEL)
