"""`recap data support`: draw a support set and save it."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.words import printable
from recap.errors import RecapError


def support_command(
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="A data set: folder or .csv manifest.")
    ],
    shots: Annotated[int, typer.Option(min=1, help="Images per class.")],
    out: Annotated[
        Path, typer.Option(help="The list to write; its hashes go beside it. Or a .json file.")
    ],
    draw: Annotated[int, typer.Option(min=0, help="Which reproducible draw.")] = 0,
    by_patient: Annotated[
        bool, typer.Option("--by-patient", help="One image per patient, as long as there are any.")
    ] = False,
) -> None:
    """Draw a reproducible support set and save it.

    The hash of every file is saved with it.
    """
    from recap.data import draw_support, read_domain
    from recap.data.supports import write_support

    if out.exists():
        raise RecapError(f"{out} exists already. Choose another --out.")
    support = draw_support(read_domain(dataset), shots, draw, by_patient=by_patient)
    write_support(support, out)
    for sample in (*support.normal, *support.abnormal):
        typer.echo(printable(f"{'abnormal' if sample.abnormal else 'normal'} {sample.path}"))
