"""Every method by its name, ours and the others: settings, fitting, and what it can do."""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from recap.config import (
    AnySettings,
    PeerSettings,
    merged,
    parse_override,
    read_toml,
    resolve_settings,
)
from recap.errors import SettingsError
from recap.methods.registry import PEERS
from recap.methods.settings import resolve_peer

if TYPE_CHECKING:
    from recap.data.benchmark import Domain
    from recap.methods.fitting import Where
    from recap.scoring.detector import Detector
    from recap.training.support import SupportImage

OURS: dict[str, dict[str, Any]] = {
    "recap": {},
    "static": {"model": {"conditioning": "static"}},
    "normal_only": {"training": {"made_up_lesions": True}},
    "nearest": {"training": {"made_up_lesions": False}},
}
"""`static`: prototypes that are the same for every image. From normal images alone: `normal_only`,
whose adapters learn from made-up lesions, and `nearest`, nearest neighbour on the encoder's own
tokens."""
NORMAL_ONLY = ("normal_only", "nearest")
METHODS = (*OURS, *PEERS)


def resolve_method(
    method: str,
    preset: str | None = None,
    config: Path | None = None,
    overrides: Iterable[str] = (),
    **values: Any,
) -> AnySettings:
    """All settings of a method. Presets: fast and paper (ours), equal and official (others)."""
    check_method(method)
    if method in PEERS:
        return resolve_peer(method, preset, config, overrides, **values)
    overrides = list(overrides)
    given = merged([read_toml(config) if config else {}, *map(parse_override, overrides), values])
    fixed = [(s, k, v) for s, group in OURS[method].items() for k, v in group.items()]
    for section, key, value in fixed:
        _refuse_other(method, section, key, value, given)
    overrides += [f"{section}.{key}={json.dumps(value)}" for section, key, value in fixed]
    return resolve_settings(preset, config, overrides, **values)


def _refuse_other(
    method: str, section: str, key: str, value: Any, given: Mapping[str, Any]
) -> None:
    """What makes a method what it is cannot be set otherwise."""
    group = given.get(section)
    asked = group.get(key, value) if isinstance(group, Mapping) else value
    if asked != value:
        raise SettingsError(
            f"{section}.{key} = {json.dumps(asked)}, but method '{method}' is the one with "
            f"{json.dumps(value)}. Leave the setting out, or choose another method."
        )


def check_method(method: str) -> None:
    """Refuse a name that means nothing, with the nearest one that does."""
    if method not in METHODS:
        near = get_close_matches(method.lower().replace("-", "_"), METHODS, n=1, cutoff=0.5)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise SettingsError(f"No method is called '{method}'.{hint} Known: {', '.join(METHODS)}.")


def uses_abnormal(method: str) -> bool:
    """Whether abnormal support images make a difference."""
    return not PEERS[method].normal_only if method in PEERS else method not in NORMAL_ONLY


def has_zero_shot(method: str) -> bool:
    """Whether the method can be fitted on other domains alone."""
    return PEERS[method].zero_shot != "no" if method in PEERS else method not in NORMAL_ONLY


def encoder_for(settings: AnySettings) -> Any:
    """The encoder that a method runs on: one of ours, or its own backbone."""
    from recap.encoders.load import load_encoder
    from recap.methods.fitting import encoder_of

    if isinstance(settings, PeerSettings):
        return encoder_of(PEERS[settings.method], settings.encoder, settings.seed)
    return load_encoder(settings.encoder, settings.seed)


def fit_support(
    support: "Sequence[SupportImage]",
    settings: AnySettings,
    *,
    domain: str = "",
    **where: "Unpack[Where]",
) -> "Detector":
    """Fit on the target's own images."""
    if isinstance(settings, PeerSettings):
        from recap.methods import fitting

        return fitting.fit_few_shot(support, settings, domain=domain, **where)
    from recap.training.fewshot import fit_few_shot

    return fit_few_shot(list(support), settings, **where)


def fit_sources(
    sources: "Sequence[Domain]",
    settings: AnySettings,
    *,
    domain: str = "",
    **where: "Unpack[Where]",
) -> "Detector":
    """Fit on the pools of other domains, to score `domain`."""
    if isinstance(settings, PeerSettings):
        from recap.methods import fitting

        return fitting.fit_zero_shot(sources, settings, domain=domain, **where)
    from recap.training.zeroshot import fit_zero_shot

    return fit_zero_shot(sources, settings, **where)
