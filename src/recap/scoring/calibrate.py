"""Calibrating a detector on images it has not seen: thresholds, regions and the domain's range."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recap._download import sha256_of
from recap._files import scratch_folder
from recap.config import ReadingSettings
from recap.data.cases import Found, find_cases
from recap.data.folder import name_some, refuse_masks_among, refuse_other_kind
from recap.data.patients import patient_of
from recap.errors import InputError, RecapError, counted
from recap.io import Case, image_from_array
from recap.io.case import CaseKind
from recap.io.raster import refuse_one_image
from recap.progress import Progress, silent
from recap.scoring.calibration import (
    DEFAULT_FPR,
    DEFAULT_SENSITIVITY,
    Calibration,
    calibrate_scores,
    check_request,
)
from recap.scoring.conformal import allowed_rank
from recap.scoring.detector import Detector
from recap.scoring.domain_guard import domain_range
from recap.scoring.operating_points import PointName
from recap.scoring.predict import predict
from recap.types import FloatArray, Image, Prediction


@dataclass(frozen=True)
class Known:
    """One image, volume or slide whose label is known, before it is read."""

    name: str
    digests: tuple[str, ...]
    """Of its files, or of its pixels."""
    open: Callable[[ReadingSettings], Case]
    patient: str = ""


@dataclass(frozen=True)
class Measured:
    """What a detector says of a known case."""

    kind: CaseKind
    score: float
    map_maximum: float
    descriptors: FloatArray | None
    """(n, D) of its images."""
    patient: str


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibrated detector, and the files that could not be used, with the reason."""

    detector: Detector
    unreadable: dict[str, str]

    @property
    def calibration(self) -> Calibration:
        """What was found."""
        assert self.detector.card.calibration is not None
        return self.detector.card.calibration


def calibrate(
    detector: Detector,
    normal: Any,
    abnormal: Any = None,
    *,
    fpr: float = DEFAULT_FPR,
    sensitivity: float = DEFAULT_SENSITIVITY,
    decide_by: PointName = "fpr",
    reading: ReadingSettings | None = None,
    progress: Progress = silent,
) -> Calibrated:
    """Calibrate on images of known label that the detector was not fitted on.

    Args:
        normal: healthy cases: folders, files or zips (or a list of them), or a list of arrays.
            Of the kind that will be scored: volumes as volumes, pictures as pictures.
        abnormal: cases with lesions, likewise. They give operating points and a probability.
        fpr: the share of normal cases that may be called abnormal.
        sensitivity: of the operating point that is named so.
        decide_by: the rule that decides: fpr, f1, youden or sensitivity.
        reading: how files are read; by default as the detector reads them. The calibrated
            detector reads files so.
    """
    check_request(sensitivity, decide_by, abnormal is not None)
    reading = reading or detector.card.reading
    unreadable: dict[str, str] = {}
    with scratch_folder() as scratch:
        healthy = list(_known(normal, "normal", scratch))
        diseased = [] if abnormal is None else list(_known(abnormal, "abnormal", scratch))
        _refuse_known_to_the_detector(detector, [*healthy, *diseased])
        _refuse_doubles([*healthy, *diseased])
        allowed_rank(len(healthy), fpr)  # told before the work rather than after it
        total, kinds = len(healthy) + len(diseased), _OneKind()

        def measure(cases: Sequence[Known], start: int) -> list[Measured]:
            measured = []
            opened = (_OfOneKind(known, kinds) for known in cases)
            scored = predict(detector, opened, reading=reading)
            with closing(scored):
                for number, (source, case, said) in enumerate(scored, start):
                    name = source.known.name
                    progress("score", number, total, name)
                    if isinstance(said, _SeveralKindsError):
                        raise said
                    if case is None or isinstance(said, RecapError):
                        unreadable[name] = str(said)
                    else:
                        measured.append(_measured(source.known, case, said))
            return measured

        normals, abnormals = measure(healthy, 0), measure(diseased, len(healthy))
        progress("score", total, total, "")
    _refuse_none_left(normals, diseased, abnormals, unreadable)
    calibration = _combine(normals, abnormals, fpr, sensitivity, decide_by, reading)
    everyone = [item.descriptors for item in (*normals, *abnormals)]
    guard = domain_range(everyone, calibration.kind)
    return Calibrated(detector.calibrated(calibration).guarded(*guard), unreadable)


def _combine(
    normals: Sequence[Measured],
    abnormals: Sequence[Measured],
    fpr: float,
    sensitivity: float,
    decide_by: PointName,
    reading: ReadingSettings,
) -> Calibration:
    patients = {item.patient for item in normals}
    return calibrate_scores(
        [item.score for item in normals],
        [item.map_maximum for item in normals],
        [item.score for item in abnormals],
        kind=normals[0].kind,
        reading=reading,
        fpr=fpr,
        sensitivity=sensitivity,
        decide_by=decide_by,
        patients=None if "" in patients else len(patients),
    )


def _known(given: Any, kind: str, scratch: Path) -> Iterator[Known]:
    """Whatever the user holds, as cases that can be opened."""
    refuse_one_image(given, "calibration images")
    given = [given] if isinstance(given, str | Path) else list(given)
    if not given:
        raise InputError("The list of calibration images is empty. Give at least one.")
    if not isinstance(given[0], str | Path):
        yield from (_from_array(array, number) for number, array in enumerate(given))
        return
    paths = [Path(path) for path in given]
    cases = find_cases(paths, scratch / kind).cases
    _refuse_other_kinds(paths, cases, kind)
    yield from map(_from_files, cases)


def _refuse_other_kinds(paths: Sequence[Path], cases: Sequence[Found], kind: str) -> None:
    """Lesions and masks among the normal cases would make the promise untrue."""
    files = [_place(file, case) for case in cases for file in case.files]
    for path in paths:
        refuse_other_kind(path, [file for file in files if file.is_relative_to(path)], kind)
    refuse_masks_among(files, "Move masks to a folder of their own.")


def _place(file: Path, case: Found) -> Path:
    """Where a file lies for the user: within its archive rather than where that was unpacked."""
    origin = case.unpacked
    return file if origin is None else origin.archive / file.relative_to(origin.folder)


def _from_files(found: Found) -> Known:
    # A file that cannot be read has no digest; opening it tells why.
    readable = [file for file in found.files if file.is_file()]
    return Known(
        name=found.path,
        digests=tuple(sha256_of(file) for file in readable),
        open=found.open,
        patient=patient_of(found.files[0], ""),
    )


def _from_array(array: Any, number: int) -> Known:
    image = array if isinstance(array, Image) else image_from_array(array, f"array {number}")
    digest = hashlib.sha256(np.ascontiguousarray(image.pixels).tobytes()).hexdigest()
    return Known(image.source, (digest,), lambda reading: Case("image", image.source, [image]))


class _SeveralKindsError(InputError):
    """Ends the whole calibration; a file that cannot be read is only left out."""


class _OneKind:
    """Cases of one kind; the first of another is refused before it is scored."""

    def __init__(self) -> None:
        self._first: tuple[CaseKind, str] | None = None

    def check(self, kind: CaseKind, name: str) -> None:
        """Refuse a case of another kind than the first."""
        self._first = self._first or (kind, name)
        known, first = self._first
        if kind != known:
            raise _SeveralKindsError(
                f"The calibration images are of several kinds, whose scores cannot be compared: "
                f"{first} ({known}) and {name} ({kind}). Give one kind, the one that will be "
                "scored."
            )


@dataclass(frozen=True)
class _OfOneKind:
    """A known case that is refused where it is of another kind than the first."""

    known: Known
    kinds: _OneKind
    read_alone = False

    @property
    def name(self) -> str:
        return self.known.name

    def open(self, reading: ReadingSettings) -> Case:
        case = self.known.open(reading)
        self.kinds.check(case.kind, self.name)
        return case


def _measured(known: Known, case: Case, said: Prediction) -> Measured:
    return Measured(
        kind=case.kind,
        score=said.score,
        map_maximum=float(np.nanmax(said.map)),
        descriptors=said.descriptors,
        patient=case.identity.patient or known.patient,
    )


def _refuse_known_to_the_detector(detector: Detector, cases: Sequence[Known]) -> None:
    """A detector has seen its support images, so their scores tell nothing about new ones."""
    fitted_on = {record["sha256"] for record in detector.card.support}
    seen = [Path(case.name) for case in cases if fitted_on.intersection(case.digests)]
    if seen:
        raise InputError(
            f"The detector was fitted on {counted(len(seen), 'calibration image')} "
            f"({name_some(seen)}). Calibrate on others: their scores would promise too much."
        )


def _refuse_doubles(cases: Sequence[Known]) -> None:
    first: dict[tuple[str, ...], str] = {}
    for case in cases:
        if case.digests and case.digests in first:
            raise InputError(
                f"{case.name} and {first[case.digests]} are the same image. Every calibration "
                "image counts once, as normal or as abnormal: remove one."
            )
        first[case.digests] = case.name


def _refuse_none_left(
    normals: Sequence[Measured],
    diseased: Sequence[Known],
    abnormals: Sequence[Measured],
    unreadable: Mapping[str, str],
) -> None:
    if not normals or (diseased and not abnormals):
        word = "abnormal" if normals else "normal"
        first = next(iter(unreadable.values()))
        raise InputError(f"None of the {word} calibration images can be used. The first: {first}")
