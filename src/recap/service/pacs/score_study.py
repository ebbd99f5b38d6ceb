"""From the images of a study to its results as DICOM files."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from recap._files import scratch_folder
from recap.data.cases import Found, NoCasesError, find_cases
from recap.errors import InputError, RecapError, counted, is_full, log_failure
from recap.report.dicom.results import write_dicom_results
from recap.service.pacs.spool import Unscored

if TYPE_CHECKING:
    from recap.scoring.detector import Detector

_log = logging.getLogger(__name__)


def study_scorer(detector: "Detector") -> Callable[[Path, Path], list[Unscored]]:
    """Make a function that scores every case of a folder and writes a folder of results for each.

    It gives the cases that could not be scored; if that is all of them, it raises.
    """

    def score(images: Path, results: Path) -> list[Unscored]:
        with scratch_folder() as scratch:
            try:
                cases = find_cases([images], scratch).cases
            except NoCasesError:  # reports or segmentations only
                _log.info("nothing to look at in %s", images.parent.name)
                return []
            unscored = []
            for number, found in enumerate(cases, start=1):
                reason = _try_case(detector, found, results / f"{number:04d}")
                if reason:
                    unscored.append(Unscored(found.files, reason))
                    _log.warning("case %d of %s: %s", number, images.parent.name, reason)
            if len(unscored) == len(cases):
                raise InputError(
                    f"None of {counted(len(cases), 'case')} could be scored: {unscored[0].reason}"
                )
            return unscored

    return score


def _try_case(detector: "Detector", found: Found, folder: Path) -> str:
    """Score a case and write its results; why that failed, or nothing. A full disk raises."""
    try:
        _score_case(detector, found, folder)
    except Exception as error:  # one case must not cost the others of the study
        if is_full(error):  # it says nothing of the case
            raise
        if isinstance(error, RecapError):
            return str(error)
        log_failure(_log, error, "scoring a case")
        return f"{found.files[0].name}: scoring failed ({type(error).__name__})"
    return ""


def _score_case(detector: "Detector", found: Found, folder: Path) -> None:
    from recap.scoring.predict import predict
    from recap.scoring.regions import case_regions

    case, prediction = next(predict(detector, [found])).or_raise()
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
