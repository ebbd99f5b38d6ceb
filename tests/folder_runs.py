"""Runs of one detector, as most tests of scored folders want them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recap.data.cases import Found
from recap.scoring.batch import score_to_folders
from recap.scoring.case_steps import Draw, Target
from recap.scoring.detector import Detector
from recap.results.table import Row


def score_to_folder(
    detector: Detector, cases: Sequence[Found], out: Path, draw: Draw, *how: Any, **more: Any
) -> list[Row]:
    """Score every case that has no result yet; returns all rows, in the order of the cases."""
    return score_to_folders([Target(detector, out, draw)], cases, *how, **more)[0]
