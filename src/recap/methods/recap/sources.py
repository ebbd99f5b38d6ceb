"""Sources of evidence beside the memory: prototypes, and the image as a whole.

A source is one class: `forward` says what it sees of a batch, `without` is itself as if a normal
support image had not been there, and what fitting decides is in its buffers. Patches say where an
image differs; some diseases change all of it a little, and patches of an unseen domain differ from
those of others more than lesions do from their surroundings. Both are told by images as a whole, in
closed forms that are the same for every seed.
"""

import copy
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.methods.base import Evidence, top_k_mean
from recap.methods.recap.prototypes import probability
from recap.methods.recap.view import View

PENALTY = 0.1
"""Of the regression, for vectors of mean length 1; between 0.003 and 0.3 it hardly matters."""
STEEPNESS = 2.0
"""An image that is as its class in the support set (±1) has the evidence 0.12 or 0.88; one that is
as a class of other domains on average 0.17 or 0.83."""
FLOOR = 0.01
"""Part of the mean variance that is added to each coordinate's: of few images it may be 0."""


class Prototypes(nn.Module):
    """Abnormal probabilities of the patches, from the re-centred prototypes of both branches.

    `softness` divides margins in maps: α = 100 leaves hardly anything between 0 and 1. With `peak`
    the score is made of the same soft values.
    """

    name = "prototype"

    def __init__(self, softness: float, peak: bool, pool: float) -> None:
        super().__init__()
        self.softness, self.peak, self.pool = softness, peak, pool

    def forward(self, view: View) -> Evidence:
        """Compare every patch with the prototypes."""
        (seg, seg_drift), (det, det_drift) = view.maps.judged, view.scores.judged
        soft = seg * self.softness
        return Evidence(
            self.name,
            top_k_mean(probability(soft if self.peak else det), self.pool),
            view.scores.weights,
            1.0,
            probability(view.drawing.draw(soft)),
            view.maps.weights,
            1.0,
            view.blocks,
            torch.stack([seg_drift, det_drift], dim=1),
        )

    def without(self, image: int) -> Self:
        """As it is: training cannot be taken back, so what follows from this is an estimate."""
        return self


class WholeImage(nn.Module):
    """A direction in which whole images differ: a ridge regression on the support's labels."""

    name = "appearance"
    direction: Tensor | None
    """(D + 1,), the last one its offset."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("direction", None)
        self._learned: tuple[Tensor, Tensor] | None = None

    def learn(self, vectors: Tensor, abnormal: Tensor) -> None:
        """Learn from whole images (n, D), the normal ones first, and their labels (n,)."""
        self.direction = solve_labels(vectors, abnormal)
        self._learned = vectors, abnormal

    def forward(self, view: View) -> Evidence:
        """Say how much each image looks like the abnormal ones."""
        assert self.direction is not None, "fit comes first"
        place = STEEPNESS * project(view.features.appearance, self.direction)
        return _of_image(self.name, torch.sigmoid(place), self.share)

    def without(self, image: int) -> Self:
        """Regress on all other images, while these are at hand; afterwards leave it as it is."""
        if self._learned is None:
            return self
        vectors, abnormal = self._learned
        others = torch.arange(len(vectors)) != image
        other = copy.copy(self)
        other._buffers = {"direction": solve_labels(vectors[others], abnormal[others])}
        return other

    def settle(self) -> None:
        """Let go of what only fitting needs."""
        self._learned = None

    def lacking(self) -> str:
        """Name what a saved detector cannot do without."""
        return "" if self.direction is not None else "a direction of whole images"


class ClassTokens(nn.Module):
    """The direction in which class tokens of abnormal images differ in other domains.

    An unseen domain may lie many gaps away from all sources. A sigmoid would be 1.0 there for every
    image; what is used instead falls off slowly enough to tell them apart.
    """

    name = "appearance"
    direction: Tensor | None
    """(D + 1,), the last one its offset."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("direction", None)

    def learn(self, vectors: Tensor, abnormal: Tensor, domain: Tensor) -> None:
        """Learn from class tokens (n, D), their labels (n,) and which domain each is of (n,)."""
        self.direction = solve_domains(vectors, abnormal, domain)

    def forward(self, view: View) -> Evidence:
        """Say how far each image lies towards the abnormal ones of the sources."""
        assert self.direction is not None, "fit comes first"
        place = STEEPNESS * project(view.features.class_tokens, self.direction)
        return _of_image(self.name, (1 + F.softsign(place)) / 2, 1.0)

    def without(self, image: int) -> Self:
        """As it is: it has seen no image of the target."""
        return self

    def lacking(self) -> str:
        """Name what a saved detector cannot do without."""
        return "" if self.direction is not None else "a direction of class tokens"


def _of_image(name: str, values: Tensor, share: float) -> Evidence:
    """Evidence (B,) of images as a whole, which says nothing about places."""
    return Evidence(name, values[None], torch.ones_like(values[:1]), share)


def project(vectors: Tensor, direction: Tensor) -> Tensor:
    """Place images along a direction with its offset: (B, D), (D + 1,) -> (B,)."""
    return vectors @ direction[:-1] + direction[-1]


def solve_labels(vectors: Tensor, abnormal: Tensor) -> Tensor:
    """Ridge regression on labels ±1: (n, D), (n,) -> (D + 1,), the last one its offset.

    Both classes weigh the same, however many images they have.
    """
    x, labels = vectors.cpu().double(), abnormal.cpu()  # some GPUs have no float64
    share = torch.where(labels, labels.double().mean(), (~labels).double().mean())
    weight = 0.5 / share  # 1 for every image where there are as many of both
    centre = (x[labels].mean(dim=0) + x[~labels].mean(dim=0)) / 2
    x = x - centre
    length = x.norm(dim=1).mean().clamp_min(1e-12)
    x = x / length
    target = torch.where(labels, 1.0, -1.0).to(x)
    dual = torch.linalg.solve(x @ x.T + PENALTY * torch.diag(1 / weight), target)
    direction = x.T @ dual / length
    return torch.cat([direction, -(direction @ centre)[None]]).to(vectors)


def solve_domains(vectors: Tensor, abnormal: Tensor, domain: Tensor) -> Tensor:
    """Difference of the class means, over the spread, all domains alike: (n, D) -> (D + 1,).

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


def _difference(normal: Tensor, abnormal: Tensor) -> Tensor:
    """Divide the difference of the means by their spread, coordinate by coordinate: (D,)."""
    variance = (_variance(normal) + _variance(abnormal)) / 2
    spread = (variance + FLOOR * variance.mean()).sqrt().clamp_min(1e-12)
    return (abnormal.mean(dim=0) - normal.mean(dim=0)) / spread


def _variance(vectors: Tensor) -> Tensor:
    return (vectors - vectors.mean(dim=0)).square().mean(dim=0)
