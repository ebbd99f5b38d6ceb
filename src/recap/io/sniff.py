"""What a file is, by its first bytes rather than by its name."""

from pathlib import Path
from typing import Literal

from recap.errors import InputError

Format = Literal["raster", "dicom", "nifti", "nrrd", "slide", "zip", "unknown"]

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_RASTER = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM")
# Slide formats whose main file is neither a TIFF nor found by its first bytes.
_SLIDE_SUFFIXES = (".mrxs", ".vms", ".vmu", ".czi")


def sniff(path: Path) -> Format:
    """Tell a file's format; "unknown" for what no reader takes, and for empty files."""
    head = _head(path)
    if head.startswith(_TIFF):
        return "slide" if _is_slide(path) else "raster"
    if head.startswith(_RASTER) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return "slide" if path.suffix.lower() in _SLIDE_SUFFIXES else "raster"
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head.startswith(b"NRRD"):
        return "nrrd"
    if path.suffix.lower() in _SLIDE_SUFFIXES:
        return "slide"
    return _by_parser(path)


def _by_parser(path: Path) -> Format:
    """Formats that take more than a few bytes to tell."""
    from recap.io.dicom import is_dicom
    from recap.io.nifti import is_nifti

    if is_nifti(path):
        return "nifti"
    return "dicom" if is_dicom(path) else "unknown"


def _is_slide(path: Path) -> bool:
    from importlib.util import find_spec

    # Without the extra a TIFF is a picture; a slide too large for that says so when it is read.
    if find_spec("openslide") is None:
        return False
    from recap.io.slide import is_slide

    return is_slide(path)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(16)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file.") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: this is a folder, not a file.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
