"""One settings tree. Defaults < preset < TOML file < `--set a.b=c`; unknown keys are errors."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recap.errors import SettingsError

Preset = Literal["recap", "fast", "paper"]
DEFAULT_PRESET: Preset = "recap"
Conditioning = Literal["gated", "bounded", "unbounded", "static", "tokens"]
Upsample = Literal["centres", "corners"]
Axis = Literal["auto", "axial", "coronal", "sagittal"]


class Section(BaseModel):
    """A group of settings: immutable, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ReadingSettings(Section):
    """How files that hold more than a picture become images. Saved with every detector, so that
    what it scores is read as what it was fitted on."""

    window: str = "file"
    """`file`: the window that the file names, or else its own range; abdomen, lung, brain or bone
    (CT); or two numbers LOW,HIGH in the file's unit."""
    axis: Axis = "auto"
    """Which way volumes are cut; auto is as acquired for a DICOM series, else axial."""
    volume_top_k: Annotated[float, Field(gt=0, le=1)] = 0.10
    """Share of the slices whose mean is the score of a volume."""
    slide_um_per_px: Annotated[float, Field(gt=0)] = 0.5
    slide_tile_px: Annotated[int, Field(ge=32, le=4096)] = 256


class EncoderSettings(Section):
    """Which frozen vision transformer sees the image, and how."""

    name: str = "dinov2-small"
    """A named encoder, a local folder, or a hub id of a supported family."""
    input_px: Annotated[int, Field(ge=32, le=2048)] = 240
    layers: tuple[int, ...] | None = None
    """Tapped blocks, counted from 1; none means the quarters of the depth."""
    normalise: Literal["own", "unit"] = "own"
    """The encoder's own mean and std, or raw 0..1 pixels as MVFA feeds them."""
    positions: Literal["antialias", "native"] = "antialias"
    """How position grids are resampled: bicubic with antialias, or as transformers does it."""
    random_weights: bool = False
    """For latency work only: the scores mean nothing."""


class ModelSettings(Section):
    """The head on top of the encoder (method, steps 2 to 6)."""

    write_back: bool = False
    """Adapters write into the encoder (the paper's reading); otherwise they sit at its side."""
    bottleneck: Annotated[int, Field(ge=1)] | None = None
    """Token width C; none means min(768, encoder width)."""
    adapter_start: Literal["random", "principal", "by_teacher"] = "random"
    """Few-shot, side adapters: where they start; `principal` is at the directions in which the
    support's tokens differ most, `by_teacher` does that where masks teach a single branch."""
    conditioning: Conditioning = "gated"
    eta: Annotated[float, Field(gt=0)] = 0.05
    logit_scale: Annotated[float, Field(gt=0)] = 100.0
    top_k: Annotated[float, Field(gt=0, le=1)] = 0.10
    """Share of the patches whose mean is the image score."""
    upsample: Upsample = "centres"
    """Where patch values stand in the map: at the patch centres (lines up with the image), or
    stretched so that the outer patches touch the border (`align_corners=True`, as MVFA does)."""
    prototype_init: Literal["random", "source_means"] = "random"
    """Zero-shot only; few-shot prototypes start at the support means."""
    zero_shot_score: Literal["prototypes", "class_tokens"] = "prototypes"
    """What image scores of zero-shot detectors rest on: their prototypes; or which way class tokens
    of abnormal images differ in the source domains. Maps are the prototypes' either way."""
    layer_fusion: Literal["learned", "uniform"] = "learned"
    """Weights of the layers in scores and maps: trained, or all alike."""
    map_logit_scale: Annotated[float, Field(gt=0)] | None = None
    """α of maps when scoring; none means `logit_scale`, which training always uses."""
    map_blur_px: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of a Gaussian over the patch values between which maps interpolate."""
    map_edge_px: Annotated[float, Field(ge=0)] = 0.0
    """Maps follow the image's edges: half the width of the window in which they do; 0 is none."""
    branches: Literal["both", "taught"] = "both"
    """A seg branch for maps and a det branch for scores; or a single one for both, taught
    by each image as well as it can: by its mask or, where there are no masks, by its label."""
    map_top_k: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the patches whose mean is the image score of a single branch taught by masks."""
    appearance_weight: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the image as a whole in the score of a single branch taught by labels."""


class MemorySettings(Section):
    """The memory of normal patches (method, step 7)."""

    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """λ of the branch fusion; zero-shot detectors have no memory and use 0."""
    score: Literal["half", "standardised"] = "half"
    """Distances in the image score of a single branch taught by labels: halved, as published; or
    against those of normal images to each other, the mean of the `model.map_top_k` largest."""
    augmented: bool = False
    """Also remember the augmented copies: eleven times the rows."""
    coreset: Annotated[int, Field(ge=1)] | None = None
    """At most this many rows per branch and layer, chosen by greedy k-centre."""


class TrainingSettings(Section):
    """How a detector is fitted."""

    epochs: Annotated[int, Field(ge=1)] = 50
    batch_size: Annotated[int, Field(ge=1)] = 8
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """None means 1e-3 few-shot and 5e-4 zero-shot."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Longest gradient of a step; none means any length."""
    context_gradient: bool = False
    """Whether gradients also flow through the image's context, which moves the prototypes. They
    hardly change anything and double the time of a step with side adapters."""
    augment: bool = True
    """Few-shot: eleven fixed copies of every support image."""
    made_up_lesions: bool = False
    """Where no mask is given, lesions that are made up on the normal images teach instead: the
    adapters of a detector of normal images alone, in which nothing is trained otherwise; and, with
    `model.branches = "taught"`, a branch for maps beside the one for scores that labels teach."""
    separation_margin: Annotated[float, Field(ge=-1, le=1)] = 0.0
    separation_weight: Annotated[float, Field(ge=0)] = 0.1
    train_with_memory: bool = False
    """Fuse a leave-one-image-out memory into the training scores."""
    source_split: Literal["pool", "test"] = "pool"
    """Zero-shot sources; `test` reproduces MVFA's protocol and is labelled as such."""
    balance_sources: bool = False
    """Zero-shot: draw every source domain equally often."""
    cache_gb: Annotated[float, Field(ge=0)] = 8.0
    """Frozen tokens are computed once and kept up to this size; above it they are recomputed."""


class Settings(Section):
    """Everything that decides what a fitted detector is."""

    preset: Preset = "fast"
    """What the rest started from; the defaults of this class are those of `fast`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    reading: ReadingSettings = ReadingSettings()
    encoder: EncoderSettings = EncoderSettings()
    model: ModelSettings = ModelSettings()
    memory: MemorySettings = MemorySettings()
    training: TrainingSettings = TrainingSettings()


class PeerSettings(Section):
    """Everything that decides what a fitted detector of another method is."""

    method: str
    """Its name in `recap.methods`."""
    preset: Literal["official", "equal"] = "equal"
    """`official`: the published defaults. `equal`: the benchmark's input size and encoder."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    reading: ReadingSettings = ReadingSettings()
    encoder: EncoderSettings = EncoderSettings()
    options: dict[str, Any] = {}
    """The method's own settings, all of them, checked by the method."""


AnySettings = Settings | PeerSettings

# `fast` is the defaults above. `paper` is the published recipe, plus one thing that it does not
# mention: without a bound, single gradients seventy times as long as the rest, which come back
# through the frozen blocks, end the training of small encoders within ten epochs.
PRESETS: dict[str, dict[str, Any]] = {
    "fast": {},
    # One branch for maps and scores, softer and smoother maps, a smaller head, fewer epochs: each
    # was chosen on support pools alone; docs/explanation/recipe.md says what each does.
    "recap": {
        "model": {
            "branches": "taught",
            "bottleneck": 128,
            "adapter_start": "by_teacher",
            "map_logit_scale": 10.0,
            "map_blur_px": 6.0,
            "map_edge_px": 10.0,
            "zero_shot_score": "class_tokens",
            "appearance_weight": 1 / 3,
        },
        "memory": {"score": "standardised", "coreset": 256},
        "training": {"epochs": 20, "made_up_lesions": True},
    },
    "paper": {
        "model": {"write_back": True, "upsample": "corners"},
        "training": {"batch_size": 1, "clip_norm": 1.0, "context_gradient": True},
    },
}


def resolve_settings(
    preset: str | None = None,
    config: Path | None = None,
    overrides: Iterable[str] = (),
    **values: Any,
) -> Settings:
    """Build the settings: preset, then the TOML file, then `a.b=c` strings, then nested values.

    A preset that is named here wins over one named in the file.
    """
    layers = [read_toml(config) if config else {}, *map(parse_override, overrides), values]
    preset, layers = take_preset(preset, layers, DEFAULT_PRESET)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise SettingsError(f"Unknown preset '{preset}'. Choose from: {', '.join(PRESETS)}.")
    return settings_from_dict(merged([{"preset": preset}, PRESETS[preset], *layers]))


def take_preset(
    preset: str | None, layers: Sequence[Mapping[str, Any]], default: str
) -> tuple[Any, list[dict[str, Any]]]:
    """The preset that counts, and the layers without it: as a mere name it would change nothing.

    One that is given wins; else the last that a layer names; else the default.
    """
    if preset is None:
        named = [layer["preset"] for layer in layers if "preset" in layer]
        preset = named[-1] if named else default
    return preset, [{k: v for k, v in layer.items() if k != "preset"} for layer in layers]


def settings_from_dict(tree: Mapping[str, Any]) -> Settings:
    """Validate a nested dictionary, naming unknown keys and their nearest neighbours."""
    return validated(Settings, tree)


SectionT = TypeVar("SectionT", bound=Section)


def validated(
    section: type[SectionT],
    tree: Mapping[str, Any],
    prefix: str = "",
    listed_by: str = "recap info --settings",
) -> SectionT:
    """Any group of settings from a nested dictionary, with errors that a user can act on."""
    unknown = _first_unknown(tree, section, prefix)
    if unknown is not None:
        raise SettingsError(
            _unknown_key_message(unknown, setting_names(section, prefix), listed_by)
        )
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = prefix + ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"Setting {key} = {first['input']!r}: {first['msg']}.") from error


def merged(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Nested dictionaries laid over each other, the last one on top."""
    tree: dict[str, Any] = {}
    for layer in layers:
        _merge(tree, layer)
    return tree


def read_toml(path: Path) -> dict[str, Any]:
    """Read a settings file."""
    try:
        # Some editors start UTF-8 with a byte order mark, which is no TOML.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"Cannot read the settings file {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from error


def parse_override(text: str) -> dict[str, Any]:
    """Turn `model.eta=0.1` into a nested dictionary; values are JSON, or else plain text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"'{text}' is not a setting. Write it as section.key=value.")
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = value.strip()
    tree: Any = parsed
    for part in reversed(key.strip().split(".")):
        tree = {part: tree}
    return tree


def _merge(tree: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = _copied(value) if isinstance(value, Mapping | PurePath) else value


def _copied(value: Any) -> Any:
    """Values as JSON has them, so that merging into the tree never writes into a preset.

    What JSON cannot hold, such as a date in a TOML file, stays for the validation to name.
    """
    if isinstance(value, Mapping):
        return {str(key): _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(inner) for inner in value]
    return str(value) if isinstance(value, PurePath) else value


def _first_unknown(tree: Mapping[str, Any], section: type[BaseModel], prefix: str) -> str | None:
    """The first key, with dots, that no setting has."""
    for key, value in tree.items():
        if key not in section.model_fields:
            return f"{prefix}{key}"
        kind = section.model_fields[key].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            unknown = _first_unknown(value, kind, f"{prefix}{key}.")
            if unknown is not None:
                return unknown
    return None


def setting_names(section: type[BaseModel] = Settings, prefix: str = "") -> list[str]:
    """All dotted names of settings."""
    names: list[str] = []
    for key, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += setting_names(kind, f"{prefix}{key}.")
        else:
            names.append(f"{prefix}{key}")
    return names


def _unknown_key_message(key: str, names: list[str], listed_by: str) -> str:
    # Somebody who forgot the section still means the key.
    same_leaf = [name for name in names if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    near = same_leaf or difflib.get_close_matches(key, names, n=1, cutoff=0.4)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"Unknown setting '{key}'.{hint} `{listed_by}` lists them all."
