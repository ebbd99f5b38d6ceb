"""Every format that is read: one table, and all questions about files that it answers.

A row says how a file is told by its content, what its name may end in, and which function opens it.
Another package adds a row of its own through the entry point group `recap.readers`: see "Adding a
format" in CONTRIBUTING.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from recap.config import ReadingSettings
from recap.errors import InputError, RecapError
from recap.io.case import Case
from recap.io.decoding import not_there
from recap.types import Image

ENTRY_POINTS = "recap.readers"
HEAD_BYTES = 132
"""How much of a file's beginning `FileFormat.starts` is shown."""
_DEFAULT = ReadingSettings()


@dataclass(frozen=True)
class FileFormat:
    """A row of the table.

    Args:
        name: What `sniff` calls it.
        title: What people call it.
        suffixes: Endings, in small letters, of files that are images of this format.
        read: Opens a file as a case; None where nobody reads it.
        starts: Tells it by its first bytes, or its path.
        parses: Tells it by more than that; asked only where no format is told by first bytes.
        parts: Further endings that its files have, which alone make no image.
        links: Endings of files that name other files, and are not taken from strangers.
        labelled: Its files are single images, to fit and to measure on.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    read: Callable[[Path, ReadingSettings], Case] | None
    starts: Callable[[bytes, Path], bool] = lambda head, path: False
    parses: Callable[[Path], bool] = lambda path: False
    parts: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    labelled: bool = False


def _starts_raster(head: bytes, path: Path) -> bool:
    # Two letters alone, as of a BMP, are the start of many a text.
    bmp = head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADERS
    webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    return bmp or webp or head.startswith((*_TIFF, b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"))


def _starts_slide(head: bytes, path: Path) -> bool:
    from importlib.util import find_spec

    if not head.startswith(_TIFF):
        return path.suffix.lower() in _SLIDES_BY_NAME
    # Without the extra a TIFF is a picture; a slide too large for that says so when it is read.
    if find_spec("openslide") is None:
        return False
    from recap.io.slide import is_slide

    return is_slide(path)


def _is_nifti(path: Path) -> bool:
    from recap.io.nifti import is_nifti, nifti_pair

    return nifti_pair(path) is not None or is_nifti(path)


def _is_nrrd(path: Path) -> bool:
    from recap.io.nrrd import is_nrrd

    return is_nrrd(path)


def _is_dicom(path: Path) -> bool:
    from recap.io.dicom.cases import is_dicom

    return is_dicom(path)


def _open_raster(path: Path, reading: ReadingSettings) -> Case:
    from recap.io.raster import read_raster

    return Case("image", str(path), [read_raster(path)])


def _open_dicom(path: Path, reading: ReadingSettings) -> Case:
    from recap.io.dicom.cases import is_dicom, open_dicom

    if not is_dicom(path):  # only named so; pydicom would make something of it
        raise InputError(
            f"{path}: this is not a DICOM file, or a damaged one.",
            path=path,
            remedy="Copy or export it again.",
        )
    return open_dicom(path, reading)


def _open_nifti(path: Path, reading: ReadingSettings) -> Case:
    from recap.io.case import volume_case
    from recap.io.nifti import read_nifti

    return volume_case(read_nifti(path, reading.axis), reading)


def _open_nrrd(path: Path, reading: ReadingSettings) -> Case:
    from recap.io.case import volume_case
    from recap.io.nrrd import read_nrrd

    return volume_case(read_nrrd(path, reading.axis), reading)


def _open_slide(path: Path, reading: ReadingSettings) -> Case:
    from recap.io.slide import open_slide

    return open_slide(path, reading)


def _refuse_zip(path: Path, reading: ReadingSettings) -> Case:
    raise InputError(
        f"{path}: a zip archive may hold many images.", path=path, remedy="Unpack it first."
    )


def _starts_unread(head: bytes, path: Path) -> bool:
    return head.startswith(_UNREAD) or (head[4:8] == b"ftyp" and head[8:12] in _UNREAD_BRANDS)


_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)
# Slides whose main file is neither a TIFF nor found by its first bytes.
_SLIDES_BY_NAME = (".mrxs", ".vms", ".vmu", ".czi")
_UNREAD = (
    *(b"GIF87a", b"GIF89a", b"8BPS", b"\x00\x00\x00\x0cJXL "),
    *(b"\x00\x00\x00\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"),  # JPEG 2000, boxed and bare
)
_UNREAD_BRANDS = (b"heic", b"heix", b"mif1", b"avif")

# In the order of asking: some files are TIFF and DICOM in one, and a TIFF may be a slide.
FORMATS = (
    FileFormat(
        "dicom",
        "DICOM",
        (".dcm", ".dicom", ".ima"),
        _open_dicom,
        starts=lambda head, path: head[128:] == b"DICM",
        parses=_is_dicom,
        labelled=True,
    ),
    FileFormat("zip", "zip", (), _refuse_zip, lambda head, path: head.startswith(b"PK\x03\x04")),
    FileFormat(
        "nrrd",
        "NRRD",
        (".nrrd", ".nhdr"),
        _open_nrrd,
        starts=lambda head, path: head.startswith(b"NRRD"),
        parses=_is_nrrd,
        links=(".nhdr",),
    ),
    FileFormat(
        "slide",
        "slides",
        (".svs", ".ndpi", ".mrxs", ".scn"),
        _open_slide,
        starts=_starts_slide,
        parts=(".bif", ".svslide", ".vms", ".vmu"),
        links=(".mrxs", ".vms", ".vmu"),
    ),
    FileFormat(
        "raster",
        "pictures",
        (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"),
        _open_raster,
        starts=_starts_raster,
        labelled=True,
    ),
    FileFormat(
        "nifti",
        "NIfTI",
        (".nii", ".nii.gz"),
        _open_nifti,
        parses=_is_nifti,
        parts=(".hdr", ".img", ".hdr.gz", ".img.gz"),
    ),
)
# A folder of images may hold notes, which nobody misses in the results. An image that is left out
# without a word would be missed, so these become cases that say why they failed.
UNREAD = FileFormat(
    "unread",
    "pictures in formats that nobody reads",
    (
        *(".gif", ".jp2", ".j2k", ".jpx", ".jxl", ".heic", ".heif", ".avif"),
        *(".pgm", ".ppm", ".pnm", ".tga", ".psd", ".exr", ".dng", ".mha", ".mhd"),
    ),
    read=None,
    starts=_starts_unread,
)
RASTER = next(row for row in FORMATS if row.name == "raster")


@cache
def all_formats() -> tuple[FileFormat, ...]:
    """The rows of this table, then those of other packages."""
    found = list(FORMATS)
    for point in entry_points(group=ENTRY_POINTS):
        row = _loaded(point)
        if row.name in (UNREAD.name, *(other.name for other in found)):
            raise InputError(
                f"The entry point '{point.value}' reads the format '{row.name}', which is there "
                "already.",
                remedy="Give it another name, or uninstall its package.",
            )
        found.append(row)
    return tuple(found)


def _loaded(point: EntryPoint) -> FileFormat:
    try:
        row = point.load()
    # Code of others, which may fail in any way.
    except Exception as error:
        raise InputError(
            f"The reader '{point.value}' cannot be loaded ({type(error).__name__}: {error}).",
            remedy="Repair or uninstall its package.",
        ) from error
    if isinstance(row, FileFormat) and row.read is not None:
        return row
    raise InputError(
        f"The entry point '{point.value}' is not a FileFormat with a function that reads.",
        remedy=f"Make it a row as those in {__name__}.",
    )


def sniff(path: Path) -> str:
    """Name a file's format by its content; "unknown" for what nobody reads, and empty files."""
    row = _row_of(path)
    return "unknown" if row is None else row.name


def _row_of(path: Path) -> FileFormat | None:
    head = _head(path)
    # Those of others last: as long as ours know the file, theirs may be broken.
    return _told(FORMATS, head, path) or _told(all_formats()[len(FORMATS) :], head, path)


def _told(rows: Sequence[FileFormat], head: bytes, path: Path) -> FileFormat | None:
    by_start = (row for row in rows if row.starts(head, path))
    by_parser = (row for row in rows if row.parses(path))
    return next(by_start, None) or next(by_parser, None)


def _head(path: Path) -> bytes:
    try:
        # Opening a pipe would wait for ever; what is not there or a folder says so when opened.
        if not path.is_file() and not path.is_dir() and path.exists():
            raise InputError(
                f"{path}: neither a file nor a folder.",
                path=path,
                remedy="Save its content as a file.",
            )
        with path.open("rb") as stream:
            return stream.read(HEAD_BYTES)
    except FileNotFoundError as error:
        raise InputError(f"{path}: {not_there(path)}", path=path) from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: this is a folder, not a file.", path=path) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).", path=path) from error


def open_file(path: str | Path, reading: ReadingSettings = _DEFAULT) -> Case:
    """Open a file of any format; its images are decoded when they are asked for."""
    path = Path(path)
    row = _row_of(path) or _named_for(path)
    assert row.read is not None
    return row.read(path, reading)


def _named_for(path: Path) -> FileFormat:
    """For a file that no reader recognises: the format whose error message helps most."""
    if path.stat().st_size:
        for row in all_formats():
            if path.name.lower().endswith((*row.suffixes, *row.parts)):
                return row
    return RASTER


def read_image(path: str | Path, reading: ReadingSettings = _DEFAULT) -> Image:
    """Read a file that holds one image: a picture or a single DICOM frame."""
    path = Path(path)
    case = open_file(path, reading)
    if len(case.images) != 1:
        raise InputError(
            f"{path}: holds {len(case.images)} images, not one.",
            path=path,
            remedy="Score it as a whole with `recap score`, or open it with recap.io.open_file() "
            "and take the one you need.",
        )
    return case.images[0]


def is_named_image(path: Path) -> bool:
    """Tell whether a file's name says that it is an image of a format that is read."""
    return path.name.lower().endswith(tuple(s for row in all_formats() for s in row.suffixes))


def is_unread_image(path: Path) -> bool:
    """Tell whether a file that no reader knows is an image all the same, by name or content."""
    if path.name.lower().endswith(UNREAD.suffixes):
        return True
    try:
        return UNREAD.starts(_head(path), path)
    except RecapError:
        return False


def is_picture(path: Path) -> bool:
    """Tell by its name whether a file is a picture, which masks must be."""
    return path.suffix.lower() in RASTER.suffixes


def is_labelled_image(path: Path) -> bool:
    """Tell whether a file is a single image to fit or measure on: by its name, else its content.

    An image of a format that nobody reads is one too: opening it tells so, and passing it over
    would fit or measure on fewer images than there are.
    """
    rows = [row for row in all_formats() if row.labelled]
    # Files whose name tells are not opened here: there may be very many.
    if path.suffix.lower() in {suffix for row in rows for suffix in row.suffixes}:
        return True
    # DICOMDIR is a table of contents, without pixels.
    if path.name == "DICOMDIR" or not path.is_file():
        return False
    try:
        return _row_of(path) in rows or is_unread_image(path)
    except RecapError:
        return False


@cache
def known_suffixes() -> tuple[str, ...]:
    """Every ending that a file of a known format may have, the longest first."""
    rows = (*all_formats(), UNREAD)
    found = {suffix for row in rows for suffix in (*row.suffixes, *row.parts)}
    return tuple(sorted(found, key=lambda suffix: (-len(suffix), suffix)))


def bare_name(path: Path) -> str:
    """A file's name without the ending of a known format, which image and mask do not share.

    Nothing else is cut off: DICOM files are often named by a UID, such as 1.2.840.10.
    """
    name = path.name
    found = (s for s in known_suffixes() if name.lower().endswith(s) and name.lower() != s)
    return name[: -len(next(found, ""))] or name
