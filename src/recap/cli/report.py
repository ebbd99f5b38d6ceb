"""`recap report`: the page of a scored folder, made again from what the folder holds."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A folder that `recap score --out` wrote.")
    ],
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also write scores.parquet (extra `tables`).")
    ] = False,
) -> None:
    """Write the page of a scored folder again: OUT/report.html.

    One page with the table, histogram, pictures, regions, and why. It needs neither the detector
    nor the images. Pictures with a map that can be faded, and the explanations, are there if the
    folder was scored with --report.
    """
    from recap.report.page import write_score_page

    if parquet:
        from recap.results.table import PARQUET, read_rows, write_parquet

        write_parquet(read_rows(out / "scores.csv"), out / PARQUET)
    typer.echo(write_score_page(out))
