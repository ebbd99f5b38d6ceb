"""Options that several commands share, so that they mean the same everywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recap.methods.recap.settings import RecapSettings

_OWN_PRESETS = (
    "recap (default). fast: the published model with side adapters. paper: the published recipe, "
    "much slower."
)
Preset = Annotated[
    str | None, typer.Option(help=f"{_OWN_PRESETS} Other methods: equal (default) or official.")
]
OwnPreset = Annotated[str | None, typer.Option(help=f"Of our own methods: {_OWN_PRESETS}")]
StudyPreset = Annotated[
    str | None,
    typer.Option(
        help="fast (default): the published model with side adapters. paper: the published recipe, "
        "much slower. recap: our own, and the default of the study recipe."
    ),
]
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, e.g. model.eta=0.1. Repeatable."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Runtime = Annotated[
    str | None,
    typer.Option(help="torch, onnx, openvino, openvino-int8 (see `recap export`) or auto."),
]
Window = Annotated[
    str | None,
    typer.Option(
        help="file, abdomen, lung, brain, bone or LOW,HIGH; else as when calibrated or fitted."
    ),
]
Axis = Annotated[
    str | None,
    typer.Option(
        help="auto, axial, coronal or sagittal slices; else as when calibrated or fitted."
    ),
]
RandomWeights = Annotated[
    bool,
    typer.Option("--random-weights", help="Latency work only: an untrained encoder."),
]


def settings_from(
    preset: str | None, config: Path | None, overrides: list[str] | None, **values: Any
) -> "RecapSettings":
    """Our settings that the options of a command line add up to; options not given are None."""
    found: RecapSettings = method_settings("recap", preset, config, overrides, **values)
    return found


def method_settings(
    method: str,
    preset: str | None,
    config: Path | None,
    overrides: list[str] | None,
    **values: Any,
) -> Any:
    """The same for any method."""
    from recap.methods.registry import resolve_settings

    given = _without_none({"preset": preset, **values})
    return resolve_settings(config=config, overrides=overrides or [], method=method, **given)


def check_window(window: str | None) -> None:
    """Tell before the first file what every file would tell."""
    from recap.io.window import parse_window

    if window is not None:
        parse_window(window)


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    cleaned = {k: _without_none(v) if isinstance(v, dict) else v for k, v in tree.items()}
    return {key: value for key, value in cleaned.items() if value is not None}
