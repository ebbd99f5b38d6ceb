"""One opened DICOM file: its header, where its pixels lie, and its frames as stored.

Only the header is kept in memory; every frame is read and decoded when it is asked for. The file
is not believed: sizes are compared with the bytes there are before anything is set aside.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import DEFAULT_BUFFER_SIZE, BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import IO, Any, Literal

from numpy.typing import NDArray

from recap.errors import InputError, require
from recap.io.decoding import BUDGET, no_warnings, one_line_errors
from recap.io.dicom.display import Display, display_of
from recap.io.dicom.geometry import Plane, geometry_of, plane_of
from recap.io.dicom.header import frame_tags, integer, number, stated_number, text, why_no_picture
from recap.io.dicom.pixels import BIG, EXPORT_AGAIN, IMPLICIT, LITTLE, Layout, decode_frame
from recap.types import FloatArray, Geometry, Identity, Window

_PIXEL_KEYWORDS = {0x08: "FloatPixelData", 0x09: "DoubleFloatPixelData", 0x10: "PixelData"}
_FLOAT_BITS = {"FloatPixelData": 32, "DoubleFloatPixelData": 64}
_IDENTITY = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
_DICOMDIR = "1.2.840.10008.1.3.10"
_DEFLATED = "1.2.840.10008.1.2.1.99"
_MAX_INFLATED = 2**31
_MAX_SCANNED = 2**22
"""How far into a deflated file names are looked for; they stand at its beginning."""


@dataclass(frozen=True, eq=False)
class DicomFile:
    """The header of a file, and the way to its frames."""

    path: Path
    header: Any
    """A pydicom dataset; its values are converted when asked for, so only inside `careful`."""
    layout: Layout
    inflated: bytes | None = None
    """The whole data set of a deflated file, in which no frame can be found otherwise."""

    def stored(self, number: int) -> NDArray[Any]:
        """One frame as stored, (rows, columns) or RGB (rows, columns, 3)."""
        room = BUDGET.room(self.layout.decoding_bytes, str(self.path))
        with careful(self.path), room, self._stream() as stream:
            return decode_frame(stream, self.layout, number, str(self.path))

    def unit(self, number: int, window: Window | None) -> FloatArray:
        """One frame in 0..1, through a given window or else through what the file says."""
        with BUDGET.room(self.layout.showing_bytes, str(self.path)):
            return self.display(number).unit(self.stored(number), window)

    def display(self, number: int) -> Display:
        """Read how one frame is to be shown."""
        with careful(self.path):
            return display_of(
                frame_tags(self.header, number),
                self.layout.photometric,
                self.layout.bits_stored,
                self.header.original_encoding[1],
            )

    def geometry(self, number: int) -> Geometry:
        """Read where one frame lies in the patient."""
        with careful(self.path):
            return geometry_of(frame_tags(self.header, number))

    def planes(self) -> list[Plane | None]:
        """The planes of all frames."""
        with careful(self.path):
            frames = range(self.layout.frames)
            return [plane_of(frame_tags(self.header, number)) for number in frames]

    def identity(self) -> Identity:
        """Read whom and what the file shows."""
        with careful(self.path):
            return Identity(*(text(self.header, keyword) for keyword in _IDENTITY))

    def name(self, number: int) -> str:
        """Name a frame."""
        return str(self.path) if self.layout.frames == 1 else f"{self.path}[{number}]"

    def _stream(self) -> IO[bytes]:
        return _Stream(self.path) if self.inflated is None else BytesIO(self.inflated)


@contextmanager
def careful(path: Path) -> Iterator[None]:
    """Keep pydicom's warnings from the user, and turn its errors into one `InputError`."""
    with one_line_errors(path, "DICOM file"), no_warnings:
        yield


def open_file(path: Path) -> DicomFile:
    """Read a file's header and check that its pixels can be there."""
    with careful(path), _Stream(path) as stream:
        inflated = _inflated(stream, str(path))
        if inflated is None:
            header = _read_header(stream)
            return DicomFile(path, header, _layout(header, stream, str(path)))
        unpacked = BytesIO(inflated[1])
        header = _read_inflated(unpacked, inflated[0])
        return DicomFile(path, header, _layout(header, unpacked, str(path)), inflated[1])


def scan_header(path: Path, keywords: list[str]) -> tuple[Any, bool]:
    """These values of a file's header, and whether pixels follow it; inside of `careful`."""
    with _Stream(path) as stream:
        inflated = _inflated(stream, str(path))
        if inflated is None:
            header = _read_header(stream, keywords)
            return header, _pixel_element(stream, *header.original_encoding) is not None
        unpacked = BytesIO(inflated[1])
        header = _read_inflated(unpacked, inflated[0])
        return header, _pixel_element(unpacked, False, True) is not None


def scan_bytes(data: bytes, keywords: list[str]) -> Any:
    """These values of a file that is not on disk; whatever is wrong with it may raise anything.

    Of a deflated file no more is unpacked than it takes: whoever sent it may not be believed.
    """
    stream = BytesIO(data)
    with no_warnings:
        meta = _meta_if_deflated(stream)
        if meta is None:
            return _read_header(stream, keywords)
        unpacked = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stream.read(), _MAX_SCANNED)
        return _read_inflated(BytesIO(unpacked), meta, keywords)


def read_whole(path: Path, force: bool = False) -> Any:
    """All of a file as pydicom has it, pixels and all, but for the limit on what is unpacked.

    With `force` also without the mark of a DICOM file.
    """
    pydicom = require("pydicom", "dicom")
    with careful(path), _Stream(path) as stream:
        inflated = _inflated(stream, str(path))
        if inflated is None:
            stream.seek(0)
            return pydicom.dcmread(stream, force=force)
        content = require("pydicom.filereader", "dicom").read_dataset(
            BytesIO(inflated[1]), False, True
        )
        return pydicom.FileDataset(
            path, content, bytes(128), inflated[0], is_implicit_VR=False, is_little_endian=True
        )


class _Stream(BufferedReader):
    """A file that does not set memory aside for more bytes than it has."""

    def __init__(self, path: Path) -> None:
        super().__init__(FileIO(path))
        self._size = path.stat().st_size

    def read(self, size: int | None = -1) -> bytes:
        """Never more than is left of the file: a damaged length may ask for gigabytes."""
        if size is not None and size > DEFAULT_BUFFER_SIZE:
            size = min(size, max(0, self._size - self.tell()))
        return super().read(size)


def _read_header(stream: IO[bytes], keywords: list[str] | None = None) -> Any:
    """Parse up to the pixels; the stream then stands at their element, or at its end."""
    pydicom = require("pydicom", "dicom")
    stream.seek(0)
    return pydicom.dcmread(stream, stop_before_pixels=True, force=True, specific_tags=keywords)


def _meta_if_deflated(stream: IO[bytes]) -> Any | None:
    """The file meta of a deflated file, behind which the stream then stands.

    It is parsed, however long: whoever pads it could otherwise have pydicom unpack the rest.
    """
    reader = require("pydicom.filereader", "dicom")
    stream.seek(0)
    reader.read_preamble(stream, True)
    meta = reader.read_dataset(stream, False, True, stop_when=lambda tag, *_: tag.group != 2)
    return meta if text(meta, "TransferSyntaxUID") == _DEFLATED else None


def _inflated(stream: IO[bytes], source: str) -> tuple[Any, bytes] | None:
    """File meta and unpacked data set of a deflated file; pydicom would unpack without a limit."""
    meta = _meta_if_deflated(stream)
    if meta is None:
        return None
    # Nothing tells how much it is before it is unpacked; pydicom keeps parts of it beside it.
    most = min(_MAX_INFLATED, BUDGET.limit_bytes // 2)
    with BUDGET.room(most, source):
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stream.read(), most + 1)
    if len(data) > most:
        raise InputError(
            f"{source}: unpacks to more than {most >> 20} MB, the most that is read.",
            code="too_large",
            path=source,
        )
    return meta, data


def _read_inflated(stream: IO[bytes], meta: Any, keywords: list[str] | None = None) -> Any:
    reader = require("pydicom.filereader", "dicom")
    tag_of = require("pydicom.tag", "dicom").Tag
    wanted = None if keywords is None else [tag_of(keyword) for keyword in keywords]

    def is_behind(tag: Any, *_: Any) -> bool:
        if wanted is None:
            return bool(tag.group == 0x7FE0 and tag.elem >= 8)
        return bool(tag > max(wanted))  # what was unpacked may end anywhere behind these

    header = reader.read_dataset(stream, False, True, stop_when=is_behind, specific_tags=wanted)
    header.file_meta = meta
    header.set_original_encoding(False, True)
    return header


def _layout(header: Any, stream: IO[bytes], source: str) -> Layout:
    element = _pixel_element(stream, *header.original_encoding)
    if element is None:
        raise InputError(f"{source}: {why_no_pixels(header)}", path=source)
    if reason := why_no_picture(header):
        raise InputError(f"{source}: {reason}", path=source)
    keyword, vr, length = element
    start = stream.tell()
    left = stream.seek(0, 2) - start
    samples = integer(header, "SamplesPerPixel") or 1
    allocated = _FLOAT_BITS.get(keyword) or integer(header, "BitsAllocated")
    high_bit = number(header, "HighBit") if keyword == "PixelData" else None
    frames = integer(header, "NumberOfFrames")
    if length is None and frames < 1:  # compressed frames do not tell how many they are
        stated_number(header, "NumberOfFrames")
    layout = Layout(
        syntax=_syntax(header),
        keyword=keyword,
        vr=vr,
        start=start,
        length=left if length is None else min(length, left),
        encapsulated=length is None,
        rows=integer(header, "Rows"),
        columns=integer(header, "Columns"),
        frames=max(1, frames),
        samples=samples,
        bits_allocated=allocated,
        bits_stored=integer(header, "BitsStored") or allocated,
        signed=integer(header, "PixelRepresentation") == 1,
        planar=integer(header, "PlanarConfiguration") == 1,
        photometric=_photometric(header, samples),
        extended_offsets=_extended_offsets(header),
        high_bit=None if high_bit is None else int(high_bit),
    )
    layout.check(source)
    if frames < 1:
        layout.check_single(source)
    return layout.corrected()


def why_no_pixels(header: Any) -> str:
    """Explain why a data set without pixels is not an image."""
    if is_directory(header):
        return "a DICOMDIR lists images but holds none. Name the folder that it stands in."
    if not len(header):
        return f"this is not a DICOM file, or a damaged one. {EXPORT_AGAIN}"
    if integer(header, "Rows"):
        return f"the file ends before its pixels. {EXPORT_AGAIN}"
    kind = text(header, "Modality") or text(header, "SOPClassUID") or "no modality named"
    return (
        f"holds no pixels ({kind}), so there is nothing to look at. Leave it out, or copy it again "
        "if it should be an image."
    )


def is_directory(header: Any) -> bool:
    """Tell whether a data set is the table of contents of a medium."""
    return text(getattr(header, "file_meta", {}), "MediaStorageSOPClassUID") == _DICOMDIR


def _photometric(header: Any, samples: int) -> str:
    named = text(header, "PhotometricInterpretation").upper()
    grey = named in ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR")
    if samples == 1:
        return named if grey else "MONOCHROME2"
    return "RGB" if grey or not named else named


def _pixel_element(
    stream: IO[bytes], implicit: bool, little: bool
) -> tuple[str, str, int | None] | None:
    """Keyword, VR and length (None if undefined) of the element that the stream stands at."""
    order: Literal["little", "big"] = "little" if little else "big"
    head = stream.read(8)
    group, element = (int.from_bytes(head[i : i + 2], order) for i in (0, 2))
    if len(head) < 8 or group != 0x7FE0 or element not in _PIXEL_KEYWORDS:
        return None
    vr = head[4:6].decode("latin-1")
    if implicit or not vr.isupper():  # some writers go over to implicit half-way
        vr, length = "OW", int.from_bytes(head[4:], order)
    else:
        length = int.from_bytes(stream.read(4), order)
    return _PIXEL_KEYWORDS[element], vr, None if length == 0xFFFFFFFF else length


def _syntax(header: Any) -> str:
    """The transfer syntax; a file without one is not compressed."""
    named = text(getattr(header, "file_meta", {}), "TransferSyntaxUID")
    implicit, little = header.original_encoding
    if named == _DEFLATED:
        return LITTLE
    return named or (IMPLICIT if implicit else LITTLE if little else BIG)


def _extended_offsets(header: Any) -> tuple[bytes, bytes] | None:
    tables = header.get("ExtendedOffsetTable"), header.get("ExtendedOffsetTableLengths")
    if all(isinstance(table, bytes) and table for table in tables):
        return tables
    return None
