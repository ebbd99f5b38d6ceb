"""Prototypes, re-centred for each image within a bound, and how patches compare with them.

Equations 1 to 4, in this order. In training a margin is one operation, whose gradient touches few
patches: a loss has a slope at the top-k patches of a score and, of a map, at those that are not
saturated at α = 100. Ordinary gradients pass over all patches all the same, which was two thirds of
the training time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.methods.recap.adapters import SLOPE
from recap.methods.recap.settings import Conditioning

EPSILON = 1e-12
NEGLIGIBLE = 1e-7
"""Share of the steepest slope below which a patch is passed over: added to the steepest one in
float32, it would be lost in rounding."""


@dataclass(frozen=True)
class Condition:
    """One way in which an image moves its prototypes; a new one is a row here and a function."""

    move: Callable[[Tensor, Tensor | None, Tensor | None, float], Tensor]
    """(q, W c, β, η) -> q̃: (…, 2, C), unit vectors. Without weights W c is None, and q is as it
    is; without a gate β is."""
    weighs: bool = True
    """Whether there is a W."""
    gated: bool = False
    shared: bool = False
    """Whether all layers and branches of a head have one pair of anchors."""
    strength: Callable[[Tensor | None, float], Tensor | float] | None = None
    """(β, η) -> the largest entry of what is added to q; none where nothing bounds it."""


class PrototypePair(nn.Module):
    """The normal and the abnormal prototype of one layer and branch, and what moves them.

    `anchors` replaces the pair's own prototypes by ones shared with other pairs; they then keep
    their random start.
    """

    def __init__(
        self,
        channels: int,
        conditioning: Conditioning,
        eta: float,
        anchors: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.condition = CONDITIONING[conditioning]
        self.eta = eta
        self.shared = anchors is not None
        self.base = random_prototypes(channels) if anchors is None else anchors
        self.weight: nn.Parameter | None = None
        self.gate: nn.Parameter | None = None
        if self.condition.weighs:
            bound = channels**-0.5  # the default start of torch.nn.Linear
            self.weight = nn.Parameter(torch.empty(2, channels, channels).uniform_(-bound, bound))
        if self.condition.gated:
            self.gate = nn.Parameter(torch.zeros(2))

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Start at class means (2, C)."""
        if not self.shared:
            self.base.copy_(F.normalize(means, dim=-1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Anchors for each image: (B, R, C) -> (B, 2, C)."""
        return find_anchors([self], tokens[None])[0]

    @torch.no_grad()
    def drift_bound(self) -> Tensor:
        """Bound the drift that any image can cause: (2,)."""
        if self.weight is None:
            return self.base.new_zeros(2)
        if self.condition.strength is None:
            return self.base.new_full((2,), 2.0)
        strength = self.base.new_ones(2) * self.condition.strength(self.gate, self.eta)
        return drift_bound(self.base.norm(dim=-1), strength, self.base.shape[-1])


def find_anchors(pairs: Sequence[PrototypePair], tokens: Tensor) -> Tensor:
    """Anchors of several pairs for each image, together: (L, B, R, C) -> (L, B, 2, C).

    For one image every operation is short, and the fewer there are the better.
    """
    first, base = pairs[0], torch.stack([pair.base for pair in pairs])[:, None]
    if first.weight is None:
        return first.condition.move(base, None, None, first.eta).expand(-1, tokens.shape[1], -1, -1)
    weights = [cast(nn.Parameter, pair.weight) for pair in pairs]
    contexts = context(tokens)
    projected = torch.stack([project(w, c) for w, c in zip(weights, contexts, strict=True)])
    gates = [pair.gate for pair in pairs if pair.gate is not None]
    gate = torch.stack(list(gates))[:, None] if gates else None
    return first.condition.move(base, projected, gate, first.eta)


@torch.no_grad()
def find_drift(pairs: Sequence[PrototypePair], anchors: Tensor) -> Tensor:
    """Measure how far prototypes moved on the unit sphere, ‖q̃ − q‖: (L, B, 2, C) -> (L, B, 2)."""
    base = F.normalize(torch.stack([pair.base for pair in pairs]), dim=-1)
    return (anchors - base[:, None]).norm(dim=-1)


def random_prototypes(channels: int) -> nn.Parameter:
    """Two random unit vectors (2, C)."""
    return nn.Parameter(F.normalize(torch.randn(2, channels), dim=-1))


def context(tokens: Tensor) -> Tensor:
    """(Eq. 1) c = Norm(mean over patches of the un-normalised tokens): (…, R, C) -> (…, C)."""
    # Not mean(): the gradient of a sum is a view, that of a mean a tensor as large as the tokens.
    return F.normalize(tokens.sum(dim=-2) / tokens.shape[-2], dim=-1)


def project(weight: Tensor, image_context: Tensor) -> Tensor:
    """W c for both classes: (2, C, C), (B, C) -> (B, 2, C)."""
    return F.linear(image_context, weight.flatten(0, 1)).unflatten(-1, (2, -1))


def recentre(base: Tensor, projected: Tensor | None, gate: Tensor | None, eta: float) -> Tensor:
    """(Eq. 2) q̃ = Norm(q + σ(β) · η · tanh(W c)): (2, C), (…, 2, C), (2,) -> (…, 2, C).

    Without a gate σ(β) is 1.
    """
    assert projected is not None
    step = eta * torch.tanh(projected)
    if gate is not None:
        step = torch.sigmoid(gate)[..., None] * step
    return F.normalize(base + step, dim=-1)


def add_freely(base: Tensor, projected: Tensor | None, gate: Tensor | None, eta: float) -> Tensor:
    """Add W c as it is: Norm(q + W c)."""
    assert projected is not None
    return F.normalize(base + projected, dim=-1)


def stay(base: Tensor, projected: Tensor | None, gate: Tensor | None, eta: float) -> Tensor:
    """Leave prototypes where they are, whatever the image: Norm(q)."""
    return F.normalize(base, dim=-1)


def bounded_strength(gate: Tensor | None, eta: float) -> Tensor | float:
    """Compute the largest entry of σ(β) · η · tanh(W c)."""
    return eta if gate is None else torch.sigmoid(gate) * eta


CONDITIONING: dict[str, Condition] = {
    "gated": Condition(recentre, gated=True, strength=bounded_strength),
    "bounded": Condition(recentre, strength=bounded_strength),
    "unbounded": Condition(add_freely),
    "static": Condition(stay, weighs=False),
    "tokens": Condition(stay, weighs=False, shared=True),
}


def drift_bound(base_norm: Tensor, strength: Tensor, channels: int) -> Tensor:
    """Bound of ‖q̃ − Norm(q)‖ when every entry of the residual is at most `strength`.

    The residual is at most ρ = strength · √C / ‖q‖ in units of q. Below 1 the widest angle it can
    open is asin ρ, a chord of 2 sin(asin(ρ) / 2); from 1 on nothing but the sphere bounds it.
    """
    ratio = strength * channels**0.5 / base_norm
    chord = 2 * torch.sin(torch.asin(ratio.clamp(max=1)) / 2)
    return torch.where(ratio < 1, chord, torch.full_like(chord, 2.0))


def class_logits(tokens: Tensor, anchors: Tensor, scale: float) -> Tensor:
    """(Eq. 3) α · cosine to both anchors: (B, R, C), (B, 2, C) -> (B, R, 2).

    Anchors are unit vectors; tokens are normalised here. Never in half precision: α magnifies a
    rounding error of bfloat16 to 0.4.
    """
    with torch.autocast(tokens.device.type, enabled=False):
        return scale * _Cosine.apply(full(tokens), full(anchors))


def margin(logits: Tensor) -> Tensor:
    """(Eq. 4) φ = abnormal − normal logit: (..., 2) -> (...)."""
    return logits[..., 1] - logits[..., 0]


def probability(patch_margin: Tensor) -> Tensor:
    """a = σ(φ), which is the abnormal entry of the softmax over both logits."""
    return torch.sigmoid(patch_margin)


def full(values: Tensor) -> Tensor:
    """At least float32."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


class _Cosine(torch.autograd.Function):
    """⟨p / ‖p‖, q⟩ with a gradient that passes over the tokens twice.

    Composed from torch's own operations it is the same number, but their gradients pass over all
    tokens five times, which was a quarter of the training time.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, anchors: Tensor) -> Tensor:
        inverse = tokens.norm(dim=-1, keepdim=True).clamp_min(EPSILON).reciprocal()
        cosine = torch.bmm(tokens, anchors.transpose(1, 2)) * inverse
        ctx.save_for_backward(tokens, anchors, inverse, cosine)
        return cosine

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        tokens, anchors, inverse, cosine = ctx.saved_tensors
        (gradient,) = gradients
        scaled = gradient * inverse  # (B, R, 2)
        # d⟨p̂, q⟩ / dp = (q − ⟨p̂, q⟩ p̂) / ‖p‖
        along = (scaled * cosine).sum(dim=-1, keepdim=True) * inverse
        to_tokens = (tokens * along.neg()).baddbmm_(scaled, anchors)
        return to_tokens, torch.bmm(scaled.transpose(1, 2), tokens)


def adapted_margins(taps: Tensor, weight: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor:
    """(Eqs. 3 and 4) φ / α = cos(p, q̃_a) − cos(p, q̃_n): (B, R) for patches p = LeakyReLU(W x).

    Taps x (B, R, width), W (C, width), anchors q̃ (B, 2, C). The tokens p (B, R, C) are given and
    taken as constants; the gradient with respect to W is that through them.
    """
    # Never in half precision: α magnifies its rounding (see `class_logits`).
    with torch.autocast(taps.device.type, enabled=False):
        taps, tokens, anchors = full(taps), full(tokens), full(anchors)
        return _Margins.apply(taps, weight, tokens, anchors[:, 1] - anchors[:, 0])


class _Margins(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, taps: Tensor, weight: Tensor, tokens: Tensor, direction: Tensor
    ) -> Tensor:
        inverse = tokens.norm(dim=-1).clamp_min(EPSILON).reciprocal()  # (B, R)
        # In this order: with the vector on the right the product takes twelve times as long.
        margins = torch.bmm(direction.unsqueeze(1), tokens.mT).squeeze(1) * inverse
        ctx.save_for_backward(taps, tokens, direction, inverse, margins)
        return margins

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, Tensor]:
        taps, tokens, direction, inverse, margins = ctx.saved_tensors
        slope = gradients[0] * inverse
        to_direction = torch.bmm(slope.unsqueeze(1), tokens).squeeze(1)
        # dφ / dp = (d − φ p̂) / ‖p‖ with d = q̃_a − q̃_n and p̂ = p / ‖p‖
        # Only of patches, counted through all images, whose slope is not negligible.
        size = gradients[0].abs().flatten()
        chosen = (size > NEGLIGIBLE * size.amax()).nonzero().squeeze(1)
        image = chosen // taps.shape[1]
        slope = slope.flatten()[chosen].unsqueeze(1)
        along = (margins * inverse).flatten()[chosen].unsqueeze(1)
        p = tokens.flatten(0, 1).index_select(0, chosen)
        to_tokens = direction.index_select(0, image).addcmul_(p, along, value=-1).mul_(slope)
        to_adapter = torch.ops.aten.leaky_relu_backward(to_tokens, p, SLOPE, True)
        x = taps.flatten(0, 1).index_select(0, chosen)
        return None, to_adapter.T @ x, None, to_direction
