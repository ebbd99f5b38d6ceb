"""From the images of a study to its results as DICOM files."""

import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from recap.data.cases import Found, find_cases
from recap.errors import InputError, RecapError
from recap.report.dicom_results import write_dicom_results

if TYPE_CHECKING:
    from recap.scoring.detector import Detector

_log = logging.getLogger(__name__)


def study_scorer(detector: "Detector") -> Callable[[Path, Path], None]:
    """A function that scores every case of a folder and writes a folder of results for each."""

    def score(images: Path, results: Path) -> None:
        with TemporaryDirectory(prefix="recap-") as scratch:
            try:
                search = find_cases([images], Path(scratch))
            except InputError:  # reports or segmentations only
                _log.info("nothing to look at in %s", images.parent.name)
                return
            reasons = []
            for number, found in enumerate(search.cases, start=1):
                try:
                    _score_case(detector, found, results / f"{number:04d}")
                except RecapError as error:
                    reasons.append(str(error))
                    _log.warning("case %d of %s: %s", number, images.parent.name, error)
            if len(reasons) == len(search.cases):
                raise InputError(f"None of {len(reasons)} cases could be scored: {reasons[0]}")

    return score


def _score_case(detector: "Detector", found: Found, folder: Path) -> None:
    from recap.scoring.cases import score_case
    from recap.scoring.regions import case_regions

    case = found.open(detector.card.settings.reading)
    prediction = score_case(detector, case)
    calibration = detector.card.calibration
    level = None if calibration is None else calibration.map_level
    write_dicom_results(
        case,
        prediction,
        folder,
        regions=[] if level is None else case_regions(case, prediction.map, level),
        decision=prediction.decision,
        level=level,
        scale=detector.map_scale,
        detector=detector.card.fingerprint,
    )
