"""Findings as a DICOM Segmentation: binary, one segment for each, numbered by their peaks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recap import __version__
from recap.errors import require
from recap.io.dicom.header import MAKER, MODEL
from recap.report.dicom_findings import Finding, Labels
from recap.report.dicom_identity import NOTICE, Maker, standard_code
from recap.report.dicom_source import Source, name_sources


def segmentation(
    source: Source,
    labels: Labels,
    indices: Sequence[int],
    findings: Sequence[Finding],
    tracking: Mapping[int, str],
    maker: Maker,
    series: dict[str, Any],
) -> Any:
    """A Segmentation of the findings that lie on some frames of the source."""
    highdicom = require("highdicom", "dicom")
    own = labels[list(indices)]
    # Segments are counted from 1 without gaps, so findings elsewhere leave no number here.
    present = np.bincount(own.ravel(), minlength=len(findings) + 1) > 0
    here = [finding for finding in findings if present[finding.number]]
    renumber = np.zeros(len(present), own.dtype)
    renumber[[finding.number for finding in here]] = range(1, len(here) + 1)
    written = highdicom.seg.Segmentation(
        source_images=source.stand_ins(indices),
        pixel_array=renumber[own],
        segmentation_type="BINARY",
        segment_descriptions=[
            _description(number, finding, tracking[finding.number])
            for number, finding in enumerate(here, start=1)
        ],
        content_label="ABNORMAL_REGIONS",
        content_description=f"Abnormal regions. {NOTICE}",
        **maker.equipment(),
        **series,
    )
    name_sources(written, source)
    return written


def label_of(finding: Finding) -> str:
    """What a finding is called in every result."""
    return f"Abnormal region {finding.number}"


def _description(number: int, finding: Finding, tracking_uid: str) -> Any:
    highdicom = require("highdicom", "dicom")
    return highdicom.seg.SegmentDescription(
        segment_number=number,
        segment_label=label_of(finding),
        segmented_property_category=standard_code(
            "49755003", "SCT", "Morphologically Abnormal Structure"
        ),
        segmented_property_type=standard_code("52988006", "SCT", "Lesion"),
        algorithm_type="AUTOMATIC",
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name=MODEL,
            family=standard_code("123109", "DCM", "Artificial Intelligence"),
            version=__version__,
            source=MAKER,
        ),
        tracking_uid=tracking_uid,
        tracking_id=label_of(finding),
    )
