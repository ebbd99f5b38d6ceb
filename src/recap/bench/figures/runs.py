"""Finished cells as the figures need them: arrays instead of rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from recap.bench.agreement import Averaged, refuse_mixed
from recap.bench.figures.style import method_name
from recap.bench.kept import CELLS, is_kept, kept_names, place_of, read_result, refusing_damage
from recap.bench.notes import Shown, own_notes
from recap.bench.results import FOLDER, GRID, definition, with_presets
from recap.bench.supports import SupportRecord
from recap.types import BoolArray, FloatArray


@dataclass(frozen=True)
class Run:
    """One finished cell: what was run, and each test image's score and drift."""

    file: Path
    method: str
    """Its short name and, where a grid has several, its preset."""
    cell: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    scores: FloatArray  # (N,)
    abnormal: BoolArray  # (N,)
    drift: FloatArray | None  # (N, branch, prototype), the mean over layers
    layer_drift: Mapping[str, FloatArray] | None
    """Under "normal", "abnormal" (images) and "bound": (branch, layer, prototype)."""
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    fitted_on: int = 0
    without_mask: int = 0
    support: SupportRecord | None = None

    @property
    def dataset(self) -> str:
        """The folder's name."""
        return str(self.cell["dataset"])

    @property
    def shots(self) -> int:
        """Support images of each class; 0 is zero-shot."""
        return int(self.cell["shots"])

    @property
    def counts(self) -> tuple[int, int]:
        """Abnormal and normal images that it was measured on."""
        return int(self.abnormal.sum()), int((~self.abnormal).sum())

    @property
    def seed(self) -> int:
        """The seed of the settings."""
        return int(self.cell["settings"]["seed"])


def read_run(out: Path, name: str) -> Run:
    """Read a finished cell."""
    content = read_result(out, name)
    with refusing_damage(place_of(out, name)):
        return _run(out / CELLS / f"{name}.json", content)


def _run(file: Path, content: Mapping[str, Any]) -> Run:
    rows = content["images"]
    moved = [row["drift"] for row in rows]
    layers = content["drift"]
    known = layers["bound"] is not None and None not in moved
    return Run(
        file=file,
        method=str(content["cell"]["method"]),
        cell=content["cell"],
        metrics=content["metrics"],
        scores=np.array([row["score"] for row in rows], np.float32),
        abnormal=np.array([row["abnormal"] for row in rows], bool),
        drift=np.array(moved, np.float32) if known else None,
        layer_drift={k: np.array(v, np.float32) for k, v in layers.items()} if known else None,
        seconds=content.get("seconds", {}),
        versions=content.get("versions", {}),
        fitted_on=content.get("support_images_in_test", 0),
        without_mask=content.get("without_mask", 0),
        support=content.get("support"),
    )


def auroc_text(runs: Sequence[Run]) -> str:
    """The image AUROC over seeds, in percent as in the tables."""
    values = [v for run in runs if (v := run.metrics.get("image_auroc")) is not None]
    if not values:
        return "AUROC –"
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"AUROC {100 * fmean(values):.1f}{spread} %"


def read_runs(out: Path) -> list[Run]:
    """The finished cells of the main grid; none where there are studies only."""
    kept_names(out)  # refuses a folder without results
    runs = [run for own in read_variants(out, GRID).values() for run in own]
    labels = with_presets([(run.method, run.cell) for run in runs])
    runs = [replace(run, method=label) for run, label in zip(runs, labels, strict=True)]
    refuse_mixed(map(_averaged, runs))
    return runs


def _averaged(run: Run) -> Averaged:
    place = f"{run.method} on {run.dataset}, {run.shots} shots"
    return Averaged(place, run.seed, run.cell, run.counts, run.support)


def read_variants(out: Path, experiment: str) -> dict[str, list[Run]]:
    """The finished cells of an experiment by variant; a grid's variants are its methods."""
    content = definition(out, experiment)
    if content is not None:
        named = content["variants"]
    elif experiment == GRID and not (out / FOLDER).is_dir():
        named = {"": kept_names(out)}  # from before there were experiments
    else:
        return {}
    return {
        label: [read_run(out, name) for name in names if is_kept(out, name)]
        for label, names in named.items()
    }


def figure_notes(runs: Iterable[Run], variants: bool = False) -> tuple[str, ...]:
    """The notes of a figure that shows these runs, or the variants of a study."""
    return tuple(note.text for note in own_notes(map(shown_run, runs), variants))


def shown_run(run: Run) -> Shown:
    """A run under the names that figures use."""
    name = method_name(run.method)
    about = (run.fitted_on, run.without_mask, run.counts)
    return Shown(name, run.dataset, run.seed, run.cell, *about)
