"""Prototypes, re-centred for each image within a bound (Eqs. 1 and 2)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.config import Conditioning


class BoundedPrototypes(nn.Module):
    """A normal and an abnormal prototype per layer and branch, and what moves them.

    Shapes: `base` (L, 2, 2, C) as layer, branch, class; `tokens` conditioning has one pair of
    anchors for all layers and branches instead.
    """

    def __init__(
        self, layers: int, channels: int, conditioning: Conditioning, eta: float
    ) -> None:
        super().__init__()
        self.conditioning: Conditioning = conditioning
        self.eta = eta
        shape = (1, 1) if conditioning == "tokens" else (layers, 2)
        self.base = nn.Parameter(F.normalize(torch.randn(*shape, 2, channels), dim=-1))
        self.weight: nn.Parameter | None = None
        self.gate: nn.Parameter | None = None
        if conditioning in ("gated", "bounded", "unbounded"):
            bound = channels**-0.5  # the default start of torch.nn.Linear
            weight = torch.empty(layers, 2, 2, channels, channels).uniform_(-bound, bound)
            self.weight = nn.Parameter(weight)
        if conditioning == "gated":
            self.gate = nn.Parameter(torch.zeros(layers, 2, 2))

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Start at class means (L, 2, 2, C); shared anchors keep their random start."""
        if self.conditioning != "tokens":
            self.base.copy_(F.normalize(means, dim=-1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Anchors for each image: (L, 2, B, R, C) -> (L, 2, B, 2, C)."""
        base = self.base[:, :, None]  # (L, 2, 1, 2, C)
        if self.weight is None:
            layers, branches, batch = tokens.shape[:3]
            return F.normalize(base, dim=-1).expand(layers, branches, batch, -1, -1)
        projected = project(self.weight, context(tokens))
        if self.conditioning == "unbounded":
            return F.normalize(base + projected, dim=-1)
        gate = self.gate[:, :, None, :, None] if self.gate is not None else None
        return recentre(base, projected, gate, self.eta)

    def drift(self, anchors: Tensor) -> Tensor:
        """How far each prototype moved on the unit sphere: (L, 2, B, 2, C) -> (L, 2, B, 2)."""
        return (anchors - F.normalize(self.base, dim=-1)[:, :, None]).norm(dim=-1)

    def drift_bound(self) -> Tensor:
        """The largest drift that any image can cause: (L, 2, 2)."""
        layers, branches = (1, 1) if self.weight is None else self.weight.shape[:2]
        if self.weight is None:
            return self.base.new_zeros(layers, branches, 2)
        if self.conditioning == "unbounded":
            return self.base.new_full((layers, branches, 2), 2.0)
        gate = 1.0 if self.gate is None else torch.sigmoid(self.gate)
        return drift_bound(self.base.norm(dim=-1), gate * self.eta, self.base.shape[-1])


def context(tokens: Tensor) -> Tensor:
    """(Eq. 1) c = Norm(mean over patches of the un-normalised tokens): (..., R, C) -> (..., C)."""
    return F.normalize(tokens.mean(dim=-2), dim=-1)


def project(weight: Tensor, image_context: Tensor) -> Tensor:
    """W c for all layers, branches and classes: (L, 2, 2, D, C), (L, 2, B, C) -> (L, 2, B, 2, D)."""
    return torch.einsum("lkzdc,lkbc->lkbzd", weight, image_context)


def recentre(base: Tensor, projected: Tensor, gate: Tensor | None, eta: float) -> Tensor:
    """(Eq. 2) q̃ = Norm(q + σ(β) · η · tanh(W c)); without a gate σ(β) is 1."""
    step = eta * torch.tanh(projected)
    if gate is not None:
        step = torch.sigmoid(gate) * step
    return F.normalize(base + step, dim=-1)


def drift_bound(base_norm: Tensor, strength: Tensor | float, channels: int) -> Tensor:
    """Bound of ‖q̃ − Norm(q)‖ when every entry of the residual is at most `strength`.

    The residual is at most ρ = strength · √C / ‖q‖ in units of q. Below 1 the widest angle it can
    open is asin ρ, a chord of 2 sin(asin(ρ) / 2); from 1 on nothing but the sphere bounds it.
    """
    ratio = strength * channels**0.5 / base_norm
    chord = 2 * torch.sin(torch.asin(ratio.clamp(max=1)) / 2)
    return torch.where(ratio < 1, chord, torch.full_like(chord, 2.0))
