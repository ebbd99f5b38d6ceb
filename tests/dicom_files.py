"""Makes true DICOM files for tests, and finds real ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.data.data_manager import DATA_ROOT
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from registry_files import wheel_files

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
STUDY, SERIES = "1.2.826.0.1.3680043.8.498.1", "1.2.826.0.1.3680043.8.498.1.1"


def item(**tags: Any) -> Dataset:
    """A data set, or an item of a sequence."""
    dataset = Dataset()
    for keyword, value in tags.items():
        setattr(dataset, keyword, value)
    return dataset


def data_set(pixels: np.ndarray, **tags: Any) -> Dataset:
    """An image of (H, W), (N, H, W), (H, W, 3) or (N, H, W, 3); None leaves a tag out."""
    colour = pixels.ndim > 2 and pixels.shape[-1] == 3
    rows, columns = pixels.shape[-3:-1] if colour else pixels.shape[-2:]
    bits = pixels.dtype.itemsize * 8
    frames = pixels.ndim - (3 if colour else 2)
    all_tags = {
        "SOPClassUID": CTImageStorage,
        "SOPInstanceUID": generate_uid(),
        "StudyInstanceUID": STUDY,
        "SeriesInstanceUID": SERIES,
        "PatientID": "P1",
        "Modality": "OT",
        "SamplesPerPixel": 3 if colour else 1,
        "PhotometricInterpretation": "RGB" if colour else "MONOCHROME2",
        "PlanarConfiguration": 0 if colour else None,
        "NumberOfFrames": len(pixels) if frames else None,
        "Rows": rows,
        "Columns": columns,
        "BitsAllocated": bits,
        "BitsStored": bits,
        "HighBit": int(tags.get("BitsStored") or bits) - 1,
        "PixelRepresentation": int(pixels.dtype.kind == "i"),
        **tags,
    }
    dataset = item(**{keyword: value for keyword, value in all_tags.items() if value is not None})
    data = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
    if pixels.dtype.kind == "f":
        dataset.FloatPixelData = data
        for keyword in ("BitsStored", "HighBit", "PixelRepresentation"):
            delattr(dataset, keyword)
    else:
        dataset.PixelData = data + b"\0" * (len(data) % 2)
        dataset["PixelData"].VR = "OB" if bits == 8 else "OW"
    return dataset


def write(path: Path, dataset: Dataset, syntax: str = ExplicitVRLittleEndian) -> Path:
    """Save a data set as a DICOM file."""
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.file_meta.MediaStorageSOPClassUID = dataset.get("SOPClassUID", CTImageStorage)
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.get("SOPInstanceUID", "1.2.3")
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def save_dicom(path: Path, pixels: np.ndarray, **tags: Any) -> Path:
    """Save pixels as a DICOM file that is not compressed."""
    return write(path, data_set(pixels, **tags))


def save_compressed(path: Path, pixels: np.ndarray, syntax: str, **tags: Any) -> Path:
    """Save pixels as a compressed DICOM file (RLE, JPEG-LS or JPEG 2000)."""
    dataset = data_set(pixels, **tags)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.compress(syntax, generate_instance_uid=False)
    return write(path, dataset, syntax)


def table(values: Sequence[int], first: int, bits: int) -> Dataset:
    """A look-up table: the first value that it is for, and the bits of its entries."""
    entries = np.array(values, "<u2").tobytes()
    return item(LUTDescriptor=[len(values), first, bits], LUTData=entries, ModalityLUTType="US")


def place(
    position: Sequence[float],
    orientation: Sequence[float] = AXIAL,
    spacing: Sequence[float] = (1.0, 1.0),
) -> dict[str, list[float]]:
    """The tags that put a slice into the patient; the spacing is (row, column)."""
    return {
        "ImagePositionPatient": list(position),
        "ImageOrientationPatient": list(orientation),
        "PixelSpacing": list(spacing),
    }


def save_series(folder: Path, stack: np.ndarray, gap_mm: float = 2.0, **tags: Any) -> list[Path]:
    """An axial CT series (N, H, W) from the feet up; names and numbers are no help to sort it."""
    shuffled = np.random.default_rng(len(stack)).permutation(len(stack))
    return [
        save_dicom(
            folder / f"IM{number:04d}",
            pixels,
            **{
                "Modality": "CT",
                "InstanceNumber": int(number) + 1,
                "SOPInstanceUID": f"{SERIES}.{slice_number + 1}",
                **place((-10.0, -20.0, -30.0 + gap_mm * slice_number)),
                **tags,
            },
        )
        for slice_number, (number, pixels) in enumerate(zip(shuffled, stack, strict=True))
    ]


def save_enhanced(path: Path, stack: np.ndarray, positions: Sequence[Sequence[float]]) -> Path:
    """An enhanced CT file: what others say at the top is in its functional groups."""
    shared = item(
        PixelMeasuresSequence=[item(PixelSpacing=[0.5, 0.25], SliceThickness=3.0)],
        PlaneOrientationSequence=[item(ImageOrientationPatient=list(AXIAL))],
    )
    frames = [
        item(
            PlanePositionSequence=[item(ImagePositionPatient=list(position))],
            PixelValueTransformationSequence=[
                item(RescaleSlope=1, RescaleIntercept=-1000 + number, RescaleType="HU")
            ],
            FrameVOILUTSequence=[item(WindowCenter=0.5, WindowWidth=1001 + number)],
        )
        for number, position in enumerate(positions)
    ]
    return save_dicom(
        path,
        stack,
        Modality="CT",
        SOPClassUID="1.2.840.10008.5.1.4.1.1.2.1",
        SharedFunctionalGroupsSequence=[shared],
        PerFrameFunctionalGroupsSequence=frames,
    )


def pydicom_files() -> list[Path]:
    """The test files that come with pydicom; never the ones it would download."""
    root = Path(DATA_ROOT) / "test_files"
    return sorted(file for file in root.rglob("*") if file.is_file())


def pydicom_data_files() -> list[Path]:
    """Further test files of pydicom, out of the package registry."""
    return wheel_files("pydicom-data==1.0.0", (".dcm",))
