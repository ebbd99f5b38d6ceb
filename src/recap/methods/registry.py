"""Every method by its name: what it can do, its settings, how it is built and fitted.

A method is a row of METHODS and a module (see `fitting`). One of another package is the entry point
`NAME = "package.module:METHOD"` of the group `recap.methods`, whose METHOD is such a row.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import create_model

from recap.config import (
    EncoderSettings,
    Settings,
    merged,
    parse_override,
    read_toml,
    take_preset,
    validated,
)
from recap.errors import SettingsError
from recap.methods.recap.settings import PRESETS, RecapSettings
from recap.types import Mode

if TYPE_CHECKING:
    from recap.methods.base import Scorer
    from recap.methods.fitting import Fitted, Job
    from recap.methods.images import LabelledImages

Ability = Literal["yes", "extension", "no"]
GROUP = "recap.methods"
PeerPreset: Any = Literal["official", "equal"]
"""`official`: the published defaults. `equal`: the benchmark's input size and encoder."""


@dataclass(frozen=True)
class Method:
    """One method. Its module holds Options, OFFICIAL, build and fit; see `fitting`."""

    name: str
    title: str
    zero_shot: Ability
    """`extension`: not in its publication, or in another form; its page in docs/peers says what is
    done instead."""
    few_shot: Ability = "yes"
    maps: Literal["yes", "extension"] = "yes"
    """Whether its publication has maps; all have them here."""
    needs_abnormal: bool = False
    """Whether few-shot fitting is refused without abnormal images."""
    normal_only: bool = False
    """Whether abnormal images are of no use to it."""
    uses_text: bool = False
    """Whether fitting needs an encoder with a text tower."""
    backbone: str = ""
    """The network that it trains or looks with, where it brings one instead of a transformer."""
    names_target: bool = False
    """Whether its text names the domain that is scored, where it is fitted on others."""
    module_name: str = ""
    """The module of its code; by default the one of its name in this package."""
    fixed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that make it what it is and cannot be set otherwise."""

    def extends(self, zero_shot: bool) -> bool:
        """Tell if it is fitted otherwise than it was published."""
        return (self.zero_shot if zero_shot else self.few_shot) == "extension"

    @property
    def module(self) -> ModuleType:
        """Its code, imported on first use, because it imports torch."""
        return import_module(self.module_name or f"recap.methods.{self.name}")

    @property
    def family(self) -> str:
        """The method whose module and settings these are: its own name, or recap's."""
        return "recap" if self.is_ours else self.name

    @property
    def is_ours(self) -> bool:
        """True for a form of ReCAP, with the settings and presets of that."""
        return self.module_name == OURS

    @property
    def presets(self) -> dict[str, dict[str, Any]]:
        """Settings that each preset changes, the default preset first."""
        if self.is_ours:
            return {"recap": PRESETS["recap"], **PRESETS}
        return {"equal": {}, "official": self.module.OFFICIAL}

    @property
    def settings(self) -> type[Settings]:
        """Its settings, with its own options."""
        return RecapSettings if self.is_ours else _settings_of(self.name, self.module.Options)

    def options(self, settings: Settings) -> Any:
        """Give what its `build` is told: its own options, or all settings where it has no such
        group."""
        return getattr(settings, "options", settings)

    def build(self, encoder: Any, settings: Settings, variant: str = "") -> "Scorer":
        """Make its model at its start; `variant` says which, where there are several."""
        told = (variant,) if variant else ()
        model: Scorer = self.module.build(encoder, self.options(settings), *told)
        return model

    def choose_variant(self, settings: Settings, mode: Mode, has_masks: bool) -> str:
        """Choose which of its models is built for what there is to learn from; mostly there is one,
        without a name."""
        choose = getattr(self.module, "choose_variant", None)
        return "" if choose is None else choose(self.options(settings), mode, has_masks)

    def fit(self, model: "Scorer", images: "LabelledImages", job: "Job") -> "Fitted":
        """Make a model ready to score, in place."""
        fitted: Fitted = self.module.fit(model, images, job)
        return fitted

    def load_encoder(self, settings: EncoderSettings, seed: int) -> Any:
        """Load the encoder that it runs on: one of ours, or its own backbone."""
        from recap.encoders.load import load_encoder
        from recap.encoders.text import need_text_tower

        if self.uses_text:
            need_text_tower(settings.name)  # before anyone is told to download what would not do
        return getattr(self.module, "load_encoder", load_encoder)(settings, seed)


OURS = "recap.methods.recap"
SECTIONS = ("model", "memory", "training")
GONE = {
    *("prototype_init", "augmented", "train_with_memory", "balance_sources"),
    "context_gradient",
}
"""Settings of results that were kept before these settings went."""
METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("recap", "ReCAP", zero_shot="yes", module_name=OURS),
        # Prototypes that are the same for every image.
        Method(
            "static",
            "static prototypes",
            zero_shot="yes",
            module_name=OURS,
            fixed={"model": {"conditioning": "static"}},
        ),
        # From normal images alone: adapters that learn from made-up lesions, or none.
        Method(
            "normal_only",
            "normal images only",
            zero_shot="no",
            normal_only=True,
            module_name=OURS,
            fixed={"training": {"made_up_lesions": True}},
        ),
        Method(
            "nearest",
            "nearest neighbour",
            zero_shot="no",
            normal_only=True,
            module_name=OURS,
            fixed={"training": {"made_up_lesions": False}},
        ),
        Method("visualad", "VisualAD", zero_shot="yes", few_shot="extension", needs_abnormal=True),
        Method("uniadet", "UniADet", zero_shot="yes", few_shot="extension", needs_abnormal=True),
        Method("patchcore", "PatchCore", zero_shot="no", normal_only=True),
        Method("anomalydino", "AnomalyDINO", zero_shot="no", normal_only=True),
        Method(
            "april_gan",
            "APRIL-GAN",
            zero_shot="yes",
            few_shot="extension",
            uses_text=True,
            names_target=True,
        ),
        Method("mediclip", "MediCLIP", zero_shot="extension", normal_only=True, uses_text=True),
        Method(
            "mvfa", "MVFA", zero_shot="yes", needs_abnormal=True, uses_text=True, names_target=True
        ),
        Method("madclip", "MadCLIP", zero_shot="extension", needs_abnormal=True, uses_text=True),
        Method(
            "dra",
            "DRA",
            zero_shot="extension",
            maps="extension",
            needs_abnormal=True,
            backbone="microsoft/resnet-18",
        ),
    )
}


def all_methods() -> dict[str, Method]:
    """List all rows, those of other packages included."""
    return {**METHODS, **_of_others()}


@cache
def _of_others() -> dict[str, Method]:
    """Rows of other packages; a name of ours stays ours."""
    found: dict[str, Method] = {}
    for entry in entry_points(group=GROUP):
        row = entry.load()
        if not isinstance(row, Method) or row.name != entry.name:
            raise SettingsError(
                f"The entry point {entry.name} = {entry.value} of {GROUP} is no row of that name. "
                "Let it lead to a recap.methods.Method, or remove the package that has it."
            )
        if row.name in METHODS:
            raise SettingsError(
                f"{entry.value} calls its method '{row.name}', as one of recap's own is called. "
                "Give it another name."
            )
        found[row.name] = row
    return found


def find_method(name: str) -> Method:
    """Find the row of a name; refuse one that means nothing, with the nearest one that does."""
    rows = all_methods()
    if name not in rows:
        near = get_close_matches(str(name).lower().replace("-", "_"), rows, n=1, cutoff=0.5)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise SettingsError(f"No method is called '{name}'.{hint} Known: {', '.join(rows)}.")
    return rows[name]


@cache
def _settings_of(name: str, options: type[Any]) -> type[Settings]:
    """Define the settings of a method with options of its own."""
    own: type[Settings] = create_model(
        f"{options.__module__.rpartition('.')[2].title()}Settings",
        __base__=Settings,
        method=(str, name),
        preset=(PeerPreset, "equal"),
        options=(options, options()),
    )
    return own


def resolve_settings(
    preset: str | None = None,
    config: Path | None = None,
    overrides: Iterable[str] = (),
    *,
    method: str = "recap",
    **values: Any,
) -> Any:
    """Build the settings of a method.

    Args:
        preset: wins over one that is named in the file. Of ReCAP `recap` (the default), `fast` or
            `paper`; of other methods `equal` (the defaults of its options, and the encoder and
            input size of the benchmark) or `official` (what its publication uses).
        config: a TOML file, laid over the preset.
        overrides: texts such as `model.eta=0.1`, laid over the file.
        method: its name.
        values: nested dictionaries, laid over everything else.

    >>> resolve_settings("paper", overrides=["training.epochs=3"]).training.epochs
    3
    """
    row = find_method(method)
    given = [read_toml(config) if config else {}, *map(parse_override, overrides), values]
    presets = row.presets
    preset, layers = take_preset(preset, given, next(iter(presets)))
    if not isinstance(preset, str) or preset not in presets:
        raise SettingsError(
            f"Unknown preset '{preset}' of {method}. Choose from: {', '.join(presets)}."
        )
    for layer in layers:
        _refuse_other_method(row, layer)
        _refuse_other_values(row, layer)
    tree = merged([{"preset": preset}, presets[preset], *layers, row.fixed])
    return validated(row.settings, {**tree, "method": row.family}, listed_by=_listed_by(row))


def _listed_by(row: Method) -> str:
    asked = "" if row.name == "recap" else f" --method {row.name}"
    return f"recap info --settings{asked}"


def _refuse_other_method(row: Method, layer: Mapping[str, Any]) -> None:
    """Under another method's name these settings would be taken for its own."""
    asked = layer.get("method", row.name)
    if asked not in (row.name, row.family):
        raise SettingsError(
            f"Setting method = {asked!r}, but the method asked for is '{row.name}'. Leave the "
            f"setting out, or give --method {asked}."
        )


def _refuse_other_values(row: Method, layer: Mapping[str, Any]) -> None:
    """Refuse other values of what makes a method what it is."""
    for section, group in row.fixed.items():
        given = layer.get(section)
        for key, value in group.items():
            asked = given.get(key, value) if isinstance(given, Mapping) else value
            if asked != value:
                raise SettingsError(
                    f"{section}.{key} = {json.dumps(asked)}, but method '{row.name}' is the one "
                    f"with {json.dumps(value)}. Leave the setting out, or choose another method."
                )


def default_settings(method: str) -> dict[str, Any]:
    """List all settings of a method at their defaults, whatever its presets change."""
    row = find_method(method)
    return validated(row.settings, {"method": row.family}).model_dump(mode="json")


SettingsT = TypeVar("SettingsT", bound=Settings)


def settings_from_dict(tree: Mapping[str, Any]) -> Any:
    """Read settings as a bundle or a result holds them; its method says what options there are.

    What a setting that is gone stood at when it was written is passed over.
    """
    row = find_method(tree.get("method", "recap"))
    if row.is_ours:
        kept = {s: {k: v for k, v in tree.get(s, {}).items() if k not in GONE} for s in SECTIONS}
        tree = {**tree, **kept}
    return validated(row.settings, tree, listed_by=_listed_by(row))


def changed(settings: SettingsT, **sections: Any) -> SettingsT:
    """Return the same settings, some of them changed and all checked again."""
    tree = merged([settings.model_dump(mode="json"), sections])
    return validated(type(settings), tree)
