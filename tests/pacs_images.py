"""Studies to send, and a stand-in for a detector that marks one pixel."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pydicom

from dicom_files import data_set, place
from recap.config import ReadingSettings
from recap.data.cases import Found, find_cases
from recap.io.case import Case
from recap.report.dicom.results import write_dicom_results
from recap.service.pacs.spool import Unscored
from recap.types import Prediction


def study(number: int, slices: int = 3, side: int = 8) -> list[pydicom.Dataset]:
    """The images of a small CT study."""
    root = f"1.2.826.0.1.3680043.8.498.{number}"
    rng = np.random.default_rng(number)
    images = []
    for index in range(slices):
        image = data_set(
            rng.integers(0, 900, (side, side)).astype(np.int16),
            StudyInstanceUID=root,
            SeriesInstanceUID=f"{root}.1",
            SOPInstanceUID=f"{root}.1.{index + 1}",
            FrameOfReferenceUID=f"{root}.9",
            Modality="CT",
            InstanceNumber=index + 1,
            PatientName="Secret^Person",
            PatientID="HIDDEN-4711",
            StudyID="1",
            StudyDate="20240102",
            SliceThickness=2.0,
            **place((0.0, 0.0, 2.0 * index)),
        )
        image.file_meta = pydicom.dataset.FileMetaDataset()
        image.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        images.append(image)
    return images


def mark(images: Path, results: Path) -> list[Unscored]:
    """Write results of every case in a folder, as a detector would."""
    search = find_cases([images], results.parent / "scratch")
    for number, found in enumerate(search.cases):
        case = found.open(ReadingSettings())
        write_dicom_results(case, marked(case), results / str(number))
    return []


def marked(case: Case) -> Prediction:
    """One pixel of the first image is abnormal; all of them are read, as a detector would."""
    maps = np.stack([np.zeros(image.size_hw, np.float32) for image in case.images])
    maps[0, 2, 3] = 0.9
    images = tuple(Prediction(float(map.max()), map) for map in maps)
    return images[0] if case.kind == "image" else Prediction(0.9, maps, images=images)


def predict_marks(detector: Any, sources: Iterable[Found]) -> Iterator[Any]:
    """Stand in for `recap.scoring.predict.predict`."""
    from recap.scoring.predict import Scored

    for source in sources:
        case = source.open(ReadingSettings())
        yield Scored(source, case, marked(case))


DETECTOR = SimpleNamespace(
    card=SimpleNamespace(reading=ReadingSettings(), calibration=None, fingerprint="none"),
    map_scale=(0.0, 1.0),
    on_gpu=False,
    runtime=None,
)
"""What scoring a study asks a detector besides its predictions."""

RESULTS = 3
"""What `mark` writes for a study: map, report, capture."""
