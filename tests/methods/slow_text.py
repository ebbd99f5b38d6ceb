"""Sentences, maps and distances in plain numpy loops, from the methods' equations."""

import numpy as np


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def leaky(values):
    return np.where(values > 0, values, 0.01 * values)


def soft_abnormal(logits):
    """Softmax over the last axis, second entry."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers[..., 1] / powers.sum(-1)


def stretched(patches, size):
    """Bilinear from the patch grid to size × size, the outer patches on the border."""
    grid = round(len(patches) ** 0.5)
    square, out = patches.reshape(grid, grid), np.empty((size, size))
    for row in range(size):
        for column in range(size):
            y, x = row * (grid - 1) / (size - 1), column * (grid - 1) / (size - 1)
            top, left = min(int(y), grid - 2), min(int(x), grid - 2)
            dy, dx = y - top, x - left
            above = (1 - dx) * square[top, left] + dx * square[top, left + 1]
            below = (1 - dx) * square[top + 1, left] + dx * square[top + 1, left + 1]
            out[row, column] = (1 - dy) * above + dy * below
    return out


def layer_map(tokens, text, size):
    """Both logits stretched, then the softmax: (R, C), (2, C) -> (S, S)."""
    logits = 100 * unit(tokens) @ text.T
    both = np.stack([stretched(logits[:, i], size) for i in (0, 1)], axis=-1)
    return soft_abnormal(both)


def distances(tokens, rows):
    """1 − cosine to the nearest row, one by one."""
    found = []
    for token in unit(tokens):
        found.append(min(1 - float(token @ row) for row in unit(rows)))
    return np.array(found)


def focal(prob, mask):
    total = 0.0
    for p, m in zip(prob.ravel(), mask.ravel(), strict=True):
        target = min(max(float(m), 1e-5), 1 - 1e-5)
        true = target * p + (1 - target) * (1 - p) + 1e-5
        total += (1 - true) ** 2 * -np.log(true)
    return total / prob.size


def dice(prob, mask):
    return 1 - (2 * (prob * mask).sum() + 1) / (prob.sum() + mask.sum() + 1)


def cross_entropy(logit, label):
    return np.log1p(np.exp(-logit)) if label else np.log1p(np.exp(logit))
