"""One DICOM file as a case: a picture, a clip of frames, or a volume of slices."""

from io import BytesIO
from pathlib import Path

from recap.config import ReadingSettings
from recap.errors import InputError, RecapError, require
from recap.io.case import Case, DicomFrame, LazyImages
from recap.io.dicom_file import DicomFile, careful, open_file
from recap.io.dicom_geometry import Plane, why_no_grid
from recap.io.dicom_stack import Stack, stack_case
from recap.io.window import parse_window
from recap.types import Image, Window

_MAGIC, _MAGIC_AT = b"DICM", 128
# What a file without the magic word may start with: group 2 or 8, either byte order.
_FIRST_GROUPS = (b"\x02\0", b"\x08\0", b"\0\x02", b"\0\x08")
_PROBE_BYTES = 2**16


def is_dicom(path: Path) -> bool:
    """Tell by content, without reading more than a little; false for what cannot be opened."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_MAGIC_AT + len(_MAGIC))
            if head[_MAGIC_AT:] == _MAGIC:
                return True
            return head[:2] in _FIRST_GROUPS and _parses(head + stream.read(_PROBE_BYTES), path)
    except OSError:
        return False


def _parses(data: bytes, path: Path) -> bool:
    """Whether the beginning of a file without the magic word is a data set all the same."""
    try:
        with careful(path):
            pydicom = require("pydicom", "dicom")
            header = pydicom.dcmread(
                BytesIO(data),
                stop_before_pixels=True,
                force=True,
                specific_tags=["SOPClassUID", "Rows"],
            )
            return bool(header.get("SOPClassUID") or header.get("Rows"))
    except InputError:
        return False
    except RecapError:  # without pydicom the guess stands, and reading says what to install
        return True


def open_dicom(path: Path, reading: ReadingSettings) -> Case:
    """Open a file; its frames are decoded when they are asked for."""
    window = parse_window(reading.window)
    file = open_file(path)
    identity = file.identity()
    count = file.layout.frames
    if count > 1 and (stack := _stack_of(file)):
        return stack_case(stack, reading)
    return Case(
        kind="image" if count == 1 else "frames",
        source=str(path),
        images=LazyImages(count, lambda number: read_frame(file, number, window)),
        identity=identity,
        dicom_frames=[DicomFrame(path, number) for number in range(count)],
    )


def read_frame(file: DicomFile, number: int, window: Window | None) -> Image:
    """One frame as an image, through a given window or else through what the file says."""
    return Image(
        file.unit(number, window),
        file.name(number),
        file.geometry(number),
        file.identity(),
    )


def _stack_of(file: DicomFile) -> Stack | None:
    """The frames of a file as slices sorted by place, if they make a volume."""
    placed: list[tuple[float, int, Plane]] = []
    for number, plane in enumerate(file.planes()):
        if plane is None:
            return None
        placed.append((plane.place_mm, number, plane))
    placed.sort(key=lambda each: each[:2])
    planes = [plane for _, _, plane in placed]
    if why_no_grid(planes):
        return None
    return Stack(
        source=str(file.path),
        planes=planes,
        size_hw=(file.layout.rows, file.layout.columns),
        identity=file.identity(),
        frames=[DicomFrame(file.path, number) for _, number, _ in placed],
        pick=lambda slice_number: (file, placed[slice_number][1]),
    )
