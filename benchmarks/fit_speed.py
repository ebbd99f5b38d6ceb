"""Fitting and scoring times, as ratios to the encoder in the same run.

    python benchmarks/fit_speed.py [--encoder NAME]

Times change with the machine and the minute; ratios within one run are what to compare. Weights
are random: they do not change the time.
"""

import time
from collections.abc import Callable

import torch
import typer

from recap.allocator import keep_freed_memory
from recap.config import Settings, resolve_settings
from recap.encoders.load import load_encoder
from recap.model.recap import ReCAP
from recap.training.objective import Batch, Objective

SHOTS = 4


def main(encoder: str = "dinov2-small", runs: int = 7) -> None:
    """Print a table."""
    rows = []
    for preset in ("fast", "paper"):
        settings = resolve_settings(preset, encoder={"name": encoder, "random_weights": True})
        rows += measure(settings, preset, runs)
    base = rows[0][1]
    print(f"{torch.get_num_threads()} threads, {encoder}, {settings.encoder.input_px} px, float32")
    print(f"{'':<44}{'ms/image':>10}{'× encoder':>11}")
    for name, seconds in rows:
        print(f"{name:<44}{1000 * seconds:>10.1f}{seconds / base:>11.2f}")


def measure(settings: Settings, preset: str, runs: int) -> list[tuple[str, float]]:
    model = ReCAP(load_encoder(settings.encoder), settings)
    size = settings.encoder.input_px
    pixels = torch.rand(SHOTS, 3, size, size)
    model.remember(model.adapt(torch.cat([model.prefix(p[None]) for p in pixels])))
    rows = []
    if preset == "fast":
        rows.append(("encoder alone", best(lambda: model.encoder.taps(pixels[:1]), runs)))
        rows.append((f"scoring, {SHOTS}-shot, side adapters", best(score(model, pixels), runs)))
    else:
        rows.append((f"scoring, {SHOTS}-shot, write-back", best(score(model, pixels), runs)))
    count = settings.training.batch_size
    prefix = model.prefix(pixels[:1]).repeat_interleave(count, 0)
    step = training_step(model, prefix)
    name = f"training step, {preset}, batch {count}"
    rows.append((f"{name}, prefix cached", best(step, runs) / count))
    if preset == "fast":
        unmasked = training_step(model, prefix, masks=False)
        rows.append((f"{name}, no masks", best(unmasked, runs) / count))
        flowing = resolve_settings(
            preset, encoder=settings.encoder.model_dump(), training={"context_gradient": True}
        )
        dense = training_step(ReCAP(model.encoder, flowing), prefix)
        rows.append((f"{name}, context_gradient", best(dense, runs) / count))
    if preset == "paper":
        whole = pixels[:1].repeat_interleave(count, 0)

        def recompute() -> None:
            model.prefix(whole)
            step()

        rows.append((f"{name}, prefix recomputed", best(recompute, runs) / count))
    return rows


def score(model: ReCAP, pixels: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            model(pixels[:1])

    return run


def training_step(model: ReCAP, prefix: torch.Tensor, masks: bool = True) -> Callable[[], None]:
    count, size = len(prefix), model.encoder.input_px
    batch = Batch(
        prefix,
        torch.arange(count) % 2 == 1,
        torch.rand(count, size, size) > 0.9,
        torch.full((count,), masks),
        torch.arange(count),
    )
    objective = Objective(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, fused=True)

    def step() -> None:
        objective(batch).total.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def best(run: Callable[[], object], runs: int) -> float:
    """The fastest of several runs: what the machine can do when it is left alone."""
    run()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    keep_freed_memory()  # as every command does
    typer.run(main)
