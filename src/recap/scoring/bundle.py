"""A saved detector: a folder of `bundle.json` (what it is) and `head.safetensors` (numbers)."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from recap.config import AnySettings
from recap.errors import BundleError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
CARD, TENSORS = "bundle.json", "head.safetensors"
Mode = Literal["few-shot", "zero-shot", "normal-only"]


class EncoderRecord(BaseModel):
    """Which encoder a detector was fitted on."""

    model_config = ConfigDict(extra="forbid")
    name: str
    sha256: str
    """Of its model.safetensors; `random` for weights that were never trained."""


class Card(BaseModel):
    """All about a detector but its numbers. Holds no date: the same fit is the same bytes."""

    model_config = ConfigDict(extra="forbid")
    format: Literal[1] = 1
    mode: Mode
    statement: str
    """What the detector consists of, in one plain sentence."""
    encoder: EncoderRecord
    preprocessing: dict[str, Any]
    settings: AnySettings
    support: list[dict[str, Any]]
    losses: dict[str, float]
    map_scale: tuple[float, float]
    """Map values drawn from nothing to full strength, the same for every image."""
    versions: dict[str, str]
    fingerprint: str


def write_bundle(folder: Path, card: Card, tensors: "dict[str, Tensor]") -> None:
    """Write a bundle beside its place, then move it there whole."""
    from safetensors.torch import save_file

    if folder.exists():
        read_card(folder)  # never replace a folder that is not a bundle
    partial = folder.with_name(folder.name + ".writing")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    save_file(tensors, partial / TENSORS)
    (partial / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


def read_card(folder: Path) -> Card:
    """Read what a bundle says about itself."""
    path = folder / CARD
    if not path.is_file():
        raise BundleError(
            f"{folder} is not a recap bundle: it has no {CARD}. `recap fit --out DIR` makes one."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("format") != FORMAT:
            raise BundleError(
                f"{path} has format {content.get('format')!r}; this version of recap reads "
                f"format {FORMAT}. Install the version that wrote it, or fit again."
            )
        return Card.model_validate(content)
    except (ValidationError, ValueError, OSError) as error:
        first = str(error).splitlines()[0]
        raise BundleError(f"{path} is damaged ({first}). Copy the bundle again.") from error


def read_tensors(folder: Path) -> "dict[str, Tensor]":
    """Read a bundle's numbers."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / TENSORS
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise BundleError(
            f"{path} is missing or damaged ({error}). Copy the bundle again."
        ) from error
