"""What ten heads over one encoder cost, as a ratio to one head in the same run.

    python benchmarks/many_heads.py [--encoder NAME] [--heads 10] [--shots 4] [--coreset ROWS]
                                    [--bottleneck C] [--runs 15] [--pictures 40]

First the models alone: one image on one core, as `recap score` and `recap evaluate` run them side
by side, and one image on all cores; tokens pass through files, as they do there. Then all that
`recap score` does with a folder of phantoms, from reading to ten folders of maps, regions and
overlays. Weights and memories are random: they do not change the time. Contenders take turns, so
that a slow moment hits all alike.
"""

import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
import typer
from PIL import Image as Pillow
from score_pipeline import calibrated

from recap._process import keep_freed_memory
from recap.bench.speed import Lap, time_rounds
from recap.bench.timed import timed_model
from recap.config import Settings
from recap.data.cases import Found, find_cases
from recap.data.phantom import phantom
from recap.encoders.load import load_encoder
from recap.encoders.memo import Memo
from recap.io import image_from_array
from recap.methods.registry import resolve_settings
from recap.report.writers import OldDicom, Overlays
from recap.results.folder import score_cases
from recap.scoring.detector import Detector
from recap.scoring.fit import assemble
from recap.types import Image, Prediction

PICTURE_PX = 256
RUNS_OF_FOLDERS = 5


def main(
    encoder: str = "dinov2-small",
    heads: int = 10,
    shots: int = 4,
    coreset: int | None = None,
    bottleneck: int | None = None,
    runs: int = 15,
    warmup: int = 3,
    pictures: int = 40,
) -> None:
    """Print the ratios."""
    own = [f"model.bottleneck={bottleneck}"] * (bottleneck is not None)
    own += [f"memory.coreset={coreset}"] * (coreset is not None)
    settings = resolve_settings(overrides=own, encoder={"name": encoder, "random_weights": True})
    detectors, cores = make_detectors(settings, heads, shots), torch.get_num_threads()
    first = detectors[0]
    print(
        f"{cores} cores, {encoder}, {first.model.encoder.input_px} px, {shots}-shot, "
        f"C = {first.card.settings.model.bottleneck}, {rows(first)} memory rows"
    )
    print(f"{'':<40}{'ms (best)':>12}{'× one (median)':>18}{'processor time':>18}")
    image = image_from_array(picture(0))
    for threads, name in ((1, "one image per core"), (cores, "one image on all cores")):
        torch.set_num_threads(threads)
        calls = {
            f"{name}, one head": partial(score_many, detectors[:1], image),
            f"{name}, {heads} heads": partial(score_many, detectors, image),
        }
        show(time_rounds(calls, runs, warmup))
    with tempfile.TemporaryDirectory() as folder:
        cases = write_cases(Path(folder) / "in", pictures)
        many = [calibrated(detector, cases) for detector in detectors]
        name = f"{pictures} pictures into folders"
        calls = {
            f"{name}, one head": partial(score_folder, many[:1], cases, Path(folder)),
            f"{name}, {heads} heads": partial(score_folder, many, cases, Path(folder)),
        }
        show(time_rounds(calls, RUNS_OF_FOLDERS, 1))


def show(laps: dict[str, list[Lap]]) -> None:
    """Rows of the table; the first contender is the measure of the others."""
    base = next(iter(laps.values()))
    for name, found in laps.items():
        best = min(lap.wall_ms for lap in found)
        wall, cpu = (ratio(found, base, clock) for clock in (0, 1))
        print(f"{name:<40}{best:>12.1f}{wall:>18.2f}{cpu:>18.2f}", flush=True)


def score_many(detectors: Sequence[Detector], image: Image) -> list[Prediction]:
    """What every detector says about an image that is encoded once."""
    encoder = detectors[0].model.encoder
    with tempfile.TemporaryDirectory() as folder:
        encoder.memo = Memo(Path(folder))
        found = [detector.score(image) for detector in detectors]
        encoder.memo = None
    return found


def score_folder(detectors: Sequence[Detector], cases: Sequence[Found], folder: Path) -> None:
    """All that `recap score` does once detectors and files are found; nothing is shared on disk."""
    for number, detector in enumerate(detectors):
        out = folder / "out" / str(number)
        score_cases(detector, cases, out, [Overlays(detector, out), OldDicom(out)])
    shutil.rmtree(folder / "out")


def picture(number: int) -> np.ndarray:
    return phantom("Brain", np.random.default_rng(number), number % 2 == 1, PICTURE_PX)[0]


def write_cases(folder: Path, count: int) -> Sequence[Found]:
    """Phantoms as PNG files."""
    folder.mkdir()
    for number in range(count):
        Pillow.fromarray(picture(number)).save(folder / f"{number:03d}.png")
    return find_cases([folder], folder).cases


def make_detectors(settings: Settings, heads: int, shots: int) -> list[Detector]:
    """Detectors with side adapters on one encoder, with random numbers."""
    encoder, mode = load_encoder(settings.encoder), "few-shot" if shots else "zero-shot"
    encoder.checksum = "timed"  # what random weights give is never kept
    models = [timed_model("recap", encoder, settings, shots) for _ in range(heads)]
    return [
        assemble(model, mode, settings, [], {}, (0.0, 1.0), "Timed.", model.regime)
        for model in models
    ]


def rows(detector: Detector) -> int:
    """Rows per layer and branch."""
    memory = detector.model.memory
    return 0 if memory is None else memory.rows.shape[2]


def ratio(laps: list[Lap], base: list[Lap], clock: int) -> float:
    """Median over rounds of the ratio to another contender; clock 0 is wall time, 1 processor."""
    return median(lap[clock] / max(one[clock], 1e-9) for lap, one in zip(laps, base, strict=True))


if __name__ == "__main__":
    keep_freed_memory()  # as every command does
    typer.run(main)
