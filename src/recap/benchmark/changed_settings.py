"""Which settings of a cell are not those of the preset that it names."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from recap.benchmark.experiments import flat_settings
from recap.errors import SettingsError
from recap.methods.registry import resolve_settings

_SAID_ELSEWHERE = {"seed", "preset", "method"} | {
    f"encoder.{key}" for key in ("name", "input_px", "random_weights")
}


def changed_settings(cell: Mapping[str, Any]) -> dict[str, Any]:
    """What --set or --config changed, under the names that users write.

    A setting that is newer than the cell is as it always was.
    """
    settings = cell["settings"]
    preset = _of_preset(cell["method"], settings["preset"])
    return {
        key: value
        for key, value in flat_settings(settings)
        if key in preset and key not in _SAID_ELSEWHERE and preset[key] != value
    }


@cache
def _of_preset(method: str, preset: str) -> dict[str, Any]:
    try:
        settings = resolve_settings(preset, method=method)
    except SettingsError:  # of a version with other methods or presets
        return {}
    return dict(flat_settings(settings.model_dump(mode="json")))
