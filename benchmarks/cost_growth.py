"""How the time of scoring grows: with memory rows, heads over one encoder, and the input size.

    python benchmarks/cost_growth.py [--encoder NAME] [--runs 9] [--out benchmarks/cost_growth.png]

Times are ratios to the bare encoder at 240 px in the same round; weights and memories are random,
which does not change the time. Writes a plot (extra `figures`) and prints its numbers.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
import typer
from many_heads import make_detectors, score_many

from recap._process import keep_freed_memory
from recap.bench.figures.style import COLOURS, Figure, render
from recap.bench.speed import time_rounds
from recap.bench.timed import run_bare, timed_model
from recap.config import Settings
from recap.encoders.load import load_encoder
from recap.encoders.vit import Encoder
from recap.io import image_from_array
from recap.methods.registry import resolve_settings

BASE_PX = 240
ROWS = (256, 1156, 4624, 18496, 50864)
"""The default; all of K = 4 and 16 images; 16 with their 11 copies, a third of them and all."""
HEADS = (1, 2, 5, 10)
SIZES_PX = (168, 240, 336, 448, 518)
Curve = dict[int, float]


def main(
    encoder: str = "dinov2-small",
    runs: int = 9,
    warmup: int = 2,
    out: Path = Path("benchmarks/cost_growth.png"),
) -> None:
    """Measure the three curves, print them, draw them."""
    with torch.inference_mode():
        curves = {
            "Memory rows per layer and branch": growth_with_rows(encoder, runs, warmup),
            "Heads over one encoder pass": growth_with_heads(encoder, runs, warmup),
            "Input size, px": growth_with_size(encoder, runs, warmup),
        }
    print(f"{encoder}, {torch.get_num_threads()} threads, × bare encoder at {BASE_PX} px")
    for name, curve in curves.items():
        print(f"{name:<36}" + "  ".join(f"{x}: {y:.2f}" for x, y in curve.items()))
    figure = Figure("cost_growth", "", "", partial(draw, curves, encoder))
    out.write_bytes(render(figure, "png", dpi=200)[0])


def settings_for(encoder: str, input_px: int = BASE_PX) -> Settings:
    return resolve_settings(encoder={"name": encoder, "random_weights": True, "input_px": input_px})


def growth_with_rows(name: str, runs: int, warmup: int) -> Curve:
    """Few-shot detectors with more and more rows."""
    settings = settings_for(name)
    encoder, calls = load_encoder(settings.encoder), {}
    pixels = torch.rand(1, 3, BASE_PX, BASE_PX)
    for rows in ROWS:
        shots = -(-rows // encoder.grid**2)  # enough images to choose that many rows from
        chosen = settings.model_copy(
            update={"memory": settings.memory.model_copy(update={"coreset": rows})}
        )
        calls[rows] = partial(timed_model("recap", encoder, chosen, shots), pixels)
    return ratios(calls, encoder, runs, warmup)


def growth_with_heads(name: str, runs: int, warmup: int) -> Curve:
    """Four-shot heads, as in `many_heads.py`."""
    detectors = make_detectors(settings_for(name), max(HEADS), shots=4)
    image = image_from_array(torch.rand(BASE_PX, BASE_PX).numpy())
    calls = {count: partial(score_many, detectors[:count], image) for count in HEADS}
    return ratios(calls, detectors[0].model.encoder, runs, warmup)


def growth_with_size(name: str, runs: int, warmup: int) -> Curve:
    """Zero-shot at several input sizes: the encoder's own growth, and little else."""
    calls = {}
    for size in SIZES_PX:
        settings = settings_for(name, size)
        model = timed_model("recap", load_encoder(settings.encoder), settings, shots=0)
        calls[size] = partial(model, torch.rand(1, 3, size, size))
    return ratios(calls, load_encoder(settings_for(name).encoder), runs, warmup)


def ratios(
    calls: dict[int, Callable[[], object]], encoder: Encoder, runs: int, warmup: int
) -> Curve:
    """Median over the rounds of each call's time against the bare encoder's."""
    pixels = torch.rand(1, 3, BASE_PX, BASE_PX)
    laps = time_rounds({**calls, None: partial(run_bare, encoder, pixels)}, runs, warmup)
    return {
        x: median(own.wall_ms / bare.wall_ms for own, bare in zip(laps[x], laps[None], strict=True))
        for x in calls
    }


def draw(curves: dict[str, Curve], encoder: str):  # type: ignore[no-untyped-def]
    """Three panels with one scale of cost."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(7.0, 2.4), layout="constrained")
    for axes, (name, curve) in zip(canvas.subplots(1, 3), curves.items(), strict=True):
        axes.plot(list(curve), list(curve.values()), marker="o", color=COLOURS[0])
        if max(curve) > 1000:
            axes.set_xscale("log")
        axes.set_xlabel(name)
        axes.set_ylim(0, 1.1 * max(curve.values()))
        axes.axhline(1, color="#999999", linewidth=0.8, linestyle=":")
        axes.grid(axis="y")
    canvas.axes[0].set_ylabel(f"time / bare {encoder}\nat {BASE_PX} px")
    return canvas


if __name__ == "__main__":
    keep_freed_memory()  # as every command does
    typer.run(main)
