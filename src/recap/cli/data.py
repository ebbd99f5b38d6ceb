"""`recap data`: data sets to work with."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli import data_audit, data_check, data_prepare, data_pull, data_support
from recap.cli.bars import bars

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check, audit, prepare and generate data sets.",
)
app.command("check")(data_check.check_command)
app.command("audit")(data_audit.audit_command)
app.command("support")(data_support.support_command)
app.command("prepare")(data_prepare.prepare_command)
app.command("pull")(data_pull.pull_command)


@app.command()
def phantom(
    root: Annotated[
        Path, typer.Argument(metavar="ROOT", help="Folder to write the six NAME_AD domains into.")
    ],
    pool: Annotated[int, typer.Option(min=1, help="Images per class in the labelled pool.")] = 16,
    test: Annotated[int, typer.Option(min=1, help="Images per class in the test split.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    size_px: Annotated[int, typer.Option("--size", min=32, help="Pixels per side.")] = 240,
    volumes: Annotated[
        bool,
        typer.Option(
            "--volumes", help="Heads in three dimensions instead (NIfTI), one domain of them."
        ),
    ] = False,
) -> None:
    """Generate six phantom domains, to try it without any data.

    They have the benchmark's layout. With --volumes, HeadVolumes_AD: oblique NIfTI volumes with
    label maps, and lesions.csv with the true volume and place of every lesion.
    """
    from recap.data import write_phantoms
    from recap.data.phantom import write_head_volumes

    with bars() as report:
        if volumes:
            typer.echo(write_head_volumes(root, seed=seed, pool=pool, test=test, progress=report))
            return
        written = write_phantoms(
            root, seed=seed, pool=pool, test=test, size_px=size_px, progress=report
        )
    for domain in written:
        typer.echo(domain.root)
