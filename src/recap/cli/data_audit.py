"""`recap data audit`: leaks between the labelled pool and the test split."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.bars import bars
from recap.cli.words import printable


def audit_command(
    root: Annotated[
        Path, typer.Argument(metavar="ROOT", help="A folder of domains NAME_AD, or one of them.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for audit.csv, exclude.txt and what was read.")
    ] = Path("audit"),
    reach: Annotated[
        int, typer.Option(min=0, help="How many slices apart neighbours of one volume may be.")
    ] = 2,
    patients: Annotated[
        bool,
        typer.Option(
            "--patients/--no-patients",
            help="List test images in exclude.txt that share no more than their patient.",
        ),
    ] = True,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that read images; by default one per core.")
    ] = None,
) -> None:
    """Find what the pool and the test split share.

    Looks for the same patients, copies and neighbouring slices. Writes a table (audit.csv) and the
    test images to leave out (exclude.txt), which `recap evaluate --exclude` takes. The exit code is
    0 without leaks and 1 with leaks.
    """
    from recap.data.audit import CACHE, audit, summary, write_audit
    from recap.data.copies import LEAKS

    with bars() as report:
        found = audit(root, report, cache=out / CACHE, workers=workers, reach=reach)
    kinds = [kind for kind in LEAKS if patients or kind != "same-patient"]
    table, exclusions = write_audit(found, out, kinds)
    for line in summary(found):
        typer.echo(printable(line))
    typer.echo(f"Written: {table}, {exclusions}")
    if found.leaks:
        raise typer.Exit(1)
