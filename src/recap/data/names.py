"""Names of files without the suffix of their format, which an image and its mask do not share."""

from pathlib import Path

from recap.data.unread_formats import SUFFIXES as UNREAD_SUFFIXES

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"),
    *(".dcm", ".dicom", ".ima", ".nii", ".nii.gz", ".nrrd", ".nhdr"),
    *(".svs", ".ndpi", ".mrxs", ".scn"),
)
_KNOWN = (
    *IMAGE_SUFFIXES,
    *UNREAD_SUFFIXES,
    *(".hdr", ".img", ".hdr.gz", ".img.gz", ".bif", ".svslide", ".vms", ".vmu"),
)


def bare_name(path: Path) -> str:
    """A file's name without the suffix of a known format.

    Nothing else is cut off: DICOM files are often named by a UID, such as 1.2.840.10.
    """
    name = path.name
    found = [suffix for suffix in _KNOWN if name.lower().endswith(suffix) and name != suffix]
    return name[: -len(max(found, key=len))] if found else name
