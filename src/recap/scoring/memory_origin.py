"""Where the rows of a memory come from: which support image, and where in it."""

from dataclasses import dataclass
from typing import Any

from recap.data.augment import COPIES, original_position
from recap.errors import BundleError
from recap.methods.recap.head import ReCAP
from recap.scoring.bundle import Card

NOT_KEPT = (
    "This detector's memory is a coreset, and it was saved by a version that did not keep which "
    "image its rows come from. Fit again to see them."
)


@dataclass(frozen=True)
class Origin:
    """Where a remembered patch comes from."""

    support: int
    """Number in the card's list of support images."""
    name: str
    xy_px: tuple[float, float] | None
    """Its centre in that image's own pixels; None if the bundle does not tell the image's size."""
    size_hw: tuple[int, int] | None
    copy: int = 0
    """Which of the augmented copies was remembered; 0 is the image itself."""


def origins_kept(model: ReCAP) -> bool:
    """Whether the rows of the memory can be told apart by their images."""
    memory = model.memory
    return memory is not None and (model.memory_origin is not None or not _is_coreset(model))


def origin_of(model: ReCAP, card: Card, layer: int, branch: int, row: int) -> Origin:
    """The origin of a row; `branch` counts those of the memory."""
    patches = model.encoder.grid**2
    if model.memory_origin is not None:
        row = _looked_up(model, layer, branch, row)
    copies = COPIES if _remembers_copies(model) else 1
    remembered, patch = divmod(row, patches)
    number, copy = divmod(remembered, copies)
    if number >= len(card.support):
        raise BundleError("The memory does not fit the list of support images. Fit again.")
    record = card.support[number]
    size = _size(record)
    place = None if size is None else _place(model, patch, copy, size)
    return Origin(number, str(record["name"]), place, size, copy)


def patch_centre(model: ReCAP, patch: int, size_hw: tuple[int, int]) -> tuple[float, float]:
    """The centre (x, y) of a patch in the pixels of an image of that size."""
    return _place(model, patch, 0, size_hw)


def _place(model: ReCAP, patch: int, copy: int, size_hw: tuple[int, int]) -> tuple[float, float]:
    encoder = model.encoder
    row, column = divmod(patch, encoder.grid)
    across, down = (
        2 * (index + 0.5) * encoder.patch_px / encoder.input_px - 1 for index in (column, row)
    )
    x, y = original_position(copy, across, down)
    return (x + 1) / 2 * size_hw[1] - 0.5, (y + 1) / 2 * size_hw[0] - 0.5


def _looked_up(model: ReCAP, layer: int, branch: int, row: int) -> int:
    assert model.memory is not None
    assert model.memory_origin is not None
    if model.memory_origin.shape != model.memory.shape[:3]:
        raise BundleError("memory_origin does not fit the memory. Copy the bundle again.")
    found = int(model.memory_origin[layer, branch, row])
    if found < 0:
        raise BundleError("memory_origin holds a negative number. Copy the bundle again.")
    return found


def _is_coreset(model: ReCAP) -> bool:
    """Whether rows were left out; a limit that was never reached keeps all, in their order."""
    assert model.memory is not None
    coreset = model.settings.memory.coreset
    return coreset is not None and model.memory.shape[2] == coreset


def _remembers_copies(model: ReCAP) -> bool:
    """Whether augmented copies are remembered."""
    settings = model.settings
    return settings.memory.augmented and settings.training.augment


def _size(record: dict[str, Any]) -> tuple[int, int] | None:
    size = record.get("size_hw")
    return None if size is None else (int(size[0]), int(size[1]))
