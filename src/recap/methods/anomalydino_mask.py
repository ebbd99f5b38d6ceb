"""AnomalyDINO's foreground: patches on one side of the first principal component of an image."""

import torch
import torch.nn.functional as F
from torch import Tensor

BORDER = 0.2
"""Part of the side to each edge that is not the centre."""
CENTRE_KEPT = 0.35
"""At most this share of the centre kept: the object must be on the component's other side."""


def foreground(tokens: Tensor, threshold: float) -> Tensor:
    """Which patches of an image show its object: (R, C) -> (R,) bool.

    The first component has no sign of its own: it is turned so that the centre of the picture is
    on its positive side. What is kept is made larger by one patch and its small holes are closed.
    """
    grid = round(len(tokens) ** 0.5)
    component = first_component(tokens).view(grid, grid)
    component = component * (1 if central(component).mean() >= 0 else -1)
    kept = component > threshold
    if central(kept).sum() <= CENTRE_KEPT * central(kept).numel():
        kept = -component > threshold
    grown = _dilate(kept.float()[None])
    return _erode(_dilate(grown)).flatten() > 0.5


def first_component(tokens: Tensor) -> Tensor:
    """Coordinates of rows along their first principal component, of either sign: (R, C) -> (R,).

    From the smaller of the two matrices of products; the exact one, so that nothing is random.
    """
    centred = tokens - tokens.mean(dim=0)
    wide = centred.shape[1] > centred.shape[0]
    products = centred @ centred.T if wide else centred.T @ centred
    vector = torch.linalg.eigh(products)[1][:, -1]
    return centred @ (F.normalize(centred.T @ vector, dim=0) if wide else vector)


def shows_an_object(tokens: Tensor, threshold: float) -> bool:
    """Whether masking makes sense for images such as this one: (R, C).

    It does where most of the centre is kept and most of the outermost patches are not. A texture
    that fills the picture, or an object that is not in its middle, is better not masked.
    """
    grid = round(len(tokens) ** 0.5)
    kept = foreground(tokens, threshold).view(grid, grid)
    frame = torch.ones_like(kept)
    frame[1:-1, 1:-1] = False
    return bool(central(kept).float().mean() > 0.5 and kept[frame].float().mean() < 0.5)


def central(values: Tensor) -> Tensor:
    """The centre of a square (g, g)."""
    grid = len(values)
    inner = slice(int(grid * BORDER), max(int(grid * (1 - BORDER)), int(grid * BORDER) + 1))
    return values[inner, inner]


def _dilate(mask: Tensor) -> Tensor:
    return F.max_pool2d(mask, 3, stride=1, padding=1)


def _erode(mask: Tensor) -> Tensor:
    return -F.max_pool2d(-mask, 3, stride=1, padding=1)
