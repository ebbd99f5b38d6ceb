"""Cases scored into a folder, or one by itself, as most tests want them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recap._files import make_folder
from recap.data.cases import Found
from recap.io import Case
from recap.progress import Progress, silent
from recap.results.folder import score_cases
from recap.results.table import Row
from recap.scoring.detector import Detector
from recap.scoring.predict import Opened, predict
from recap.types import Prediction

Draw = Callable[[Case, Prediction, Path], Mapping[str, str] | None]


class Drawing:
    """A writer of overlays that are drawn by a function."""

    def __init__(self, draw: Draw, out: Path) -> None:
        self._draw, self._out = draw, out

    def write(self, name: str, case: Case, said: Prediction) -> dict[str, str]:
        path = self._out / "overlays" / f"{name}.png"
        make_folder(path.parent)
        columns = self._draw(case, said, path) or {}
        return {"overlay": path.relative_to(self._out).as_posix(), **columns}

    def is_complete(self, row: Row) -> bool:
        return True

    def remove(self, name: str) -> None: ...

    def sweep(self, rows: Sequence[Row]) -> None: ...


def score_to_folder(
    detector: Detector,
    cases: Sequence[Found],
    out: Path,
    draw: Draw,
    progress: Progress = silent,
    **how: Any,
) -> list[Row]:
    """Score every case that has no result yet; returns all rows, in the order of the cases."""
    return score_cases(detector, cases, out, [Drawing(draw, out)], progress=progress, **how)


def score_case(detector: Detector, case: Case, **how: Any) -> Prediction:
    """Score a case that is open."""
    return next(predict(detector, [Opened(case)], **how)).or_raise()[1]
