"""Files of every scored case beside table and map: its overlay, its DICOM results."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from recap._files import error_message, make_folder
from recap.data.cases import Found
from recap.errors import InputError, RecapError, require
from recap.io import Case
from recap.io.formats import sniff
from recap.report.dicom.results import clear_results, own_results, write_dicom_results
from recap.report.overlay import case_overlay, save_png
from recap.results.table import Row
from recap.scoring.regions import case_regions, ignore_masks
from recap.types import Prediction

if TYPE_CHECKING:  # it brings torch
    from recap.scoring.detector import Detector

DICOM = "dicom"


class Overlays:
    """Writes OUT/overlays/CASE.png: the map drawn over the picture, or over the worst slice."""

    def __init__(self, detector: "Detector", out: Path) -> None:
        self._detector, self._out = detector, out

    def write(self, name: str, case: Case, said: Prediction) -> Mapping[str, str]:
        """Draw a case."""
        file = f"overlays/{name}.png"
        make_folder((self._out / file).parent)
        save_png(case_overlay(case, said, self._detector.map_scale), self._out / file)
        return {"overlay": file}

    def is_complete(self, row: Row) -> bool:
        """Leave it to the row, which names the overlay."""
        return True

    def remove(self, name: str) -> None:
        """Leave it: the next overlay takes its place."""

    def sweep(self, rows: Sequence[Row]) -> None:
        """Leave the overlays of cases that are gone, as their maps."""


class OldDicom:
    """Writes nothing, but removes DICOM results of earlier runs that would contradict the table."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def write(self, name: str, case: Case, said: Prediction) -> Mapping[str, str]:
        """Write nothing."""
        return {}

    def is_complete(self, row: Row) -> bool:
        """Ask for nothing."""
        return True

    def remove(self, name: str) -> None:
        """Remove the results of a case, if there are any."""
        folder = self._out / DICOM / name
        with _told():
            if folder.is_dir():
                clear_results(folder)

    def sweep(self, rows: Sequence[Row]) -> None:
        """Remove the results in all folders that no row names: of files that failed or are gone."""
        named = {self._out / row.dicom for row in rows if row.dicom}
        with _told():
            for name, _, _ in os.walk(self._out / DICOM, topdown=False):
                folder = Path(name)
                if folder not in named:
                    for old in own_results(folder):
                        if not old.is_dir():  # a case may be called like a result: its own folder
                            old.unlink()
                    with suppress(OSError):  # it holds something else
                        folder.rmdir()


class DicomResults(OldDicom):
    """Writes OUT/dicom/CASE/ of DICOM cases; what cannot be written is kept with its reason."""

    def __init__(
        self, detector: "Detector", cases: Sequence[Found], out: Path, ignore: Path | None = None
    ) -> None:
        super().__init__(out)
        require("highdicom", "dicom")
        self._detector = detector
        self._sources = {case.name: case for case in cases}
        names = [Path(case.name) for case in cases]
        self._masks = None if ignore is None else ignore_masks(ignore, names)
        self._one_at_a_time = threading.Lock()
        self.failed: dict[str, str] = {}
        """Cases without DICOM results though they are DICOM, and why."""

    def write(self, name: str, case: Case, said: Prediction) -> Mapping[str, str]:
        """Write the results of a case, unless it is not DICOM."""
        if not case.dicom_frames:
            return {}
        calibration = self._detector.card.calibration
        level = None if calibration is None else calibration.map_level
        ignored = None if self._masks is None else self._masks.of(Path(name))
        folder = f"{DICOM}/{name}"
        try:
            regions = [] if level is None else case_regions(case, said.map, level, ignored)
            with self._one_at_a_time:  # it silences a log that all threads share
                write_dicom_results(
                    case,
                    said,
                    self._out / folder,
                    regions=regions,
                    decision=said.decision,
                    level=level,
                    scale=self._detector.map_scale,
                    detector=self._detector.card.fingerprint,
                    ignore=ignored,
                )
        except RecapError as error:
            self.failed[name] = self._sources[name].in_words(str(error))
            return {"error": f"no DICOM results: {self.failed[name]}"}
        return {"dicom": folder}

    def is_complete(self, row: Row) -> bool:
        """Tell whether a case has its results, if it is DICOM.

        Those that its row does not name are of other files, or a kill cut them short.
        """
        if row.dicom and (self._out / row.dicom / "report.dcm").is_file():
            return True
        try:
            return sniff(self._sources[row.case].files[0]) != "dicom"
        except InputError:
            return True


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(error_message(error)) from error
