"""DICOM results of the cases that came as DICOM, beside the other results of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recap.data.cases import Found
from recap.errors import InputError, RecapError, require
from recap.io import Case
from recap.io.formats import sniff
from recap.report.dicom.results import write_dicom_results
from recap.report.old_dicom import FOLDER
from recap.scoring.regions import case_regions, ignore_masks
from recap.scoring.rows import Row

if TYPE_CHECKING:  # they bring torch
    from recap.scoring.cases import CasePrediction
    from recap.scoring.detector import Detector


class DicomResults:
    """Writes OUT/dicom/CASE/ for each case; what cannot be written is kept with its reason."""

    def __init__(
        self, detector: "Detector", cases: Sequence[Found], out: Path, ignore: Path | None = None
    ) -> None:
        require("highdicom", "dicom")
        self._detector = detector
        self._out = out
        self._sources = {case.name: case for case in cases}
        names = [Path(case.name) for case in cases]
        self._masks = None if ignore is None else ignore_masks(ignore, names)
        self.failed: dict[str, str] = {}
        """Cases without DICOM results though they are DICOM, and why."""

    def write(self, name: str, case: Case, prediction: "CasePrediction") -> dict[str, str]:
        """Write the results of a case, unless it is not DICOM; gives the columns of its row."""
        if not case.dicom_frames:
            return {}
        calibration = self._detector.card.calibration
        level = None if calibration is None else calibration.map_level
        ignored = None if self._masks is None else self._masks.of(Path(name))
        folder = f"{FOLDER}/{name}"
        try:
            regions = [] if level is None else case_regions(case, prediction.map, level, ignored)
            write_dicom_results(
                case,
                prediction,
                self._out / folder,
                regions=regions,
                decision=prediction.decision,
                level=level,
                scale=self._detector.map_scale,
                detector=self._detector.card.fingerprint,
                ignore=ignored,
            )
        except RecapError as error:
            self.failed[name] = self._sources[name].in_words(str(error))
            return {"error": f"no DICOM results: {self.failed[name]}"}
        return {"dicom": folder}

    def missing(self, row: Row) -> bool:
        """Whether a scored case is DICOM and has no DICOM results yet.

        Those that its row does not name are of other files, or a kill cut them short.
        """
        if row.dicom and (self._out / row.dicom / "report.dcm").is_file():
            return False
        try:
            return sniff(self._sources[row.case].files[0]) == "dicom"
        except InputError:
            return False
