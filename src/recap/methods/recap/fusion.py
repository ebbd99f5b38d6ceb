"""Pooling over patches, fusion over layers and branches (Eqs. 7 to 9)."""

from torch import Tensor


def top_count(count: int, ratio: float) -> int:
    """k = max(1, int(ratio · R)), of R patches or of the images of a case."""
    # 0.29 · 100 is 28.999… in binary; a hair more keeps the decimal meaning.
    return max(1, int(ratio * count + 1e-9))


def top_k_mean(values: Tensor, ratio: float) -> Tensor:
    """Mean of the k largest patch values: (..., R) -> (...)."""
    count = top_count(values.shape[-1], ratio)
    return values.topk(count, dim=-1, sorted=False).values.mean(dim=-1)


def fuse_layers(per_layer: Tensor, theta: Tensor) -> Tensor:
    """Σ_l softmax(θ)_l · v_l: (L, ...), (L,) -> (...)."""
    weights = theta.softmax(dim=0).view(-1, *[1] * (per_layer.dim() - 1))
    return (weights * per_layer).sum(dim=0)


def image_score(patch_values: Tensor, theta: Tensor, ratio: float) -> Tensor:
    """(Eqs. 7 and 8) Top-k mean per layer, then layer fusion: (L, B, R) -> (B,).

    Probabilities give the prototype score, normalised distances the memory score.
    """
    return fuse_layers(top_k_mean(patch_values, ratio), theta)


def fuse_branches(prototype: Tensor, memory: Tensor, weight: float) -> Tensor:
    """(Eq. 9) (1 − λ) · prototype + λ · memory; for scores and for maps."""
    return (1 - weight) * prototype + weight * memory
