"""`recap data`: data sets to work with."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make data sets to try things with."
)


@app.callback()
def group() -> None:
    """Keep `recap data` a group of commands."""


@app.command()
def phantom(
    root: Annotated[Path, typer.Argument(help="Folder to write the six NAME_AD domains into.")],
    pool: Annotated[int, typer.Option(min=1, help="Images per class in the labelled pool.")] = 16,
    test: Annotated[int, typer.Option(min=1, help="Images per class in the test split.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    size_px: Annotated[int, typer.Option("--size", min=32, help="Pixels per side.")] = 240,
) -> None:
    """Generate six phantom domains in the benchmark's layout, to try it without any data."""
    from recap.data import write_phantoms

    for domain in write_phantoms(root, seed=seed, pool=pool, test=test, size_px=size_px):
        typer.echo(domain.root)
