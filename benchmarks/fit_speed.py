"""Fitting and scoring times, as ratios to the encoder in the same run.

    python benchmarks/fit_speed.py [--encoder NAME]

Times change with the machine and the minute, so all take turns and are compared round by round:
medians over the rounds. Weights are random: they do not change the time.
"""

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch
import typer

from recap._process import keep_freed_memory
from recap.bench.speed import time_rounds
from recap.config import Settings
from recap.encoders.load import load_encoder
from recap.methods.images import LabelledImages
from recap.methods.recap.head import ReCAP
from recap.methods.recap.losses import Objective
from recap.methods.recap.regimes import build
from recap.methods.registry import resolve_settings

SHOTS = 4
ENCODER = "encoder alone"


class Timed(NamedTuple):
    """A call, and how many images it works on."""

    call: Callable[[], object]
    images: int = 1


def main(encoder: str = "dinov2-small", runs: int = 15, warmup: int = 2) -> None:
    """Print a table."""
    timed: dict[str, Timed] = {}
    for preset in ("fast", "paper"):
        settings = resolve_settings(preset, encoder={"name": encoder, "random_weights": True})
        timed |= contenders(settings, preset)
    laps = time_rounds({name: each.call for name, each in timed.items()}, runs, warmup)
    print(f"{torch.get_num_threads()} threads, {encoder}, {settings.encoder.input_px} px, float32")
    print(f"{'':<50}{'ms/image':>10}{'× encoder':>11}")
    for name, each in timed.items():
        own = [lap.wall_ms / each.images for lap in laps[name]]
        ratio = median(a / b.wall_ms for a, b in zip(own, laps[ENCODER], strict=True))
        print(f"{name:<50}{median(own):>10.1f}{ratio:>11.2f}")


def contenders(settings: Settings, preset: str) -> dict[str, Timed]:
    """What is timed of a preset, by its name in the table."""
    model = build(load_encoder(settings.encoder), settings, "both")
    size = settings.encoder.input_px
    pixels = torch.rand(SHOTS, 3, size, size)
    hidden = torch.cat([model.encode(p[None]) for p in pixels])
    model.memory.remember(model.tokens(model.features(hidden)), None)
    timed = {}
    if preset == "fast":
        timed[ENCODER] = Timed(lambda: model.encoder.taps(pixels[:1]))
        timed[f"scoring, {SHOTS}-shot, side adapters"] = Timed(score(model, pixels))
    else:
        timed[f"scoring, {SHOTS}-shot, write-back"] = Timed(score(model, pixels))
    count = settings.training.batch_size
    prefix = model.encode(pixels[:1]).repeat_interleave(count, 0)
    step = training_step(model, prefix)
    name = f"training step, {preset}, batch {count}"
    timed[f"{name}, prefix cached"] = Timed(step, count)
    if preset == "fast":
        timed[f"{name}, no masks"] = Timed(training_step(model, prefix, masks=False), count)
    if preset == "paper":
        whole = pixels[:1].repeat_interleave(count, 0)

        def recompute() -> None:
            model.encode(whole)
            step()

        timed[f"{name}, prefix recomputed"] = Timed(recompute, count)
    return timed


def score(model: ReCAP, pixels: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            model(pixels[:1])

    return run


def training_step(model: ReCAP, prefix: torch.Tensor, masks: bool = True) -> Callable[[], None]:
    count, size = len(prefix), model.encoder.input_px
    number = torch.arange(count)
    images = LabelledImages(
        torch.zeros,
        number % 2 == 1,
        torch.rand(count, size, size) > 0.9,
        torch.full((count,), masks),
        number,
        0 * number,
        ("",),
        0 * number,
    )
    objective = Objective(model, [model.maps, model.scores])
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, fused=True)

    def step() -> None:
        objective(prefix, images).total.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


if __name__ == "__main__":
    keep_freed_memory()  # as every command does
    typer.run(main)
