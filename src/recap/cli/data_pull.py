"""`recap data pull`: prepared benchmarks from their public hosts."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.bars import bars


def pull_command(
    benchmark: Annotated[str, typer.Argument(metavar="BENCHMARK", help="bmad")],
    to: Annotated[Path, typer.Option(help="Folder to put the domains into.")],
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="One domain, e.g. brain; repeatable. Default: all."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Another https address of a zip or tar of the domains.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(help="The archive's sha256; without one --url is trusted once.")
    ] = None,
) -> None:
    """Download a prepared benchmark, check it and unpack it.

    Goes on where it was interrupted. BMAD is one archive of 21.8 GB for non-commercial use (CC
    BY-NC-SA 4.0); naming domains saves room on disk, not the download.
    """
    from recap.data.pull import pull

    with bars() as report:
        domains = pull(
            benchmark,
            to,
            name or (),
            url=url,
            sha256=sha256,
            report=report,
            say=lambda line: typer.echo(line, err=True),
        )
    for domain in domains:
        typer.echo(domain.root)
