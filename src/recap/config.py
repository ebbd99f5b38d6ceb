"""One settings tree. Defaults < preset < TOML file < `--set a.b=c`; unknown keys are errors."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recap.errors import SettingsError

Axis = Literal["auto", "axial", "coronal", "sagittal"]


class Section(BaseModel):
    """A group of settings: immutable, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ReadingSettings(Section):
    """The way in which files that hold more than a picture become images.

    Saved with every detector, so that what it scores is read as what it was fitted on.
    """

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
    """The frozen vision transformer that sees the image."""

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


class Settings(Section):
    """Everything that decides what a fitted detector is; every method adds its own options."""

    method: str
    """Its name in `recap.methods`."""
    preset: str
    """What the rest started from."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    reading: ReadingSettings = ReadingSettings()
    encoder: EncoderSettings = EncoderSettings()


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


def setting_names(section: type[BaseModel], prefix: str = "") -> list[str]:
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
