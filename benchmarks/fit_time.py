"""How long a few-shot fit takes, and where: encoding, training, the rest.

    python benchmarks/fit_time.py DATA/Brain_AD [--shots 4,16] [--preset recap] [--threads 2]

Times vary by a third from minute to minute on a shared machine; run it on a quiet one.
"""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from recap.config import resolve_settings
from recap.data import draw_support
from recap.data.benchmark import read_domain
from recap.encoders.load import load_encoder
from recap.training.fewshot import fit_few_shot
from recap.training.support import load_support


def main(
    dataset: Annotated[Path, typer.Argument(help="A <Name>_AD folder.")],
    shots: str = "4,16",
    preset: str = "recap",
    threads: int = 2,
) -> None:
    """Fit once for each number of shots and print the seconds of each stage."""
    torch.set_num_threads(threads)
    domain, settings = read_domain(dataset), resolve_settings(preset)
    encoder = load_encoder(settings.encoder)
    typer.echo(f"{domain.name}, preset {preset}, {encoder.name}, {threads} threads")
    typer.echo("| K | images with copies | encode (s) | train (s) | rest (s) |")
    typer.echo("|---|---|---|---|---|")
    for count in map(int, shots.split(",")):
        drawn = draw_support(domain, count)
        support = load_support([*drawn.normal, *drawn.abnormal], settings.reading)
        marks: dict[str, list[float]] = {}
        images = 0

        def note(stage: str, done: int, total: int, text: str) -> None:
            nonlocal images
            marks.setdefault(stage, []).append(time.monotonic())
            images = total if stage == "encode" else images

        started = time.monotonic()
        fit_few_shot(support, settings, progress=note, encoder=encoder)
        whole = time.monotonic() - started
        encode, train = (marks[stage][-1] - marks[stage][0] for stage in ("encode", "train"))
        rest = whole - encode - train
        typer.echo(f"| {count} | {images} | {encode:.1f} | {train:.1f} | {rest:.1f} |")


if __name__ == "__main__":
    typer.run(main)
