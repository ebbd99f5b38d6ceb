"""Files without identity: pixels, geometry and how to show them are kept, and nothing else.

What is kept is listed; what nobody listed is gone. Names burnt into the pixels stay.
"""

import gzip
import io
import re
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from recap.errors import InputError, RecapError, is_full, require
from recap.io import open_file
from recap.io.decoding import BUDGET, no_warnings
from recap.io.dicom.file import read_whole
from recap.io.dicom.header import text
from recap.io.dicom.pixels import BIG, IMPLICIT, LITTLE
from recap.io.formats import is_named_image, sniff
from recap.io.nifti import nifti_pair
from recap.io.raster import read_raster
from recap.io.volume import open_unpacked
from recap.types import BoolArray

# The slices of one patient keep common UIDs, which nobody can lead back to the old ones.
_SALT = secrets.token_hex(16)
_UIDS = ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")
_OF_A_PATIENT = ("StudyInstanceUID", "SeriesInstanceUID")
_KEPT = {
    *("SOPClassUID", "Modality", "ImageType", "SeriesNumber", "InstanceNumber"),
    *("AcquisitionNumber", "TemporalPositionIdentifier", "EchoTime", "DiffusionBValue"),
    *("ImagePositionPatient", "ImageOrientationPatient", "SliceThickness", "SpacingBetweenSlices"),
    *("ImagerPixelSpacing", "EstimatedRadiographicMagnificationFactor"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
    *("PlanePositionSequence", "PlaneOrientationSequence"),
}
_PIXEL_GROUPS = (0x0028, 0x7FE0)
_TEXT_VRS = ("LO", "LT", "PN", "ST", "UC", "UR", "UT")
_NRRD_FIELDS = (
    *("type", "dimension", "sizes", "encoding", "endian", "space", "space dimension", "kinds"),
    *("space directions", "space origin", "spacings", "space units", "units", "centerings"),
    *("centers", "labels", "axis mins", "axis maxs", "thicknesses"),
)
# Where a NIfTI header has text (and the old header's unused fields), by its length.
_NIFTI_TEXT = {348: ((4, 36), (148, 252), (328, 344)), 540: ((240, 344), (500, 540))}


def deidentify_all(folder: Path) -> dict[Path, str]:
    """Clean all files of a folder; one that cannot be cleaned is removed, and told why."""
    failed: dict[Path, str] = {}
    for file in sorted(folder.iterdir()):
        if not file.exists():  # it went with the other half of its pair
            continue
        try:
            deidentify(file)
        except MemoryError:
            raise
        # A damaged file is answered with almost any exception, whose text may quote it.
        except Exception as error:
            if is_full(error):  # the file is good, and must not be missing from its series
                raise
            reason = f"cannot be de-identified ({type(error).__name__}). Copy or export it again."
            told = isinstance(error, RecapError)
            failed[file] = str(error) if told else f"{file}: {reason}"
        if file in failed:
            for half in nifti_pair(file) or (file,):
                half.unlink()
    return failed


def deidentify(path: Path) -> None:
    """Take everything out of a file that may say whom it shows, in place."""
    if nifti_pair(path) is not None:
        raise InputError(f"{path}: a volume in two files. Save it as one .nii file.")
    match sniff(path):
        case "raster":
            path.write_bytes(_clean_picture(path))
        case "dicom":
            _clean_dicom(path)
        case "nifti":
            path.write_bytes(_clean_nifti(path))
        case "nrrd":
            path.write_bytes(_clean_nrrd(path))
        case "slide":
            raise InputError(
                f"{path}: slides hold pictures of their labels, so they are not taken where "
                "uploads are de-identified."
            )
        case kind if kind not in ("unknown", "zip") or is_named_image(path):
            open_file(path)  # says what is wrong with it
            raise InputError(f"{path}: of a kind that cannot be de-identified. Save it as PNG.")
        case _:
            path.unlink()  # no image, so nobody needs it


def write_mask(path: Path, mask: BoolArray) -> None:
    """Put what a mask marks in its place, and nothing else that came with it."""
    path.write_bytes(_png(mask.astype(np.uint8) * 255))


def _clean_picture(path: Path) -> bytes:
    """Keep the pixels alone, exactly where they have 8 bits, or 16 in grey."""
    pixels = read_raster(path).pixels
    grey = pixels.ndim == 2
    with BUDGET.room(2 * pixels.nbytes, str(path)):
        pixels *= 65535 if grey else 255  # in place: a copy may take gigabytes
        np.rint(pixels, out=pixels)
        return _png(pixels.astype(np.uint16 if grey else np.uint8))


def _png(pixels: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    Pillow.fromarray(pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _clean_dicom(path: Path) -> None:
    pydicom = require("pydicom", "dicom")
    with no_warnings:
        source = read_whole(path, force=True)
        # Patients may share UIDs, and are told apart by their number, which is not kept.
        patient = text(source, "PatientID"), text(source, "IssuerOfPatientID")
        kept = _kept(source, pydicom, patient)
        for keyword in _OF_A_PATIENT:  # also where the file has none: see above
            setattr(kept, keyword, _new_uid(str(source.get(keyword) or ""), pydicom, patient))
        meta = pydicom.dataset.FileMetaDataset()
        # A file that names no transfer syntax is not compressed.
        implicit, little = source.original_encoding
        unnamed = IMPLICIT if implicit else LITTLE if little else BIG
        meta.TransferSyntaxUID = source.file_meta.get("TransferSyntaxUID") or unnamed
        # A DICOMDIR tells its kind in the file meta alone.
        kind = source.get("SOPClassUID") or source.file_meta.get("MediaStorageSOPClassUID")
        meta.MediaStorageSOPClassUID = kind or "1.2.840.10008.5.1.4.1.1.7"
        meta.MediaStorageSOPInstanceUID = kept.get("SOPInstanceUID", _new_uid("", pydicom, patient))
        kept.file_meta = meta
        kept.save_as(path, enforce_file_format=True)


def _kept(source: Any, pydicom: Any, patient: tuple[str, str]) -> Any:
    kept = pydicom.Dataset()
    for element in source:
        if element.keyword in _UIDS:
            setattr(kept, element.keyword, _new_uid(str(element.value or ""), pydicom, patient))
        elif not _is_kept(element):
            continue
        elif element.VR == "SQ":
            items = [_kept(item, pydicom, patient) for item in element.value]
            setattr(kept, element.keyword, pydicom.Sequence(items))
        else:
            kept.add(element)
    return kept


def _is_kept(element: Any) -> bool:
    if element.tag.is_private or element.VR in _TEXT_VRS:
        return False
    return element.tag.group in _PIXEL_GROUPS or element.keyword in _KEPT


def _new_uid(old: str, pydicom: Any, patient: tuple[str, str]) -> str:
    return str(pydicom.uid.generate_uid(entropy_srcs=[_SALT, *patient, old]))


def _clean_nifti(path: Path) -> bytes:
    """Keep the header without its texts, the extensions as zeros, and the voxels."""
    with open_unpacked(path) as stream:
        content = bytearray(stream.read())
    packed = path.read_bytes()[:2] == b"\x1f\x8b"
    length = 540 if 540 in (_number(content, "little"), _number(content, "big")) else 348
    for start, end in _NIFTI_TEXT[length]:
        content[start:end] = bytes(end - start)
    offset = _voxel_offset(content, length)
    content[length:offset] = bytes(max(0, offset - length))
    return gzip.compress(bytes(content), 1, mtime=0) if packed else bytes(content)


def _number(content: bytearray, order: Any) -> int:
    return int.from_bytes(content[:4], order)


def _voxel_offset(content: bytearray, length: int) -> int:
    order = "<" if _number(content, "little") == length else ">"
    at, kind = (108, "f4") if length == 348 else (168, "i8")
    value = np.frombuffer(content, order + kind, 1, at)[0]
    return int(min(max(float(value), 0.0), len(content)))


def _clean_nrrd(path: Path) -> bytes:
    """Keep the fields that describe the voxels, without comments and free keys."""
    with open_unpacked(path) as stream:
        content = stream.read()
    header, gap, voxels = content.partition(b"\n\n")
    if b"\r\n\r\n" in content[: len(header) + 4]:
        header, gap, voxels = content.partition(b"\r\n\r\n")
    magic, *lines = header.splitlines()
    kept = [line for line in lines if _is_nrrd_field(line)]
    return b"\n".join([magic, *kept]) + b"\n\n" + (voxels if gap else b"")


def _is_nrrd_field(line: bytes) -> bool:
    field = re.match(rb"([^#:]+):[^=]", line)
    return field is not None and field[1].decode("latin-1").strip().lower() in _NRRD_FIELDS
