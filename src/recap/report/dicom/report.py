"""Score, decision and findings as a DICOM Structured Report (TID 1500, Measurement Report).

Findings are regions in the source's stored frames: what touches across slices is one finding.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from recap import __version__
from recap.errors import require
from recap.io.case import Case
from recap.io.dicom.header import MAKER, MODEL
from recap.report.dicom.identity import (
    NOTICE,
    Maker,
    code,
    own_scheme,
    repeatable_uids,
    standard_code,
)
from recap.report.dicom.source import Source, SourceFrame
from recap.scoring.calibration import Verdict, verdict, warned
from recap.scoring.regions import reaches
from recap.types import BoolArray, Decision, DomainCheck, FloatArray, Region

Labels = NDArray[np.uint16]

# Beyond these a list helps nobody; the map shows them all.
MAX_FINDINGS = 100


@dataclass(frozen=True)
class Finding:
    """One connected part of the source above the level, within one frame or across slices."""

    number: int
    """From 1, the highest peak first; its value in the labels, and its segment's number."""
    peak: float
    peak_frame: int
    peak_xy_px: tuple[int, int]
    mean: float
    voxels: int
    area_px: int
    """On the peak's frame, as is the box."""
    box_xyxy_px: tuple[int, int, int, int]

    @property
    def label(self) -> str:
        """Its name in every result."""
        return f"Abnormal region {self.number}"


def as_stored(case: Case, stack: NDArray[Any]) -> NDArray[Any]:
    """A stack in the case's order as the source's files have it: (frames, rows, columns)."""
    if case.grid is None:
        return stack
    return case.grid.restore(stack).transpose(2, 1, 0)


def find_findings(
    case: Case,
    maps: FloatArray,
    regions: Sequence[Region],
    level: float | None,
    ignore: BoolArray | None = None,
) -> tuple[Labels, list[Finding]]:
    """Findings in stored order: their labels (frames, rows, columns), and what each is.

    Without a level a region is all of its box. What `ignore` marks is in none.
    """
    mask = np.zeros(maps.shape, np.bool_)
    looked_at = maps if ignore is None else np.where(ignore, np.float32(-np.inf), maps)
    for region in regions:
        left, top, right, bottom = region.box_xyxy_px
        part = (region.image, slice(top, bottom), slice(left, right))
        mask[part] |= _region_mask(looked_at[part], region, level)
    touching = np.ones((3, 3, 3), np.bool_)
    if case.kind != "volume":  # frames that follow each other are not neighbours in space
        touching[[0, 2]] = False
    labels, _ = ndimage.label(as_stored(case, mask), touching)
    return _numbered(labels, as_stored(case, maps))


def _region_mask(map: FloatArray, region: Region, level: float | None) -> BoolArray:
    """The part of its box that is connected with its peak."""
    if level is None:
        return np.ones(map.shape, np.bool_)
    left, top = region.box_xyxy_px[:2]
    parts, _ = ndimage.label(reaches(map, level), np.ones((3, 3)))
    peak = parts[region.peak_xy_px[1] - top, region.peak_xy_px[0] - left]
    found: BoolArray = (parts == peak) & (parts > 0)
    return found


def _numbered(labels: NDArray[np.int32], maps: NDArray[Any]) -> tuple[Labels, list[Finding]]:
    """Number the findings by their peaks, and leave out the weakest if there are too many."""
    boxes = ndimage.find_objects(labels)
    peaks = [float(maps[box][labels[box] == old].max()) for old, box in enumerate(boxes, 1)]
    order = np.argsort(peaks, kind="stable")[::-1][:MAX_FINDINGS]
    numbered = np.zeros(labels.shape, np.uint16)
    findings = []
    for number, index in enumerate(order, start=1):
        box = boxes[index]
        own = labels[box] == index + 1
        numbered[box][own] = number
        findings.append(_finding(number, own, maps[box], [axis.start for axis in box]))
    return numbered, findings


def _finding(number: int, own: BoolArray, maps: NDArray[Any], start: Sequence[int]) -> Finding:
    values = np.where(own, maps, -np.inf)
    frame, row, column = (int(i) for i in np.unravel_index(values.argmax(), own.shape))
    rows, columns = np.nonzero(own[frame])
    return Finding(
        number=number,
        peak=float(values[frame, row, column]),
        peak_frame=start[0] + frame,
        peak_xy_px=(start[2] + column, start[1] + row),
        mean=float(np.mean(maps[own], dtype=np.float64)),
        voxels=int(own.sum()),
        area_px=len(rows),
        box_xyxy_px=(
            start[2] + int(columns.min()),
            start[1] + int(rows.min()),
            start[2] + int(columns.max()) + 1,
            start[1] + int(rows.max()) + 1,
        ),
    )


_LONGEST_TEXT = 1024
_SAID: dict[Verdict | None, tuple[str, str]] = {
    "out-of-domain": ("out-of-domain", "Unlike what the detector was fitted on"),
    "abnormal": ("abnormal", "Abnormal by the stated rule"),
    "normal": ("not-abnormal", "Not abnormal by the stated rule"),
}
_Named = tuple[str, str, list[int] | None]
"""The class and instance of a file, and which of its frames; None for all."""


def measurement_report(
    source: Source,
    score: float,
    highest: Sequence[SourceFrame],
    decision: Decision | None,
    domain: DomainCheck | None,
    findings: Sequence[Finding],
    tracking: Mapping[int, str],
    voxel_mm3: float | None,
    maker: Maker,
    series: dict[str, Any],
) -> Any:
    """A report of one case; `highest` are the frames of its most abnormal image."""
    sr = require("highdicom.sr", "dicom")
    algorithm = _algorithm(decision, domain, maker)
    content = sr.MeasurementReport(
        observation_context=_observer(maker),
        procedure_reported=standard_code("363679005", "SCT", "Imaging procedure"),
        imaging_measurements=[
            _case_group(score, _by_file(highest, source), decision, domain, algorithm, maker),
            *(
                _finding_group(each, source, tracking[each.number], voxel_mm3, algorithm)
                for each in findings
            ),
        ],
    )
    return sr.ComprehensiveSR(
        evidence=source.files,
        content=content[0],
        is_complete=True,
        coding_schemes=[own_scheme()],
        **maker.equipment(),
        **series,
    )


def _observer(maker: Maker) -> Any:
    sr = require("highdicom.sr", "dicom")
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=repeatable_uids(MODEL, __version__, maker.detector)(),
        name=f"{MODEL} ({NOTICE})",
        manufacturer_name=MAKER,
        model_name=MODEL,
        serial_number=maker.detector[:64] or None,
    )
    codes = require("pydicom.sr.codedict", "dicom").codes
    return sr.ObservationContext(
        observer_device_context=sr.ObserverContext(
            observer_type=codes.DCM.Device, observer_identifying_attributes=device
        )
    )


def _algorithm(decision: Decision | None, domain: DomainCheck | None, maker: Maker) -> Any:
    parameters = [NOTICE]
    if maker.detector:
        parameters.append(f"detector {maker.detector}")
    rule = warned("no decision", domain) if decision is None else decision.rule
    parameters.append(f"rule: {rule}"[:_LONGEST_TEXT])
    return require("highdicom.sr", "dicom").AlgorithmIdentification(
        name=MODEL, version=__version__, parameters=parameters
    )


def _case_group(
    score: float,
    shown: Sequence[_Named],
    decision: Decision | None,
    domain: DomainCheck | None,
    algorithm: Any,
    maker: Maker,
) -> Any:
    """Give the score of the whole case, and what is made of it; the guard speaks in any case."""
    sr = require("highdicom.sr", "dicom")
    measurements = [_number("score", "Anomaly score", score)]
    evaluations = []
    if domain is not None:
        measurements.append(
            _number("domain-distance", "Distance to what the detector knows", domain.distance)
        )
        like = ("in-domain", "Like what the detector knows")
        place = code(*(like if domain.in_domain else _SAID["out-of-domain"]))
        evaluations.append(sr.QualitativeEvaluation(code("domain", "Domain"), place))
    if decision is not None:
        measurements.append(_number("p-value", "p-value of the anomaly score", decision.p_value))
        if decision.probability is not None:
            measurements.append(
                _number("probability", "Probability of abnormality", decision.probability)
            )
    said = _SAID.get(verdict(decision, domain))
    if said is not None:
        evaluations.append(sr.QualitativeEvaluation(code("decision", "Decision"), code(*said)))
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(maker.new_uid(), "Whole case"),
        algorithm_id=algorithm,
        measurements=measurements,
        qualitative_evaluations=evaluations or None,
        source_images=[sr.SourceImageForMeasurementGroup(*named) for named in shown],
    )


def _finding_group(
    finding: Finding, source: Source, tracking: str, voxel_mm3: float | None, algorithm: Any
) -> Any:
    """A finding as its box on the frame of its peak; the segmentation has its exact shape."""
    sr = require("highdicom.sr", "dicom")
    frame = source.frames[finding.peak_frame]
    numbers = None if frame.frame_number is None else [frame.frame_number]
    image = sr.SourceImageForRegion(str(frame.header.SOPClassUID), frame.instance, numbers)
    left, top, right, bottom = finding.box_xyxy_px
    # In DICOM the corner of the first pixel is 0, 0 and its centre 0.5, 0.5.
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    return sr.PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(tracking, finding.label),
        referenced_region=sr.ImageRegion("POLYLINE", np.array(corners, float), image),
        finding_type=standard_code("52988006", "SCT", "Lesion"),
        algorithm_id=algorithm,
        measurements=[
            _number("peak", "Peak anomaly", finding.peak),
            _number("mean", "Mean anomaly", finding.mean),
            *_sizes(finding, frame, voxel_mm3),
        ],
    )


def _sizes(finding: Finding, frame: SourceFrame, voxel_mm3: float | None) -> list[Any]:
    codes = require("pydicom.sr.codedict", "dicom").codes
    sr = require("highdicom.sr", "dicom")
    area = standard_code("42798000", "SCT", "Area")
    if frame.spacing_mm is None:
        pixels = standard_code("{pixels}", "UCUM", "pixels")
        return [sr.Measurement(area, finding.area_px, pixels)]
    mm2 = finding.area_px * frame.spacing_mm[0] * frame.spacing_mm[1]
    sizes = [sr.Measurement(area, _short(mm2), codes.UCUM.SquareMillimeter)]
    if voxel_mm3 is not None:
        volume = standard_code("118565006", "SCT", "Volume")
        mm3 = _short(finding.voxels * voxel_mm3)
        sizes.append(sr.Measurement(volume, mm3, codes.UCUM.CubicMillimeter))
    return sizes


def _number(value: str, meaning: str, number: float) -> Any:
    codes = require("pydicom.sr.codedict", "dicom").codes
    sr = require("highdicom.sr", "dicom")
    return sr.Measurement(code(value, meaning), _short(number), codes.UCUM.NoUnits)


def _short(number: float) -> float:
    """As many digits as a decimal string of DICOM can hold."""
    return float(f"{number:.8g}")


def _by_file(frames: Sequence[SourceFrame], source: Source) -> list[_Named]:
    """The files of some frames, each once, with their numbers unless all of a file are meant."""
    files: dict[str, list[SourceFrame]] = {}
    for frame in frames:
        files.setdefault(frame.instance, []).append(frame)
    in_all = Counter(frame.instance for frame in source.frames)
    named = []
    for instance, own in files.items():
        numbers = [each.frame_number for each in own if each.frame_number is not None]
        all_meant = len(own) == in_all[instance]
        named.append((str(own[0].header.SOPClassUID), instance, None if all_meant else numbers))
    return named
