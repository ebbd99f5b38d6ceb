"""How long a few-shot fit takes, and where: encoding, training, the rest.

    python benchmarks/fit_time.py DATA/Brain_AD [--shots 4,16] [--preset recap] [--threads 2]

Times vary by a third from minute to minute on a shared machine; run it on a quiet one.
"""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from recap.data import draw_support
from recap.data.benchmark import read_domain
from recap.data.support import load_support
from recap.encoders.load import load_encoder
from recap.methods.registry import resolve_settings
from recap.scoring.fit import fit_support


class Clock:
    """When each stage of a fit was first and last heard of, and how much there was to do."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.totals: dict[str, int] = {}

    def __call__(self, stage: str, done: int, total: int, text: str) -> None:
        """Take a report of progress."""
        self.times.setdefault(stage, []).append(time.monotonic())
        self.totals[stage] = total

    def seconds(self, stage: str) -> float:
        """From the first to the last report of a stage."""
        return self.times[stage][-1] - self.times[stage][0]


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
        clock = Clock()
        started = time.monotonic()
        fit_support(support, settings, progress=clock, encoder=encoder)
        whole = time.monotonic() - started
        encode, train = clock.seconds("encode"), clock.seconds("train")
        rest = whole - encode - train
        typer.echo(
            f"| {count} | {clock.totals['encode']} | {encode:.1f} | {train:.1f} | {rest:.1f} |"
        )


if __name__ == "__main__":
    typer.run(main)
