"""`recap bench`: the benchmark as commands."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.bars import bars
from recap.cli.options import Config, Overrides, Preset, settings_from

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run a grid of experiments; print its tables."
)


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="A folder of data sets, or one of them.")],
    out: Annotated[Path, typer.Option(help="Folder for the results; finished cells are skipped.")],
    methods: Annotated[str, typer.Option(help="recap, nearest; with commas.")] = "recap,nearest",
    shots: Annotated[str, typer.Option(help="0 is zero-shot, leave-one-out.")] = "0,2,4,8,16",
    seeds: Annotated[str, typer.Option(help="E.g. 0-4.")] = "0-4",
    datasets: Annotated[str, typer.Option(help="Only these, with commas.")] = "",
    encoder: Annotated[str | None, typer.Option(help="A named encoder, folder or hub id.")] = None,
    draw_by_seed: Annotated[
        bool, typer.Option("--draw-by-seed", help="Another support set for every seed.")
    ] = False,
    exclude: Annotated[
        Path | None, typer.Option(help="Test images to leave out (`recap data audit`).")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells at once, each in a process.")] = 1,
    preset: Preset = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run every cell (method × data set × shots × seed) that has no result yet.

    A cell is kept as JSON as soon as it is done; a changed setting is another cell. Images are
    encoded once for all cells. Interrupted, the same command goes on. Exit code 1: cells failed.
    """
    from recap.benchmark.cells import parse_numbers, plan_cells
    from recap.benchmark.runner import run_cells
    from recap.data import find_domains
    from recap.data.exclusions import read_exclusions
    from recap.errors import InputError

    settings = settings_from(preset, config, overrides, encoder={"name": encoder})
    domains = find_domains(data)
    names = [domain.name for domain in domains]
    chosen = datasets.split(",") if datasets else names
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise InputError(f"{data}: no data set '{unknown[0]}'. Found: {', '.join(names)}.")
    left_out = read_exclusions(exclude) if exclude else None
    cells = plan_cells(
        methods.split(","),
        chosen,
        parse_numbers(shots),
        parse_numbers(seeds),
        settings,
        draw_by_seed,
        left_out.sha256 if left_out else "",
    )
    with bars() as report:
        failed = run_cells(
            cells,
            domains,
            out,
            jobs=jobs,
            exclude=left_out,
            progress=lambda done, total, name: report("cells", done, total, name),
        )
    typer.echo(f"{len(cells) - len(failed)} of {len(cells)} cells are done: {out}/cells")
    for name, reason in failed.items():
        typer.echo(f"  {name}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def table(
    out: Annotated[Path, typer.Argument(help="The folder of `recap bench run`.")],
    form: Annotated[str, typer.Option("--format", help="md, csv, latex or html.")] = "md",
) -> None:
    """Print the paper's tables: ours beside the published numbers, with what must be said."""
    from typing import get_args

    from recap.benchmark.cells import read_results
    from recap.benchmark.collect import result_cells
    from recap.benchmark.table_render import Format, render
    from recap.benchmark.tables import Results, paper_tables
    from recap.errors import SettingsError

    if form not in get_args(Format):
        raise SettingsError(f"--format {form}: use one of {', '.join(get_args(Format))}.")
    results = Results(runs=tuple(result_cells(read_results(out))))
    typer.echo(render(paper_tables(results), form))  # type: ignore[arg-type]
