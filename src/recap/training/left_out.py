"""Each normal support image as if it were new: compared with a memory of the others alone, and
judged by a regression on the others alone."""

import torch
from torch import Tensor

from recap.methods.recap.appearance import appearance_evidence, solve_appearance
from recap.methods.recap.edges import find_edges, finish_map
from recap.methods.recap.head import ReCAP
from recap.methods.recap.memory import build_memory, nearest_distance
from recap.methods.recap.scorer import BranchOutput
from recap.methods.recap.tokens import DET, SEG, Tokens, image_count, one_image

_SAME_ROW = 1 - 1e-6


@torch.no_grad()
def normal_distance(model: ReCAP, normal: Tokens, remembered: Tokens) -> Tensor | None:
    """Mean and deviation (2, L) of normal patches' distances to other images; None if there are
    none, or if all are the same."""
    images = image_count(normal)
    if images < 2:
        return None
    found = []
    for index in range(images):
        image = one_image(normal, index)
        distances = distances_to_others(model, image, remembered, index, images)
        if distances is None:
            return None
        found.append(distances[:, DET, 0])
    patches = torch.cat(found, dim=1)  # (L, n R)
    statistics = torch.stack([patches.mean(dim=1), patches.std(dim=1)])
    return statistics if bool((statistics[1] > 1e-6).all()) else None


def left_out_appearance(vectors: Tensor, abnormal: Tensor) -> Tensor | None:
    """Evidence (n,) of the normal images as a whole, each from all other images.

    They come first among the vectors (N, D). None with a single one: nothing is left to compare.
    """
    count = int((~abnormal).sum())
    if count < 2:
        return None
    evidence = []
    for index in range(count):
        others = torch.arange(len(vectors)) != index
        solved = solve_appearance(vectors[others], abnormal[others])
        evidence.append(appearance_evidence(vectors[index : index + 1], solved))
    return torch.cat(evidence)


def judge_left_out(model: ReCAP, image: Tokens, pixels: Tensor, distances: Tensor) -> BranchOutput:
    """What the model says of one image whose distances to the others' rows are given."""
    prototype = model.prototype_branch(image)[0] if model.has_prototypes else None
    fused = model.fuse(prototype, model.pool_distances(distances))
    edges = find_edges(pixels.to(model.device), model.settings.model.map_edge_px)
    return BranchOutput(fused.score, finish_map(fused.map, edges))


def distances_to_others(
    model: ReCAP, image: Tokens, remembered: Tokens, index: int, images: int
) -> Tensor | None:
    """Nearest distances (L, 2, 1, R) of one normal image to the rows of the others, or None.

    `remembered` is what the memory was made of: all `images` normal images or, one after the other,
    all copies of each. A coreset may hold nothing of the others.
    """
    assert model.memory is not None
    copies = image_count(remembered) // images
    own = slice(index * copies, (index + 1) * copies)
    layers = []
    for tokens, made_of, rows in zip(image, remembered, model.memory, strict=True):
        branches = [
            _rows_of_others(rows[b], made_of[b if len(rows) > 1 else DET], own)
            for b in range(len(rows))
        ]
        if any(not len(others) for others in branches):
            return None
        to_det = nearest_distance(tokens[DET], branches[-1])
        to_seg = to_det if len(rows) == 1 else nearest_distance(tokens[SEG], branches[SEG])
        layers.append(torch.stack([to_seg, to_det]))
    return torch.stack(layers)


def _rows_of_others(rows: Tensor, made_of: Tensor, own: slice) -> Tensor:
    """Memory rows (M, C) but those of the images `own` among (N, R, C)."""
    patches = made_of.shape[1]
    if len(rows) == made_of.shape[0] * patches:
        return torch.cat([rows[: own.start * patches], rows[own.stop * patches :]])
    # A coreset has lost the order, but its rows are still the tokens themselves.
    mine = build_memory(made_of[own])
    return rows[(rows @ mine.T).amax(dim=-1) < _SAME_ROW]
