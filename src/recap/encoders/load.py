"""From a name to a frozen encoder in memory."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recap.config import EncoderSettings
from recap.encoders.header import VISION_TOWERS
from recap.encoders.normalisation import Normalisation, normalisation_of
from recap.encoders.registry import find
from recap.encoders.weights import locate
from recap.errors import WeightsError
from recap.words import counted

if TYPE_CHECKING:
    from recap.encoders.vit import Encoder

RANDOM = "random"
"""The checksum of an encoder that was never trained."""


def load_encoder(settings: EncoderSettings, seed: int = 0) -> "Encoder":
    """Load a frozen encoder from local files, or build one with random weights if asked to."""
    from recap.encoders.vit import Encoder

    if settings.random_weights:
        model, normalisation, checksum = *_random_model(settings.name, seed), RANDOM
    else:
        files = locate(settings.name)
        model, normalisation = _saved_model(files.folder, settings.name)
        checksum = files.sha256
    mean, std = normalisation if settings.normalise == "own" else ((0.0,) * 3, (1.0,) * 3)
    return Encoder(
        model,
        name=settings.name,
        checksum=checksum,
        input_px=settings.input_px,
        layers=settings.layers,
        mean=mean,
        std=std,
        antialias_positions=settings.positions == "antialias",
    )


def _random_model(name: str, seed: int) -> tuple[Any, Normalisation]:
    from recap.encoders.draws import own_draws

    entry = find(name)
    config = dict(entry.config, model_type=entry.model_type) if entry else _read_config(Path(name))
    with own_draws(seed), quiet_transformers():
        model = _class_of(config)(_vision_config(config))
    return model, (entry.mean, entry.std) if entry else normalisation_of(Path(name), config)


def _saved_model(folder: Path, name: str) -> tuple[Any, Normalisation]:
    import torch

    config = _read_config(folder)
    with quiet_transformers():
        model, report = _class_of(config).from_pretrained(
            folder,
            config=_vision_config(config),
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    # transformers fills a missing tensor with noise; only a pooling head may be missing, as
    # nothing here reads it.
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise WeightsError(
            f"{folder} lacks {counted(len(missing), 'tensor')} of a {_family_name(config)}, "
            f"first {missing[0]}. It is not a whole checkpoint of this model."
        )
    entry = find(name)
    return model, (entry.mean, entry.std) if entry else normalisation_of(folder, config)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"Cannot read {path}: {error}. An encoder folder holds config.json and "
            "model.safetensors; `recap weights list` shows the named encoders."
        ) from error


def _family_name(config: dict[str, Any]) -> str:
    from recap.encoders.vit import FAMILIES

    kind = str(config.get("model_type", ""))
    kind = VISION_TOWERS.get(kind, kind)
    if kind not in FAMILIES:
        raise WeightsError(
            f"Model type '{kind}' is not supported. Supported: {', '.join(sorted(FAMILIES))}."
        )
    return kind


def _class_of(config: dict[str, Any]) -> Any:
    import transformers

    from recap.encoders.vit import FAMILIES

    return getattr(transformers, FAMILIES[_family_name(config)].model_class)


def _vision_config(config: dict[str, Any]) -> Any:
    import transformers

    from recap.encoders.vit import FAMILIES

    config_class = getattr(transformers, FAMILIES[_family_name(config)].config_class)
    return config_class.from_dict(config.get("vision_config", config))


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Text-tower keys that a vision tower does not use are expected, not worth a warning."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
