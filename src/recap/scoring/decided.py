"""What the results of a run say about decisions: the columns of a row, the manifest's entry."""

from pathlib import Path
from typing import Any

from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.io import Case
from recap.scoring.calibration import verdict
from recap.scoring.cases import CasePrediction
from recap.scoring.detector import Detector
from recap.scoring.outputs import save_regions
from recap.scoring.regions import IgnoreMasks, case_regions
from recap.scoring.rows import number_text
from recap.types import Decision


def decision_columns(
    detector: Detector,
    found: Found,
    case: Case,
    prediction: CasePrediction,
    reading: ReadingSettings,
    out: Path,
    masks: IgnoreMasks | None,
) -> dict[str, str]:
    """What was decided and why, and the regions, whose table is written."""
    calibration = detector.card.calibration
    if calibration is None:
        return {"rule": detector.undecided(case.kind, reading)}
    ignored = None if masks is None else masks.of(Path(found.name))
    step = prediction.source_px_per_px
    level = calibration.map_level
    regions = case_regions(case, prediction.map, level, ignored, px_per_value=step)
    columns = {
        "regions": str(len(regions)),
        "regions_table": save_regions(out, found.name, regions),
    }
    decision = prediction.decision
    if decision is None:
        return {**columns, "rule": detector.undecided(case.kind, reading)}
    return {**columns, **columns_of(decision)}


def columns_of(decision: Decision) -> dict[str, str]:
    """A decision as columns of a table of scores."""
    looked_at = decision.domain_p_value is not None
    return {
        "p_value": number_text(decision.p_value),
        "decision": verdict(decision),
        "probability": number_text(decision.probability),
        "in_domain": ("yes" if decision.in_domain else "no") if looked_at else "",
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
