"""Settings of another method: its preset, then a TOML file, then `a.b=c` strings, then values."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recap.config import PeerSettings, merged, parse_override, read_toml, take_preset, validated
from recap.errors import SettingsError
from recap.methods.registry import find_peer

PRESETS = ("equal", "official")


def resolve_peer(
    method: str,
    preset: str | None = None,
    config: Path | None = None,
    overrides: Iterable[str] = (),
    **values: Any,
) -> PeerSettings:
    """Resolve all settings of a method, with its own under `options`.

    A method's module says in OFFICIAL what its publication uses, e.g. {"encoder": {"name":
    "clip-vit-l14-336", "input_px": 518}, "options": {"epochs": 15}}. `equal` keeps the defaults of
    its Options, and the encoder and input size of the benchmark.
    """
    peer = find_peer(method)
    given = [read_toml(config) if config else {}, *map(parse_override, overrides), values]
    preset, layers = take_preset(preset, given, "equal")
    if preset not in PRESETS:
        raise SettingsError(f"Unknown preset '{preset}' of {method}: use {' or '.join(PRESETS)}.")
    _refuse_other_method(peer.name, layers)
    module = peer.module
    published = module.OFFICIAL if preset == "official" else {}
    tree = merged([{"method": peer.name, "preset": preset}, published, *layers])
    listed_by = f"recap info --settings --method {peer.name}"
    settings = validated(PeerSettings, tree, listed_by=listed_by)
    options = validated(module.Options, settings.options, "options.", listed_by)
    return settings.model_copy(update={"options": options.model_dump(mode="json")})


def _refuse_other_method(name: str, layers: Iterable[Mapping[str, Any]]) -> None:
    """Under another method's name these settings would be taken for its own."""
    for layer in layers:
        asked = layer.get("method", name)
        if asked != name:
            raise SettingsError(
                f"Setting method = {asked!r}, but the method asked for is '{name}'. Leave the "
                f"setting out, or give --method {asked}."
            )
