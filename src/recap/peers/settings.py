"""Settings of another method: its preset, then a TOML file, then `a.b=c` strings, then values."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recap.config import PeerSettings, merged, parse_override, read_toml, validated
from recap.errors import SettingsError
from recap.peers.registry import find_peer

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
    preset = preset or "equal"
    if preset not in PRESETS:
        raise SettingsError(f"Unknown preset '{preset}' of {method}: use {' or '.join(PRESETS)}.")
    module = peer.module
    layers = [
        module.OFFICIAL if preset == "official" else {},
        read_toml(config) if config else {},
        *map(parse_override, overrides),
        values,
    ]
    tree = merged([{"method": peer.name, "preset": preset}, *layers])
    listed_by = f"recap info --settings --method {peer.name}"
    settings = validated(PeerSettings, tree, listed_by=listed_by)
    options = validated(module.Options, settings.options, "options.", listed_by)
    return settings.model_copy(update={"options": options.model_dump(mode="json")})
