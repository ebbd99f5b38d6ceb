"""Zero-shot scores from class tokens: which way abnormal images of other domains differ.

Patches of an unseen domain differ from those of the sources more than lesions do from their
surroundings, so that trained prototypes say little about it. The class token sums an image up, and
how abnormal images move it is partly the same everywhere. The difference of the class means in
every source domain, each coordinate over its spread there, all domains alike: a closed form, the
same for every seed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FLOOR = 0.01
"""Part of the mean variance that is added to each coordinate's: of few images it may be 0."""
STEEPNESS = 2.0
"""An image that is as a class of the sources on average (±1) has the evidence 0.17 or 0.83."""


def class_vectors(tokens: Tensor) -> Tensor:
    """Unit class tokens of the tapped layers, side by side: (B, L, width) -> (B, L · width)."""
    return F.normalize(tokens, dim=-1).flatten(1)


def solve_sources(vectors: Tensor, abnormal: Tensor, domain: Tensor) -> Tensor:
    """(n, D), (n,) bool, (n,) which domain -> (D + 1,), the last one its offset; what it gives is
    read by `class_evidence`.

    A domain without images of both classes says nothing about their difference; where all are like
    that, they are taken as one.
    """
    x, labels = vectors.cpu().double(), abnormal.cpu()  # some GPUs have no float64
    groups = [domain.cpu() == number for number in domain.unique().tolist()]
    groups = [group for group in groups if labels[group].any() and not labels[group].all()]
    groups = groups or [torch.ones_like(labels)]
    pairs = [(x[group & ~labels], x[group & labels]) for group in groups]
    direction = torch.stack([_difference(*pair) for pair in pairs]).mean(dim=0)
    # Classes of the sources lie at ±1 on average.
    projected = [(normal @ direction, ill @ direction) for normal, ill in pairs]
    gap = torch.stack([ill.mean() - normal.mean() for normal, ill in projected]).mean() / 2
    middle = torch.stack([ill.mean() + normal.mean() for normal, ill in projected]).mean() / 2
    gap = gap.clamp_min(1e-12)
    return torch.cat([direction / gap, -(middle / gap)[None]]).to(vectors)


def class_evidence(vectors: Tensor, solved: Tensor) -> Tensor:
    """How far an image lies towards abnormal ones of the sources, 0..1: (B, D), (D + 1,) -> (B,).

    An unseen domain may lie many gaps away from all sources. A sigmoid would be 1.0 there for every
    image; this falls off slowly enough to tell them apart.
    """
    place = STEEPNESS * (vectors @ solved[:-1] + solved[-1])
    return (1 + F.softsign(place)) / 2


def _difference(normal: Tensor, abnormal: Tensor) -> Tensor:
    """How far apart the means are, coordinate by coordinate, over their spread: (D,)."""
    variance = (_variance(normal) + _variance(abnormal)) / 2
    spread = (variance + FLOOR * variance.mean()).sqrt().clamp_min(1e-12)
    return (abnormal.mean(dim=0) - normal.mean(dim=0)) / spread


def _variance(vectors: Tensor) -> Tensor:
    return (vectors - vectors.mean(dim=0)).square().mean(dim=0)
