"""Score, decision and findings as a DICOM Structured Report (TID 1500, Measurement Report)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recap import __version__
from recap.errors import require
from recap.io.dicom.header import MAKER, MODEL
from recap.report.dicom_findings import Finding
from recap.report.dicom_identity import (
    NOTICE,
    Maker,
    code,
    own_scheme,
    repeatable_uids,
    standard_code,
)
from recap.report.dicom_seg import label_of
from recap.report.dicom_source import Source, SourceFrame
from recap.scoring.calibration import Verdict, verdict, warned
from recap.types import Decision, DomainCheck

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
        evaluations.append(sr.QualitativeEvaluation(code("domain", "Domain"), _place(domain)))
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


def _place(domain: DomainCheck) -> Any:
    if domain.in_domain:
        return code("in-domain", "Like what the detector knows")
    return code(*_SAID["out-of-domain"])


def _finding_group(
    finding: Finding, source: Source, tracking: str, voxel_mm3: float | None, algorithm: Any
) -> Any:
    """A finding as its box on the frame of its peak; the segmentation has its exact shape."""
    sr = require("highdicom.sr", "dicom")
    frame = source.frames[finding.peak_frame]
    image = sr.SourceImageForRegion(*_named(frame))
    left, top, right, bottom = finding.box_xyxy_px
    # In DICOM the corner of the first pixel is 0, 0 and its centre 0.5, 0.5.
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    return sr.PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(tracking, label_of(finding)),
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


def _named(frame: SourceFrame) -> _Named:
    numbers = None if frame.frame_number is None else [frame.frame_number]
    return str(frame.header.SOPClassUID), frame.instance, numbers
