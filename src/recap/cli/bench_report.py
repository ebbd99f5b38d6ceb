"""`recap bench figures` and `recap bench report`: a benchmark to look at."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.bars import bars

Results = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of `recap bench run`.")]


def figures_command(
    out: Results,
    to: Annotated[
        Path | None, typer.Option(help="Folder for the pictures (the results' own `figures`).")
    ] = None,
) -> None:
    """Draw the figures, as PNG for print and as SVG.

    Scores, maps, sensitivity, drift. The same results give the same files. What cannot be drawn is
    named with the reason.
    """
    from recap.benchmark.figures import make_figures, write_figures

    folder = to or out / "figures"
    made = make_figures(out)
    with bars() as report:
        write_figures(made, folder, report)
    for kind, figures in made.kinds.items():
        typer.echo(f"{kind}: {len(figures)}")
    for kind, reason in made.skipped.items():
        typer.echo(f"{kind}: none ({reason})")
    typer.echo(f"Written as PNG and SVG: {folder}")


def report_command(
    out: Results,
    to: Annotated[
        Path | None, typer.Option(help="The page (the results' own `report.html`).")
    ] = None,
) -> None:
    """Write one HTML page with all tables and figures.

    It needs no other file and no network.
    """
    from recap.benchmark.report import write_report

    file = to or out / "report.html"
    with bars() as report:
        write_report(out, file, report)
    typer.echo(f"Written: {file}")
