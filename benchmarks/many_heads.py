"""What ten heads over one encoder cost, as a ratio to one head in the same run.

    python benchmarks/many_heads.py [--encoder NAME] [--heads 10] [--shots 4] [--coreset ROWS]
                                    [--bottleneck C] [--runs 15]

Weights and memories are random: they do not change the time. One, ten shared and ten single runs
take turns, so that a slow moment hits all alike.
"""

from statistics import median

import torch
import typer

from recap.allocator import keep_freed_memory
from recap.benchmark.interleaved import Lap, time_rounds
from recap.benchmark.timed import timed_model
from recap.config import Settings, resolve_settings
from recap.encoders.load import load_encoder
from recap.io import image_from_array
from recap.scoring.detector import Detector
from recap.scoring.many import score_many
from recap.training.assemble import assemble


def main(
    encoder: str = "dinov2-small",
    heads: int = 10,
    shots: int = 4,
    coreset: int | None = None,
    bottleneck: int | None = None,
    runs: int = 15,
    warmup: int = 3,
) -> None:
    """Print the ratios."""
    own = [f"model.bottleneck={bottleneck}"] * (bottleneck is not None)
    own += [f"memory.coreset={coreset}"] * (coreset is not None)
    settings = resolve_settings(overrides=own, encoder={"name": encoder, "random_weights": True})
    detectors = make_detectors(settings, heads, shots)
    size = detectors[0].model.encoder.input_px
    image = image_from_array(torch.rand(size, size).numpy())
    calls = {
        "one head": lambda: score_many(detectors[:1], image),
        f"{heads} heads, one pass": lambda: score_many(detectors, image),
        f"{heads} heads, one by one": lambda: [one.score(image) for one in detectors],
    }
    laps = time_rounds(calls, runs, warmup)
    print(
        f"{torch.get_num_threads()} threads, {encoder}, {size} px, {shots}-shot, {runs} rounds, "
        f"C = {detectors[0].model.channels}, {rows(detectors[0])} memory rows"
    )
    print(f"{'':<28}{'ms (best)':>12}{'× one (median)':>18}{'processor time':>18}")
    for name, found in laps.items():
        best = min(lap.wall_ms for lap in found)
        wall, cpu = (ratio(found, laps["one head"], clock) for clock in (0, 1))
        print(f"{name:<28}{best:>12.1f}{wall:>18.2f}{cpu:>18.2f}")


def make_detectors(settings: Settings, heads: int, shots: int) -> list[Detector]:
    """Detectors with side adapters on one encoder, with random numbers."""
    encoder, mode = load_encoder(settings.encoder), "few-shot" if shots else "zero-shot"
    models = [timed_model("recap", encoder, settings, shots) for _ in range(heads)]
    return [assemble(model, mode, settings, [], {}, (0.0, 1.0)) for model in models]


def rows(detector: Detector) -> int:
    """Rows per layer and branch."""
    memory = detector.model.memory
    return 0 if memory is None else memory.shape[2]


def ratio(laps: list[Lap], base: list[Lap], clock: int) -> float:
    """Median over rounds of the ratio to another contender; clock 0 is wall time, 1 processor."""
    return median(lap[clock] / max(one[clock], 1e-9) for lap, one in zip(laps, base, strict=True))


if __name__ == "__main__":
    keep_freed_memory()  # as every command does
    typer.run(main)
