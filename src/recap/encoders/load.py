"""From a name to a frozen encoder in memory, and what its tokens depend on."""

import contextlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recap.config import EncoderSettings
from recap.encoders._cache import normalisation_of, read_config
from recap.encoders._hub import CONFIG_FILE
from recap.encoders.registry import RANDOM, Family, Normalisation, all_families, find
from recap.encoders.weights import locate
from recap.errors import WeightsError, counted

if TYPE_CHECKING:
    import torch

    from recap.encoders.vit import Encoder


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
    entry = find(name)
    if entry:
        config = {"model_type": entry.model_type, **entry.config}
    else:
        config = read_config(Path(name) / CONFIG_FILE)
    with seeded(seed), quiet_transformers():
        model = _class_of(config)(_vision_config(config))
    return model, (entry.mean, entry.std) if entry else normalisation_of(Path(name), config)


def _saved_model(folder: Path, name: str) -> tuple[Any, Normalisation]:
    import torch

    config = read_config(folder / CONFIG_FILE)
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
            f"{folder} lacks {counted(len(missing), 'tensor')} of a {config['model_type']}, "
            f"first {missing[0]}. It is not a whole checkpoint of this model."
        )
    entry = find(name)
    return model, (entry.mean, entry.std) if entry else normalisation_of(folder, config)


def _family(config: dict[str, Any]) -> Family:
    kind, known = config["model_type"], all_families()
    if kind not in known:  # a network that another method trains
        raise WeightsError(
            f"Model type '{kind}' is not supported. Supported: {', '.join(sorted(known))}."
        )
    return known[kind]


def _class_of(config: dict[str, Any]) -> Any:
    return _named(_family(config).model_class)


def _vision_config(config: dict[str, Any]) -> Any:
    return _named(_family(config).config_class).from_dict(config)


def _named(name: str) -> Any:
    """Import a class of transformers or, as "package.module:Class", of another package."""
    module, colon, leaf = name.rpartition(":")
    return getattr(import_module(module if colon else "transformers"), leaf)


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


@contextlib.contextmanager
def seeded(seed: int | None = None) -> Iterator[None]:
    """Draw on the processor, from `seed` on if one is given; then torch's generator is as before.

    No GPU is started for it.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


def seed_draws(seed: int, device: "torch.device") -> None:
    """Start the draws on the processor, and on the device if it is another, from a seed on.

    torch.manual_seed does both, but where there is no GPU it notes for every kind that there might
    be what to do once one is there, with the whole stack: at each step of a training that adds up.
    """
    import torch

    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
