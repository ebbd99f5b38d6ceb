"""Options that several commands share, so that they mean the same everywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recap.config import Settings

Preset = Annotated[
    str | None,
    typer.Option(help="fast (default): side adapters. paper: the published recipe, much slower."),
]
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, e.g. model.eta=0.1. Repeatable."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
RandomWeights = Annotated[
    bool,
    typer.Option("--random-weights", help="Latency work only: an untrained encoder."),
]


def settings_from(
    preset: str | None, config: Path | None, overrides: list[str] | None, **values: Any
) -> "Settings":
    """The settings that the options of a command line add up to."""
    from recap.config import parse_override, resolve_settings

    chosen = list(overrides or [])
    for dotted, value in values.items():
        if value is not None:
            parse_override(f"{dotted.replace('__', '.')}=0")
            chosen.append(f"{dotted.replace('__', '.')}={value}")
    if preset is not None:
        chosen.append(f"preset={preset}")
    return resolve_settings(config=config, overrides=chosen)
