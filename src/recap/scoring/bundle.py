"""A saved detector: a folder of `bundle.json` (what it is) and `head.safetensors` (numbers)."""

import json
import math
import shutil
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializeAsAny,
    ValidationError,
    field_validator,
)

from recap._files import check_place, error_message, write_atomic
from recap.config import ReadingSettings, Settings
from recap.errors import BundleError, SettingsError
from recap.io.decoding import not_there
from recap.methods.registry import settings_from_dict
from recap.scoring.bundle_folder import (
    CARD,
    COPY_AGAIN,
    TENSORS,
    THUMBNAILS,
    Bundle,
    thumbnail_name,
)
from recap.scoring.calibration import Calibration
from recap.scoring.domain_guard import DomainRange
from recap.types import Mode

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
_DEEPEST_JSON = 32


class EncoderRecord(BaseModel):
    """Which encoder a detector was fitted on."""

    model_config = ConfigDict(extra="forbid")
    name: str
    sha256: str
    """Of its model.safetensors; `random` for weights that were never trained."""


class Card(BaseModel):
    """All about a detector but its numbers. Holds no date: the same fit is the same bytes."""

    model_config = ConfigDict(extra="forbid")
    format: Literal[2] = 2
    mode: Mode
    statement: str
    """What the detector consists of, in one plain sentence."""
    encoder: EncoderRecord
    preprocessing: dict[str, Any]
    settings: Annotated[
        SerializeAsAny[Settings],
        BeforeValidator(lambda t: settings_from_dict(t) if isinstance(t, dict) else t),
    ]
    variant: str = ""
    """Which of its models the method built; of ours a row of `recap.methods.recap.regimes`."""
    support: list[dict[str, Any]]
    losses: dict[str, float]
    map_scale: tuple[float, float]
    """Map values drawn from nothing to full strength, as the fit suggests; see `drawn_scale`."""
    versions: dict[str, str]
    fingerprint: str
    """Of the fit; calibration leaves it as it is."""
    calibration: Calibration | None = None
    domain: DomainRange | None = None
    """How far the support images lie from each other, or those it was calibrated on; their
    descriptors are in head.safetensors. None for fewer than two, and from other methods."""
    thumbnails: int = 0
    """How many small pictures of support images lie in the bundle: images of patients, kept only
    where that was asked for."""
    head_sha256: str | None = None
    """Of head.safetensors; None in bundles of versions that did not note it."""

    @field_validator("support")
    @classmethod
    def _names_every_image(cls, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for number, record in enumerate(records):
            for key in ("name", "label", "sha256"):
                if not isinstance(record.get(key), str):
                    raise ValueError(f"image {number} has no {key}")
        return records

    @property
    def reading(self) -> ReadingSettings:
        """How files are read unless something else is asked for: as when calibrated, or fitted.

        A threshold holds only for files that are read as the calibration images were.
        """
        return self.settings.reading if self.calibration is None else self.calibration.reading

    @property
    def drawn_scale(self) -> tuple[float, float]:
        """Map values drawn from nothing to full strength, the same for every image.

        Nothing below the level of a region is drawn as strongly as a region.
        """
        low, high = self.map_scale
        level = self.calibration.map_level if self.calibration is not None else high
        return low, max(high, level) if math.isfinite(level) else high


_PACKAGES = ("recap-ad", "torch", "transformers", "numpy", "pillow")


def library_versions() -> dict[str, str]:
    """The versions that decide the numbers."""
    return {name: _version(name) for name in _PACKAGES}


@cache  # every look reads and parses the whole description of a package
def _version(name: str) -> str:
    return version(name)


def write_bundle(
    folder: Path,
    card: Card,
    tensors: "dict[str, Tensor]",
    keep: Path | None = None,
    thumbnails: Mapping[int, bytes] | None = None,
) -> None:
    """Write a bundle beside its place, then move it there whole.

    What else lies in the bundle `keep` is carried over. `thumbnails` are PNGs of support images
    by their number.
    """
    from safetensors.torch import save

    check_place(folder)
    if folder.exists():
        read_card(folder)  # never replace a folder that is not a bundle
    # A link stays, and the bundle that it leads to is replaced; "." has no name to write beside.
    folder = folder.resolve()
    partial = folder.with_name(folder.name + ".writing")
    _remove(partial)
    partial.mkdir(parents=True)
    if keep is not None:
        Bundle(keep).copy_to(partial, without=frozenset({CARD, TENSORS}))
    # Not by `save_file`: its files are for the user alone who fits, whatever the umask says.
    numbers = save(tensors)
    write_atomic(partial / TENSORS, numbers)
    for number, png in (thumbnails or {}).items():
        write_atomic(partial / thumbnail_name(number), png)
    count = len(list((partial / THUMBNAILS).glob("*.png")))
    digest = sha256(numbers).hexdigest()
    card = card.model_copy(update={"thumbnails": count, "head_sha256": digest})
    (partial / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
    _replace(folder, partial)


def _replace(folder: Path, partial: Path) -> None:
    """Two renames, so that a kill between them leaves both bundles whole on disk."""
    if not folder.exists():
        partial.rename(folder)
        return
    old = folder.with_name(folder.name + ".replaced")
    _remove(old)
    folder.rename(old)
    partial.rename(folder)
    _remove(old)


def _remove(leftover: Path) -> None:
    """Remove what lies in the way of a save, such as what a killed one left; of a link, itself."""
    if leftover.is_symlink():
        leftover.unlink()
    elif leftover.exists():
        shutil.rmtree(leftover)


def read_card(folder: Path) -> Card:
    """Read what a bundle says about itself."""
    path = folder / CARD
    if not folder.exists():
        raise BundleError(
            f"{folder}: {not_there(folder, 'bundle')} `recap fit --out DIR` makes one."
        )
    if not folder.is_dir():
        raise BundleError(f"{folder} is not a recap bundle but a file; a bundle is a folder.")
    bundle = Bundle(folder)
    try:
        if not bundle.has(CARD):
            raise BundleError(
                f"{folder} is not a recap bundle: it has no {CARD}. `recap fit --out DIR` makes "
                "one."
            )
        content = json.loads(bundle.read(CARD).decode())
        if isinstance(content, dict) and content.get("format") != FORMAT:
            raise BundleError(
                f"{path} has format {content.get('format')!r}; this version of recap reads "
                f"format {FORMAT}. Install the version that wrote it, or fit again."
            )
        _refuse_deep(content)
        return Card.model_validate(content)
    except RecursionError as error:
        raise BundleError(f"{path} is damaged (nested too deep). {COPY_AGAIN}") from error
    except PermissionError as error:
        raise BundleError(error_message(error)) from error
    except (ValidationError, SettingsError, ValueError, OSError) as error:
        raise BundleError(f"{path} is damaged ({_first(error)}). {COPY_AGAIN}") from error


def is_of_fit(folder: Path, fingerprint: str) -> bool:
    """Whether a bundle lies there that comes from the fit with this fingerprint."""
    return Bundle(folder).has(CARD) and read_card(folder).fingerprint == fingerprint


def _refuse_deep(content: Any) -> None:
    """Refuse what could be read but not written again: nested far deeper than any card is."""
    level = [content]
    for _ in range(_DEEPEST_JSON):
        level = [
            below
            for each in level
            if isinstance(each, dict | list)
            for below in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError("nested too deep")


def _first(error: Exception) -> str:
    """What is wrong in a few words: of several wrong fields, the first."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0]
    wrong = error.errors(include_url=False)[0]
    field = ".".join(map(str, wrong["loc"])) or "its content"
    return f"{field}: {wrong['msg']}"


def read_tensors(folder: Path, card: Card) -> "dict[str, Tensor]":
    """Read a bundle's numbers, which must be those that its card was written with."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    bundle = Bundle(folder)
    path = bundle.named(TENSORS)
    try:
        content = bundle.read(TENSORS)
        tensors = load(content)
    except PermissionError as error:
        raise BundleError(error_message(error)) from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:  # KeyError: an unknown type
        raise BundleError(f"{path} is missing or damaged ({error}). {COPY_AGAIN}") from error
    digest = sha256(content).hexdigest()
    if card.head_sha256 is not None and card.head_sha256 != digest:
        raise BundleError(
            f"{path} is damaged: its SHA-256 is {digest[:12]}…, but {CARD} says "
            f"{card.head_sha256[:12]}…. {COPY_AGAIN}"
        )
    return tensors
