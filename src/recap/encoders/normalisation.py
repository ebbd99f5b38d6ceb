"""Mean and standard deviation of the pixels that an encoder was trained on."""

import json
import math
from pathlib import Path
from typing import Any

from recap.encoders.header import read_config
from recap.encoders.hub import CONFIG_FILE, PREPROCESSOR_FILE
from recap.encoders.registry import CLIP, IMAGENET, Triple, find
from recap.errors import WeightsError

Normalisation = tuple[Triple, Triple]
"""Mean and standard deviation of red, green and blue in 0..1."""

_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
USUAL: dict[str, Normalisation] = {
    "clip_vision_model": CLIP,
    "dinov2": IMAGENET,
    "dinov2_with_registers": IMAGENET,
    "dinov3_vit": IMAGENET,
    "siglip_vision_model": _HALF,
    "siglip2_vision_model": _HALF,
    "vit": _HALF,
}
"""What most checkpoints of a family were trained on; one may well be another's."""


def normalisation_of(folder: Path, config: dict[str, Any]) -> Normalisation:
    """The mean and std beside the weights, or those usual in the family."""
    return _stated(folder) or USUAL[config["model_type"]]


def assumed_normalisation(name: str, folder: Path) -> str | None:
    """What is assumed of an encoder in a folder, in words; None where its own files say it."""
    kind = read_config(folder / CONFIG_FILE)["model_type"]
    if find(name) is not None or kind not in USUAL or _stated(folder) is not None:
        return None
    mean, std = USUAL[kind]
    return (
        f"{name}: no {PREPROCESSOR_FILE} says how pixels are normalised. Assumed, as usual for "
        f"{kind}: mean {list(mean)}, std {list(std)}. If it was trained on others, put that file "
        "beside its weights."
    )


def _stated(folder: Path) -> Normalisation | None:
    path = folder / PREPROCESSOR_FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        mean, std = values.get("image_mean"), values.get("image_std")
        return None if mean is None or std is None else (_triple(mean), _triple(std, least=1e-6))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{path} is damaged: its image_mean and image_std must be three numbers each, and no "
            "std may be 0. Copy it again from where the encoder comes from."
        ) from error


def _triple(values: list[float], least: float = -math.inf) -> Triple:
    red, green, blue = map(float, values)
    if not all(math.isfinite(value) and value >= least for value in (red, green, blue)):
        raise ValueError(values)
    return red, green, blue
