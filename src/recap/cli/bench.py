"""`recap bench`: the benchmark as commands."""

import json
from pathlib import Path
from typing import Annotated, get_args

import typer

from recap._files import write_atomic
from recap.cli.bench_options import (
    Data,
    Datasets,
    DrawBySeed,
    EncoderName,
    Exclude,
    On,
    Out,
    Seeds,
    Shots,
    Supports,
    grid_settings,
    measured_on,
    read_grid,
    tell_failures,
)
from recap.cli.bench_studies import ablate, sweep
from recap.cli.options import Config, Device, Overrides, OwnPreset, RandomWeights, settings_from
from recap.cli.terminal import bars
from recap.errors import InputError, SettingsError, counted

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run a grid of experiments; print its tables."
)


@app.command()
def run(
    data: Data,
    out: Out,
    methods: Annotated[
        str, typer.Option(help="With commas, e.g. recap,nearest,patchcore; or all.")
    ] = "recap,nearest",
    shots: Shots = "0,2,4,8,16",
    seeds: Seeds = "0-4",
    datasets: Datasets = "",
    encoder: EncoderName = None,
    draw_by_seed: DrawBySeed = False,
    supports: Supports = None,
    exclude: Exclude = None,
    on: On = "test",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cells at once, each in a process (1; with --ray-address one per GPU or machine).",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local: processes. ray: a cluster whose machines share the folders.")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of a cluster, or auto; else --jobs workers on this machine."),
    ] = None,
    preset: OwnPreset = None,
    peer_preset: Annotated[
        str, typer.Option(help="Other methods: equal (our size, encoder, epochs) or official.")
    ] = "equal",
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run a grid of experiments; finished ones are kept.

    Runs every cell (method × data set × shots × seed) that has no result yet. A cell is kept as
    JSON as soon as it is done; a changed setting is another cell. Images are encoded once for all
    cells. Interrupted, the same command goes on. Exit code 1: cells failed.
    """
    from recap.bench.cells import plan_cells, with_sources
    from recap.bench.results import GRID, POOL, register
    from recap.bench.run import run_cells
    from recap.cli.bench_progress import watching

    settings = grid_settings(methods, preset, peer_preset, config, overrides, encoder)
    grid = read_grid(data, shots, seeds, datasets, draw_by_seed, supports, exclude, on)
    cells = plan_cells(
        settings,
        grid.datasets,
        grid.shots,
        grid.seeds,
        grid.draw_by_seed,
        grid.exclude,
        grid.on,
        grid.lists,
    )
    if not cells:
        raise InputError(
            f"--methods {methods} and --shots {shots} leave nothing to run. Methods without a "
            "zero-shot form, and a data set alone, need --shots of 1 or more."
        )
    cells = with_sources(cells, grid.domains)
    names = dict.fromkeys(cell.method for cell in cells)
    experiment = POOL if grid.on == "pool" else GRID
    register(out, experiment, {name: [c for c in cells if c.method == name] for name in names})
    with watching(out) as watch:
        failed = run_cells(
            cells,
            grid.domains,
            out,
            jobs=jobs,
            exclude=grid.left_out,
            watch=watch,
            engine=engine,
            ray_address=ray_address,
        )
    typer.echo(f"{len(cells) - len(failed)} of {counted(len(cells), 'cell')} done: {out}/cells")
    tell_failures(failed)


def compare(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of `recap bench run`.")],
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD", help="Columns of `bench table --ours`, such as recap."),
    ],
    to: Annotated[str, typer.Option("--to", help="The column that they are compared with.")],
    on: Annotated[str, typer.Option(help="test or pool, as for `bench run`.")] = "test",
) -> None:
    """Print how far the methods of a grid are from one of them.

    With a paired bootstrap over images.
    """
    from recap.bench.compare import study_tables, summarise_grid
    from recap.bench.render import render
    from recap.bench.results import GRID, POOL

    grid = POOL if measured_on(on, None) == "pool" else GRID
    typer.echo(render(study_tables(summarise_grid(out, grid, methods, to)), "md"))


@app.command()
def table(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of `recap bench run`.")],
    form: Annotated[str, typer.Option("--format", help="md, csv or latex.")] = "md",
    ours: Annotated[
        bool, typer.Option("--ours", help="Our results alone, in one table; nothing published.")
    ] = False,
    on: Annotated[
        str, typer.Option(help="test; or pool: results of `bench run --on pool`, ours alone.")
    ] = "test",
) -> None:
    """Print the paper's tables, ours beside the published numbers.

    Below them stands what must be said about the comparison.
    """
    from recap.bench.render import Format, render
    from recap.bench.tables import collect, grid_cells, own_table, paper_tables

    if form not in get_args(Format):
        raise SettingsError(f"--format {form}: use one of {', '.join(get_args(Format))}.")
    where = measured_on(on, None)
    if ours or where == "pool":
        tables = [own_table(grid_cells(out, where))]
    else:
        tables = paper_tables(collect(out))
    typer.echo(render(tables, form))  # type: ignore[arg-type]


def figures(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of `recap bench run`.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder for the pictures (the results' own `figures`).")
    ] = None,
) -> None:
    """Draw the figures, as PNG for print and as SVG.

    Scores, maps, sensitivity, drift. The same results give the same files. What cannot be drawn is
    named with the reason.
    """
    from recap.bench.figures import make_figures, write_figures

    folder = to or out / "figures"
    made = make_figures(out)
    with bars() as report:
        write_figures(made, folder, report)
    for kind, drawn in made.kinds.items():
        typer.echo(f"{kind}: {len(drawn)}")
    for kind, reason in made.skipped.items():
        typer.echo(f"{kind}: none ({reason})")
    typer.echo(f"Written as PNG and SVG: {folder}")


def pack(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of `recap bench run`.")],
) -> None:
    """Put all results of a folder into one compressed table.

    OUT/cells.jsonl.gz: every cell with its settings, metrics and the scores of its images. All
    commands read it where OUT/cells is gone, and a run skips what it has.
    """
    from recap.bench.kept import CELLS, PACKED
    from recap.bench.kept import pack as pack_results

    count = pack_results(out)
    size = (out / PACKED).stat().st_size / 1000
    typer.echo(f"{counted(count, 'cell')} in {out / PACKED} ({size:.0f} kB)")
    if (out / CELLS).is_dir():
        typer.echo(f"Without {out / CELLS} the results are the same, but for maps kept there.")


# Help lists commands as they are registered: here in the order of use.


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


app.command()(compare)
app.command()(ablate)
app.command()(sweep)
app.command("speed")(speed_command)
app.command()(figures)
app.command()(pack)
