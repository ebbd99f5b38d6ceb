"""Fitting a head: its lessons, then what its sources learn in closed form, then what normal is.

The memory takes no part in training: a normal support image is at distance 0 from itself. Nothing
is selected on other images either, so the last epoch is the model.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

from recap.data.augment import COPIES
from recap.data.support import spread_over
from recap.methods.base import Output
from recap.methods.checkpoint import Terms
from recap.methods.features import Features, FeatureStore, encode_each
from recap.methods.fitting import MOST_IMAGES, Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.adapters import Adapter, Spread, principal_rows
from recap.methods.recap.head import ReCAP
from recap.methods.recap.lessons import MOST_TEACHING, with_lesions
from recap.methods.recap.losses import LossTerms, Objective
from recap.methods.recap.regimes import REGIMES, Lesson, trained_parameters
from recap.methods.recap.sources import ClassTokens, WholeImage
from recap.methods.recap.view import Branch
from recap.methods.training import autocast, in_batches, train_epochs

BETAS = (0.5, 0.999)
REMEDY = "Lower training.learning_rate (--set training.learning_rate=1e-4)"
LEFT_OUT_IMAGES = 20
"""At most that many are left out in turn: 19 are needed for a rate of 5 %, and each is compared
with all others."""
SHOWN_FROM, FULL_AT = 0.90, 2.0
"""A value is drawn from the 90th percentile of what normal pixels reach, at full strength from
twice that."""
HIGHEST_LOW = 0.99
WITHOUT_FILE = "or do without the file by --set training.cache_gb=0 (slower)"
GUESS = 0.65
"""Detection losses from here on are those of a head that answers the same to every image: ln 2."""
NOT_LEARNED = (
    "WARNING: training did not tell normal from abnormal images (detection loss {loss:.2f}; a "
    "guess has 0.69), so its scores mean little. Try --set training.learning_rate=1e-4, or look "
    "for images in the wrong class."
)
CLASS_TOKENS = (
    "The image score is not theirs: it says whether the image's class tokens lie where those of "
    "normal or of abnormal images of the other domains do."
)
TEST_SOURCES = (
    "It was trained on the test splits of the other domains, as MVFA's protocol has it, not on "
    "their pools."
)

Tokens = list[list[Tensor]]
"""Of each branch and layer, (N, R, C)."""


def fit(model: ReCAP, images: LabelledImages, job: Job) -> Fitted:
    """Make a head ready to score, in place."""
    losses, store = _teach_all(model, images, job)
    if job.zero_shot:
        _learn_domains(model, images, store)
        return Fitted(losses, (0.0, 1.0), _statement(model, losses))
    normals = images.positions(abnormal=False)
    # Of normal images alone only some were taught, and so encoded.
    looked = store if bool(images.abnormal.any()) else None
    tokens, features, descriptors = _look(model, images, looked, job)
    if model.memory is not None:
        model.memory.remember(tokens, model.settings.memory.coreset)
        model.memory.standardise()
    judged = judge_left_out(model, features)
    left_out = [judged[number] for number in spread_over(len(normals), LEFT_OUT_IMAGES)]
    scale = map_scale([judged[n] for n in spread_over(len(normals), MOST_IMAGES)], model)
    model.settle()
    known = [output for output in left_out if output is not None]
    return Fitted(
        losses,
        scale,
        _statement(model, losses),
        tuple(known) if len(known) == len(left_out) else (),
        descriptors,
    )


def _teach_all(
    model: ReCAP, images: LabelledImages, job: Job
) -> tuple[dict[str, float], FeatureStore | None]:
    """Go through the lessons; the sums of their last losses, and what was encoded."""
    row, training = REGIMES[model.regime], model.settings.training
    if not row.lessons:
        return {}, None
    shown = images
    if row.mode == "normal-only":  # the others are looked at afterwards
        shown = images.some(spread_over(len(images), MOST_TEACHING))
    if training.augment and not job.zero_shot:
        shown = shown.with_copies()
    everything, on_lesions = list(range(len(shown))), list[int]()
    if any(lesson.images == "lesions" for lesson in row.lessons):
        shown, on_lesions = with_lesions(shown, model.settings.seed)
    store = job.encoded(model, shown, training.cache_gb * 1e9, WITHOUT_FILE)
    losses: dict[str, float] = {}
    for lesson in row.lessons:
        taught, chosen = shown, everything
        if lesson.images == "lesions":
            # Normal images are known to have none of the lesions, whatever else is known.
            taught, chosen = replace(shown, has_mask=torch.ones_like(shown.has_mask)), on_lesions
        elif lesson.images == "masked":
            chosen = shown.has_mask.nonzero().flatten().tolist()
        if row.starts_at_means:
            start(model, lesson, taught, chosen, store)
        rate = training.learning_rate or row.learning_rate
        terms = train(model, lesson, taught, chosen, store, rate, job)
        losses = {name: losses.get(name, 0.0) + value for name, value in terms.items()}
    return losses, store


def _branches(model: ReCAP, lesson: Lesson) -> list[Branch]:
    return [cast(Branch, model.branches[number]) for number in lesson.branches]


@torch.no_grad()
def start(
    model: ReCAP, lesson: Lesson, images: LabelledImages, chosen: list[int], store: FeatureStore
) -> None:
    """Start at what the images show: principal directions, and means of the classes."""
    branches = _branches(model, lesson)
    begin = model.settings.model.adapter_start
    if begin == "principal" or (begin == "by_teacher" and lesson.by_masks):
        spreads = [Spread(model.encoder.width) for _ in model.encoder.layers]
        for index in chosen:
            layers = model.features(store[[index]]).layers
            for spread, taps in zip(spreads, layers, strict=True):
                spread.add(taps)
        for layer, spread in enumerate(spreads):
            for branch in branches:
                adapter = branch.adapters[layer]
                assert isinstance(adapter, Adapter)
                rows = principal_rows(spread.covariance(), len(adapter.down.weight))
                adapter.down.weight[: len(rows)] = rows
    originals = [index for index in chosen if images.copy[index] == 0]
    classes = [
        tokens_of(model, store, [i for i in originals if bool(images.abnormal[i]) == abnormal])
        for abnormal in (False, True)
    ]
    for number, branch in zip(lesson.branches, branches, strict=True):
        for layer, pair in enumerate(branch.pairs):
            means = [tokens[number][layer].mean(dim=(0, 1)) for tokens in classes]
            pair.start_at(torch.stack(means))


@torch.no_grad()
def tokens_of(model: ReCAP, store: FeatureStore, indices: list[int]) -> Tokens:
    """Scoring tokens of some images, adapted one by one."""
    each = [model.tokens(model.features(store[[i]].to(model.device))) for i in indices]
    return _concatenated(each)


def _concatenated(images: Sequence[Tokens]) -> Tokens:
    return [
        [torch.cat(layer) for layer in zip(*branch, strict=True)]
        for branch in zip(*images, strict=True)
    ]


def train(
    model: ReCAP,
    lesson: Lesson,
    images: LabelledImages,
    chosen: list[int],
    store: FeatureStore,
    learning_rate: float,
    job: Job,
) -> Terms:
    """Train the branches of a lesson in place; the mean loss terms of the last epoch."""
    branches = _branches(model, lesson)
    objective, training = Objective(model, branches), model.settings.training
    parameters = trained_parameters(branches)
    optimiser = Adam(parameters, lr=learning_rate, betas=BETAS, fused=True)
    device = model.device

    def plan(epoch: int) -> list[list[int]]:
        return in_batches(epoch_order(chosen, model.settings.seed, epoch), training.batch_size)

    def gradients(indices: list[int], number: int) -> Terms:
        with autocast(device):
            terms: LossTerms = objective(
                store[indices].to(device), images.some(indices, device=device)
            )
        terms.total.backward()
        if training.clip_norm is not None:
            clip_grad_norm_(parameters, training.clip_norm)
        return terms.by_name()

    def progress(stage: str, done: int, total: int, detail: str) -> None:
        job.progress(f"{stage}_{lesson.part}" if lesson.part else stage, done, total, detail)

    return train_epochs(
        nn.ModuleList(branches),
        optimiser,
        training.epochs,
        plan,
        gradients,
        progress=progress,
        checkpoint=job.checkpoint(lesson.part),
        describe=_describe,
        remedy=REMEDY,
    )


def epoch_order(chosen: Sequence[int], seed: int, epoch: int) -> list[int]:
    """Shuffle one epoch, by seed and epoch alone, so that a resumed run agrees."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return [chosen[i] for i in torch.randperm(len(chosen), generator=generator).tolist()]


def _describe(means: dict[str, float]) -> str:
    if not means:
        return ""
    return (
        f"loss {means['loss']:.3f} (seg {means['segmentation']:.3f}, "
        f"det {means['detection']:.3f}, sep {means['separation']:.3f})"
    )


@torch.no_grad()
def _learn_domains(model: ReCAP, images: LabelledImages, store: FeatureStore | None) -> None:
    source = model.find_source("appearance")
    if isinstance(source, ClassTokens) and store is not None:
        found = [
            model.features(store[[index]].to(model.device)).class_tokens
            for index in range(len(images))
        ]
        source.learn(torch.cat(found), images.abnormal, images.domain)


@torch.no_grad()
def _look(
    model: ReCAP, images: LabelledImages, store: FeatureStore | None, job: Job
) -> tuple[Tokens, dict[int, Features], Tensor]:
    """Look once at every support image with the trained head, encoded already if in the store.

    Returns the tokens of the normal ones, the features of those of them that will be left out in
    turn, by their number, and the descriptors of all.
    """
    count = int((~images.abnormal).sum())
    kept = {*spread_over(count, LEFT_OUT_IMAGES), *spread_over(count, MOST_IMAGES)}
    source = model.find_source("appearance")
    whole = source if isinstance(source, WholeImage) else None
    copies = COPIES if model.settings.training.augment else 1
    tokens, features, descriptors, appearances = [], {}, [], []
    found = (
        encode_each(model, images.pixels, range(len(images)))
        if store is None
        else (store[[number * copies]].to(model.device) for number in range(len(images)))
    )
    with closing(found):
        for number, hidden in enumerate(found):
            if store is None:
                job.progress("remember", number, len(images), "")
            seen = model.features(hidden, images.stack([number]).to(model.device))
            descriptors.append(seen.descriptor)
            if whole is not None:
                appearances.append(seen.appearance)
            if number < count:
                tokens.append(model.tokens(seen))
            if number in kept:
                features[number] = seen
    if store is None:
        job.progress("remember", len(images), len(images), "")
    if whole is not None:
        whole.learn(torch.cat(appearances), images.abnormal)
    return _concatenated(tokens), features, torch.cat(descriptors)


@torch.no_grad()
def judge_left_out(model: ReCAP, features: dict[int, Features]) -> dict[int, Output | None]:
    """Judge normal support images, each as if it had not been there.

    The prototypes cannot forget an image that they were trained on, so this is an estimate.
    """
    judged: dict[int, Output | None] = {}
    for number, seen in features.items():
        other = model.without(number)
        judged[number] = None if other is None else other.judge(seen)
    return judged


def map_scale(judged: Sequence[Output | None], model: ReCAP) -> tuple[float, float]:
    """Map values drawn from nothing to full strength, from maps of left-out normal images.

    A single image has no others to be compared with; then high is what the sources can reach in
    practice.
    """
    maps = [output.map[0].cpu().numpy() for output in judged if output is not None]
    if not maps:
        return (0.0, 1.0) if "prototype" in model.sources else (0.0, 0.25)
    # A head that calls most normal pixels abnormal must still leave room above for a colour.
    low = min(float(np.quantile(np.stack(maps), SHOWN_FROM)), HIGHEST_LOW)
    return low, min(1.0, max(FULL_AT * low, 1e-3))


def _statement(model: ReCAP, losses: dict[str, float]) -> str:
    parts = [REGIMES[model.regime].statement]
    if isinstance(model.find_source("appearance"), ClassTokens):
        parts.append(CLASS_TOKENS)
    if REGIMES[model.regime].mode == "zero-shot" and model.settings.training.source_split == "test":
        parts.append(TEST_SOURCES)
    # At α = 100 a head may saturate for every image, and then has no gradient to come back by.
    if (loss := losses.get("detection", 0.0)) >= GUESS:
        parts.append(NOT_LEARNED.format(loss=loss))
    return " ".join(parts)
