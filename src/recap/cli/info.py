"""`recap info`: this installation, a detector, or the settings."""

import json
import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from recap.cli.options import Config, Overrides, Preset, method_settings
from recap.cli.terminal import printable
from recap.errors import RecapError


def info_command(
    bundle: Annotated[
        Path | None,
        typer.Argument(metavar="BUNDLE", help="A detector: show what it is and was fitted on."),
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show all settings of a fit with these options.")
    ] = False,
    method: Annotated[
        str | None, typer.Option(help="With --settings: those of this method (recap).")
    ] = None,
    preset: Preset = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show this installation, a detector, or all settings.

    Of the installation: versions, devices and encoders. Of a detector: its card.
    """
    given = {"--method": method, "--preset": preset, "--config": config, "--set": overrides or None}
    _refuse_ignored(bundle, settings, [name for name, value in given.items() if value is not None])
    if bundle is not None:
        from recap.scoring.bundle import read_card

        facts = read_card(bundle).model_dump(mode="json")
    elif settings:
        found = method_settings(method or "recap", preset, config, overrides)
        facts = found.model_dump(mode="json")
    else:
        facts = installation()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _show(facts)


def _refuse_ignored(bundle: Path | None, settings: bool, given: list[str]) -> None:
    """Options that would be ignored are a mistake to be told of."""
    if bundle is not None and (settings or given):
        wrong = ", ".join(["--settings"] * settings + given)
        raise RecapError(
            f"{wrong} cannot stand beside a detector, whose card has its settings. Leave one out: "
            f"`recap info {bundle}`."
        )
    if given and not settings:
        raise RecapError(f"{', '.join(given)} needs --settings, which shows what comes of it.")


def installation() -> dict[str, Any]:
    """Gather what somebody who wants to help needs to know."""
    import torch

    from recap.encoders.weights import cache_dir, known_names, status
    from recap.scoring.bundle import library_versions

    return {
        "versions": {**library_versions(), "python": platform.python_version()},
        "platform": platform.platform(),
        "cpu_threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "cache": str(cache_dir()),
        "encoders": {name: status(name).present for name in known_names()},
    }


def _show(facts: dict[str, Any], indent: str = "") -> None:
    for key, value in facts.items():
        if isinstance(value, dict):
            typer.echo(f"{indent}{key}:")
            _show(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            typer.echo(f"{indent}{key}:")
            for item in value:
                line = "  ".join(str(v) for v in item.values() if v is not None)
                typer.echo(f"{indent}  {printable(line)}")
        else:
            shown = "–" if value is None else printable(str(value))
            typer.echo(f"{indent}{key}: {shown}")
