"""What a file is, by its first bytes rather than by its name."""

from pathlib import Path
from typing import Literal

from recap.errors import InputError
from recap.io.reasons import not_there

Format = Literal["raster", "dicom", "nifti", "nrrd", "slide", "zip", "unknown"]

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_PREAMBLE = 128
_RASTER = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
# How long a BMP's second header may be: two letters alone are the start of many a text.
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)
# Slide formats whose main file is neither a TIFF nor found by its first bytes.
_SLIDE_SUFFIXES = (".mrxs", ".vms", ".vmu", ".czi")


def sniff(path: Path) -> Format:
    """Tell a file's format; "unknown" for what no reader takes, and for empty files."""
    head = _head(path)
    # First, because the preamble before the mark is free: some files are TIFF and DICOM in one.
    if head[_PREAMBLE:] == b"DICM":
        return "dicom"
    if head.startswith(_TIFF):
        return "slide" if _is_slide(path) else "raster"
    if head.startswith(_RASTER) or _is_bmp(head) or _is_webp(head):
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
    from recap.io.nifti import is_nifti, nifti_pair
    from recap.io.nrrd import is_nrrd

    if nifti_pair(path) or is_nifti(path):
        return "nifti"
    if is_nrrd(path):  # packed as a whole
        return "nrrd"
    return "dicom" if is_dicom(path) else "unknown"


def _is_bmp(head: bytes) -> bool:
    return head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADERS


def _is_webp(head: bytes) -> bool:
    return head[:4] == b"RIFF" and head[8:12] == b"WEBP"


def _is_slide(path: Path) -> bool:
    from importlib.util import find_spec

    # Without the extra a TIFF is a picture; a slide too large for that says so when it is read.
    if find_spec("openslide") is None:
        return False
    from recap.io.slide import is_slide

    return is_slide(path)


def _head(path: Path) -> bytes:
    try:
        # Opening a pipe would wait for ever; what is not there or a folder says so when opened.
        if not path.is_file() and not path.is_dir() and path.exists():
            raise InputError(f"{path}: neither a file nor a folder. Save its content as a file.")
        with path.open("rb") as stream:
            return stream.read(_PREAMBLE + 4)
    except FileNotFoundError as error:
        raise InputError(f"{path}: {not_there(path)}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: this is a folder, not a file.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
