"""The method's equations once more: loops over float64 numbers, written from the equations alone.

Nothing here uses torch, so that a mistake in the model cannot hide in its reference.
"""

import math
from collections.abc import Sequence

import numpy as np

Vector = Sequence[float]
Rows = Sequence[Vector]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def length(vector: Vector) -> float:
    return math.sqrt(dot(vector, vector))


def norm(vector: Vector) -> list[float]:
    size = max(length(vector), 1e-12)
    return [float(x) / size for x in vector]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def project(matrix: Rows, vector: Vector) -> list[float]:
    return [dot(row, vector) for row in matrix]


def fully_connected(matrix: Rows, vector: Vector) -> list[float]:
    """A linear layer without bias, then LeakyReLU with slope 0.01."""
    return [x if x > 0 else 0.01 * x for x in project(matrix, vector)]


def context(tokens: Rows) -> list[float]:
    """(Eq. 1) The tokens are averaged as they are; only the mean is normalised."""
    sums = [math.fsum(float(token[i]) for token in tokens) for i in range(len(tokens[0]))]
    return norm([total / len(tokens) for total in sums])


def anchor(
    q: Vector, conditioning: str, matrix: Rows | None, beta: float | None, eta: float, c: Vector
) -> list[float]:
    """(Eq. 2) One prototype for one image, under each conditioning."""
    if conditioning in ("static", "tokens"):
        return norm(q)
    assert matrix is not None
    moved = []
    for i, entry in enumerate(project(matrix, c)):
        if conditioning == "unbounded":
            step = entry
        elif conditioning == "bounded":
            step = eta * math.tanh(entry)
        else:
            step = sigmoid(float(beta)) * eta * math.tanh(entry)
        moved.append(float(q[i]) + step)
    return norm(moved)


def logits(token: Vector, normal: Vector, abnormal: Vector, alpha: float) -> tuple[float, float]:
    """(Eq. 3) Scaled cosines to both anchors."""
    unit = norm(token)
    return alpha * dot(unit, normal), alpha * dot(unit, abnormal)


def abnormal_share(normal_logit: float, abnormal_logit: float) -> float:
    """(Eq. 4) The abnormal entry of the softmax over two logits."""
    top = max(normal_logit, abnormal_logit)
    normal, abnormal = math.exp(normal_logit - top), math.exp(abnormal_logit - top)
    return abnormal / (normal + abnormal)


def position(pixel: int, grid: int, size_px: int, patch_px: int, mode: str) -> float:
    """Where a pixel lies on the patch grid."""
    if mode == "corners":
        return pixel / (size_px - 1) * (grid - 1)
    centres = [patch_px * i + (patch_px - 1) / 2 for i in range(grid)]
    if pixel <= centres[0]:
        return 0.0
    if pixel >= centres[-1]:
        return float(grid - 1)
    left = max(i for i in range(grid) if centres[i] <= pixel)
    return left + (pixel - centres[left]) / patch_px


def upsampled(values: Vector, size_px: int, patch_px: int, mode: str) -> np.ndarray:
    """Bilinear interpolation, pixel by pixel: the four patches around it."""
    grid = math.isqrt(len(values))
    result = np.empty((size_px, size_px))
    places = [position(p, grid, size_px, patch_px, mode) for p in range(size_px)]
    corners = [(min(int(v), grid - 2), v - min(int(v), grid - 2)) for v in places]
    for y, (top, down) in enumerate(corners):
        for x, (left, right) in enumerate(corners):
            first = top * grid + left
            upper = (1 - right) * values[first] + right * values[first + 1]
            lower = (1 - right) * values[first + grid] + right * values[first + grid + 1]
            result[y, x] = (1 - down) * upper + down * lower
    return result


def nearest(token: Vector, memory: Rows) -> float:
    """(Eq. 5) The smallest cosine distance to any remembered patch."""
    return min(1 - dot(norm(token), norm(row)) for row in memory)


def half_clipped(distance: float) -> float:
    """(Eq. 6)"""
    return min(max(distance / 2, 0.0), 1.0)


def top_mean(values: Vector, ratio: float) -> float:
    """(Eq. 7) Mean of the k = max(1, int(ratio · R)) largest."""
    count = max(1, int(ratio * len(values)))
    return math.fsum(sorted(map(float, values), reverse=True)[:count]) / count


def softmax(theta: Vector) -> list[float]:
    powers = [math.exp(float(t)) for t in theta]
    return [p / math.fsum(powers) for p in powers]


def focal(probabilities: np.ndarray, mask: np.ndarray) -> float:
    """Mean over pixels of −(1 − p_t)² log p_t on two channels, smooth 1e-5."""
    total, smooth = 0.0, 1e-5
    for a, m in zip(probabilities.flat, mask.flat, strict=True):
        p_t = smooth
        for channel, one_hot in ((1 - a, 1.0 - m), (a, float(m))):
            p_t += channel * min(max(one_hot, smooth), 1 - smooth)
        total += -((1 - p_t) ** 2) * math.log(p_t)
    return total / probabilities.size


def dice(probabilities: np.ndarray, mask: np.ndarray) -> float:
    """1 − (2 Σ A m + 1) / (Σ A + Σ m + 1)."""
    both = both_sum = 0.0
    for a, m in zip(probabilities.flat, mask.flat, strict=True):
        both += a * m
        both_sum += a + m
    return 1 - (2 * both + 1) / (both_sum + 1)


def detection(score: float, abnormal: bool) -> float:
    """Cross-entropy of a score clamped to [1e-6, 1 − 1e-6]."""
    score = min(max(score, 1e-6), 1 - 1e-6)
    return -math.log(score if abnormal else 1 - score)


def separation(bases: np.ndarray, delta: float) -> float:
    """Mean over layers and branches of max(0, cos(q_n, q_a) − δ)."""
    values = []
    for layer in bases:
        for normal, abnormal in layer:
            values.append(max(0.0, dot(norm(normal), norm(abnormal)) - delta))
    return math.fsum(values) / len(values)
