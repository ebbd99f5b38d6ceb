"""Any file to images: the one place that knows all readers."""

from pathlib import Path

from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.case import Case
from recap.io.raster import read_raster
from recap.io.sniff import Format, sniff
from recap.types import Image

_DEFAULT = ReadingSettings()
_SUFFIXES: dict[Format, tuple[str, ...]] = {
    "dicom": (".dcm", ".dicom", ".ima"),
    "nifti": (".nii", ".nii.gz", ".hdr", ".hdr.gz"),
    "nrrd": (".nrrd", ".nhdr"),
    "slide": (".svs", ".ndpi", ".scn"),
}


def read_image(path: str | Path, reading: ReadingSettings = _DEFAULT) -> Image:
    """Read a file that holds one image: a picture or a single DICOM frame."""
    path = Path(path)
    case = open_file(path, reading)
    if len(case.images) != 1:
        raise InputError(
            f"{path}: holds {len(case.images)} images, not one. Score it as a whole with "
            "`recap score`, or open it with recap.io.open_file() and take the one you need."
        )
    return case.images[0]


def open_file(path: str | Path, reading: ReadingSettings = _DEFAULT) -> Case:
    """Open a file of any format; its images are decoded when they are asked for."""
    path = Path(path)
    found = sniff(path)
    match _named_for(path) if found == "unknown" else found:
        case "dicom" if found == "unknown":
            raise InputError(
                f"{path}: this is not a DICOM file, or a damaged one. Copy or export it again."
            )
        case "dicom":
            from recap.io.dicom import open_dicom

            return open_dicom(path, reading)
        case "nifti":
            from recap.io.nifti import read_nifti
            from recap.io.volume_case import volume_case

            return volume_case(read_nifti(path, reading.axis), reading)
        case "nrrd":
            from recap.io.nrrd import read_nrrd
            from recap.io.volume_case import volume_case

            return volume_case(read_nrrd(path, reading.axis), reading)
        case "slide":
            from recap.io.slide import open_slide

            return open_slide(path, reading)
        case "zip":
            raise InputError(f"{path}: a zip archive may hold many images. Unpack it first.")
        case _:
            image = read_raster(path)
            return Case("image", str(path), [image])


def _named_for(path: Path) -> Format:
    """For a file that no reader recognises: the format whose error message helps most."""
    if path.stat().st_size:
        for known, suffixes in _SUFFIXES.items():
            if path.name.lower().endswith(suffixes):
                return known
    return "raster"
