"""Prototypes, re-centred for each image within a bound (Eqs. 1 and 2)."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.config import Conditioning


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
        self.conditioning: Conditioning = conditioning
        self.eta = eta
        self.shared = anchors is not None
        self.base = random_prototypes(channels) if anchors is None else anchors
        self.weight: nn.Parameter | None = None
        self.gate: nn.Parameter | None = None
        if conditioning in ("gated", "bounded", "unbounded"):
            bound = channels**-0.5  # the default start of torch.nn.Linear
            self.weight = nn.Parameter(torch.empty(2, channels, channels).uniform_(-bound, bound))
        if conditioning == "gated":
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
        """The largest drift that any image can cause: (2,)."""
        if self.weight is None:
            return self.base.new_zeros(2)
        if self.conditioning == "unbounded":
            return self.base.new_full((2,), 2.0)
        gate = self.base.new_ones(2) if self.gate is None else torch.sigmoid(self.gate)
        return drift_bound(self.base.norm(dim=-1), gate * self.eta, self.base.shape[-1])


def find_anchors(pairs: Sequence[PrototypePair], tokens: Tensor) -> Tensor:
    """Anchors of several pairs for each image, together: (L, B, R, C) -> (L, B, 2, C).

    For one image every operation is short, and the fewer there are the better.
    """
    first, base = pairs[0], torch.stack([pair.base for pair in pairs])[:, None]
    if first.weight is None:
        return F.normalize(base, dim=-1).expand(-1, tokens.shape[1], -1, -1)
    weights = [cast(nn.Parameter, pair.weight) for pair in pairs]
    contexts = context(tokens)
    projected = torch.stack([project(w, c) for w, c in zip(weights, contexts, strict=True)])
    if first.conditioning == "unbounded":
        return F.normalize(base + projected, dim=-1)
    gates = [pair.gate for pair in pairs if pair.gate is not None]
    gate = torch.stack(list(gates))[:, None] if gates else None
    return recentre(base, projected, gate, first.eta)


@torch.no_grad()
def find_drift(pairs: Sequence[PrototypePair], anchors: Tensor) -> Tensor:
    """How far prototypes moved on the unit sphere, ‖q̃ − q‖: (L, B, 2, C) -> (L, B, 2)."""
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


def recentre(base: Tensor, projected: Tensor, gate: Tensor | None, eta: float) -> Tensor:
    """(Eq. 2) q̃ = Norm(q + σ(β) · η · tanh(W c)): (2, C), (…, 2, C), (2,) -> (…, 2, C).

    Without a gate σ(β) is 1.
    """
    step = eta * torch.tanh(projected)
    if gate is not None:
        step = torch.sigmoid(gate)[..., None] * step
    return F.normalize(base + step, dim=-1)


def drift_bound(base_norm: Tensor, strength: Tensor, channels: int) -> Tensor:
    """Bound of ‖q̃ − Norm(q)‖ when every entry of the residual is at most `strength`.

    The residual is at most ρ = strength · √C / ‖q‖ in units of q. Below 1 the widest angle it can
    open is asin ρ, a chord of 2 sin(asin(ρ) / 2); from 1 on nothing but the sphere bounds it.
    """
    ratio = strength * channels**0.5 / base_norm
    chord = 2 * torch.sin(torch.asin(ratio.clamp(max=1)) / 2)
    return torch.where(ratio < 1, chord, torch.full_like(chord, 2.0))
