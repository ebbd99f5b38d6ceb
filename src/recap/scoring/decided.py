"""What the results of a run say about decisions: the columns of a row, the manifest's entry."""

from pathlib import Path
from typing import Any

from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.io import Case
from recap.scoring.calibration import verdict, warned
from recap.scoring.cases import CasePrediction
from recap.scoring.detector import Detector
from recap.scoring.outputs import save_regions
from recap.scoring.regions import IgnoreMasks, case_regions
from recap.scoring.rows import number_text
from recap.types import Decision, DomainCheck


def decision_columns(
    detector: Detector,
    found: Found,
    case: Case,
    prediction: CasePrediction,
    reading: ReadingSettings,
    out: Path,
    masks: IgnoreMasks | None,
) -> dict[str, str]:
    """Tell what was decided and why, and the regions, whose table is written."""
    calibration = detector.card.calibration
    undecided = detector.undecided(case.kind, reading)
    decided = columns_of(prediction.decision, prediction.domain, undecided)
    if calibration is None:
        return decided
    ignored = None if masks is None else masks.of(Path(found.name))
    step = prediction.source_px_per_px
    level = calibration.map_level
    regions = case_regions(case, prediction.map, level, ignored, px_per_value=step)
    return {
        "regions": str(len(regions)),
        "regions_table": save_regions(out, found.name, regions),
        **decided,
    }


def columns_of(
    decision: Decision | None, domain: DomainCheck | None, undecided: str = ""
) -> dict[str, str]:
    """Give a decision and the domain's guard as columns of a table of scores.

    `undecided` is why there is no decision. The guard speaks all the same.
    """
    columns: dict[str, str] = {"decision": verdict(decision, domain) or ""}
    if domain is not None:
        columns["in_domain"] = "yes" if domain.in_domain else "no"
    if decision is None:
        return {**columns, "rule": warned(undecided, domain)}
    return {
        **columns,
        "p_value": number_text(decision.p_value),
        "probability": number_text(decision.probability),
        "rule": decision.rule,
    }


def decided_by(detector: Detector, ignore: Path | None) -> dict[str, Any] | None:
    """What decisions and regions come from; None without a calibration."""
    calibration = detector.card.calibration
    if calibration is None:
        return None
    return {
        "sha256": calibration.digest,
        "source": calibration.source,
        "kind": calibration.kind,
        "normal_images": len(calibration.normal_scores),
        "fpr": calibration.fpr,
        "threshold": calibration.threshold,
        "map_level": calibration.map_level,
        "rule": calibration.rule,
        "guarantee": calibration.guarantee,
        "ignore": None if ignore is None else str(ignore),
    }
