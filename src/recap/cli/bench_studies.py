"""`recap bench ablate` and `recap bench sweep`: the paper's ablations and sensitivity studies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recap.cli.bench_options import (
    Data,
    Datasets,
    DrawBySeed,
    EncoderName,
    Exclude,
    Grid,
    Jobs,
    On,
    Out,
    Seeds,
    Shots,
    Supports,
    read_grid,
    refuse_seed,
    tell_failures,
)
from recap.cli.options import Config, Overrides, StudyPreset, settings_from
from recap.errors import SettingsError

if TYPE_CHECKING:
    from recap.methods.recap.settings import RecapSettings


def ablate(
    study: Annotated[
        Literal["components", "conditioning", "backbones", "recipe"],
        typer.Argument(help="What is left out or exchanged.", show_default=False),
    ],
    data: Data,
    out: Out,
    shots: Shots = "4",
    seeds: Seeds = "0-2",
    datasets: Datasets = "",
    encoder: EncoderName = None,
    encoders: Annotated[
        str, typer.Option(help="backbones: these instead of the paper's, with commas.")
    ] = "",
    draw_by_seed: DrawBySeed = False,
    supports: Supports = None,
    exclude: Exclude = None,
    on: On = "test",
    jobs: Jobs = 1,
    preset: StudyPreset = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run an ablation: how far is each variant from the full model?

    components, conditioning, backbones: as in the paper, and of the published model (preset fast)
    unless another is named. recipe: each setting that the preset changes, put back to its default
    alone, then all of them.

    Cells that another run in the same folder has finished are not run again. The numbers are also
    kept in OUT/experiments/NAME-summary.json. Exit code 1: cells failed.
    """
    refuse_seed(config, overrides)
    if study != "recipe":
        preset = _published(preset, config, overrides)
    settings = settings_from(preset, config, overrides, encoder={"name": encoder})
    if encoders and study != "backbones":
        raise SettingsError(f"--encoders goes with backbones, not with {study}. Leave it out.")
    values = _encoders(encoders, settings) if study == "backbones" else None
    grid = read_grid(data, shots, seeds, datasets, draw_by_seed, supports, exclude, on)
    _run(study, settings, values, grid, out, jobs)


def sweep(
    study: Annotated[
        Literal["eta", "topk", "lambda", "delta-sep"],
        typer.Argument(help="The setting that is varied.", show_default=False),
    ],
    data: Data,
    out: Out,
    values: Annotated[
        str, typer.Option(help="E.g. 0.01,0.1; for delta-sep margin:weight, e.g. 0:0.1,-0.5:1.")
    ] = "",
    shots: Shots = "4",
    seeds: Seeds = "0-2",
    datasets: Datasets = "",
    encoder: EncoderName = None,
    draw_by_seed: DrawBySeed = False,
    supports: Supports = None,
    exclude: Exclude = None,
    on: On = "test",
    jobs: Jobs = 1,
    preset: StudyPreset = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Vary one setting: how far is each value from the one in use?

    eta: strength of the conditioning; topk: share of the patches in the image score; lambda: weight
    of the memory (fitted once, scored for each value); delta-sep: margin and weight of the
    separation loss. Of the published model (preset fast) unless another is named. Otherwise as
    `recap bench ablate`.
    """
    refuse_seed(config, overrides)
    preset = _published(preset, config, overrides)
    settings = settings_from(preset, config, overrides, encoder={"name": encoder})
    given = values.split(",") if values else None
    grid = read_grid(data, shots, seeds, datasets, draw_by_seed, supports, exclude, on)
    _run(f"sweep-{study}", settings, given, grid, out, jobs)


def _published(preset: str | None, config: Path | None, overrides: list[str] | None) -> str | None:
    """The paper's studies are of the published model, unless another preset is asked for."""
    from recap.config import parse_override, read_toml

    layers = [read_toml(config) if config else {}, *map(parse_override, overrides or ())]
    asked = preset or any("preset" in layer for layer in layers)
    return preset if asked else "fast"


def _encoders(encoders: str, settings: "RecapSettings") -> list[str]:
    from recap.bench.studies import ENCODERS, present_encoders

    names = encoders.split(",") if encoders else ENCODERS
    present, skipped = present_encoders(names, settings)
    for line in skipped:
        typer.echo(line, err=True)
    return present


def _run(
    name: str,
    settings: "RecapSettings",
    values: list[str] | None,
    grid: Grid,
    out: Path,
    jobs: int,
) -> None:
    from recap.bench.compare import study_tables, write_summary
    from recap.bench.render import render
    from recap.bench.studies import plan_study, run_study
    from recap.cli.bench_progress import watching

    study = plan_study(
        name,
        settings,
        grid.datasets,
        grid.shots,
        grid.seeds,
        values=values,
        draw_by_seed=grid.draw_by_seed,
        exclude=grid.exclude,
        on=grid.on,
        lists=grid.lists,
    )
    with watching(out) as watch:
        failed = run_study(study, grid.domains, out, jobs=jobs, exclude=grid.left_out, watch=watch)
    typer.echo(render(study_tables(write_summary(out, name)), "md"))
    tell_failures(failed)
