"""`recap bench speed`: what a method costs above its encoder."""

import json
from pathlib import Path
from typing import Annotated

import typer

from recap._files import write_atomic
from recap.cli.bars import bars
from recap.cli.options import Config, Device, Overrides, OwnPreset, RandomWeights, settings_from


def speed_command(
    encoder: Annotated[str | None, typer.Option(help="A named encoder, folder or hub id.")] = None,
    random_weights: RandomWeights = False,
    methods: Annotated[
        str,
        typer.Option(
            help="With commas, or all. normal_only and nearest need shots and are skipped at 0."
        ),
    ] = "recap,nearest,static",
    shots: Annotated[str, typer.Option(help="Images in the memory; 0 is zero-shot.")] = "0,4,16",
    input_px: Annotated[
        str | None, typer.Option(help="Input sizes, with commas: 240,518 (240).")
    ] = None,
    runs: Annotated[int, typer.Option(min=2, help="Rounds that are kept.")] = 100,
    warmup: Annotated[int, typer.Option(min=0, help="Rounds before them.")] = 20,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads (as torch chooses).")
    ] = None,
    device: Device = "auto",
    coreset: Annotated[
        int | None, typer.Option(min=1, help="At most this many rows of memory.")
    ] = None,
    preset: OwnPreset = None,
    config: Config = None,
    overrides: Overrides = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows as JSON.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Also print the paper's table, ours beside it.")
    ] = False,
) -> None:
    """Print parameters, and latency as a ratio to the encoder's.

    Timed is pixels to score and map (batch 1); no data and no fitting is needed. In every round
    each model and the encoder alone run once; the ratio is the median over the rounds of their
    times, and beside it that of processor time, which other work on the machine disturbs least.
    """
    from recap.bench.cells import parse_numbers
    from recap.bench.render import render
    from recap.bench.speed import measure_speed
    from recap.bench.speed_table import efficiency_table, speed_cells, speed_text

    chosen = {"name": encoder, "random_weights": random_weights or None}
    settings = settings_from(preset, config, overrides, encoder=chosen, memory={"coreset": coreset})
    sizes = parse_numbers(input_px) if input_px else [settings.encoder.input_px]
    with bars() as report:
        rows = measure_speed(
            methods.split(","),
            parse_numbers(shots),
            sizes,
            settings,
            runs=runs,
            warmup=warmup,
            threads=threads,
            device=device,
            progress=report,
        )
    typer.echo(speed_text(rows))
    if published:
        typer.echo("\n" + render([efficiency_table(speed_cells(rows))], "md"))
    if json_file:
        write_atomic(json_file, json.dumps(rows, indent=1) + "\n")
