"""Fitting on normal images alone: a memory of them, on tokens that made-up lesions may adapt.

Without a lesion there is nothing to train on but lesions that are made up. What these teach is
which way tokens move when tissue changes; prototypes of made-up lesions would judge real ones by
them, so they are dropped after training and distances to normal patches are the score.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from recap.config import Settings
from recap.encoders.vit import Encoder
from recap.methods.recap.build import new_model
from recap.methods.recap.head import ReCAP
from recap.methods.recap.tokens import Tokens, concatenate
from recap.progress import Progress
from recap.scoring.detector import Detector
from recap.training.assemble import assemble, fingerprint
from recap.training.checkpoint import open_checkpoint
from recap.training.devices import choose_device
from recap.training.display import map_scale
from recap.training.estimate import with_estimate
from recap.training.head import frozen_tokens, with_copies
from recap.training.lesion_head import MOST_TEACHING, lesions_on, train_on_lesions
from recap.training.prefix_store import prefixes
from recap.training.support import SupportImage, spread_over, stack_support, support_records


def fit_normal_only(
    support: Sequence[SupportImage],
    settings: Settings,
    work_dir: Path | None,
    device: str,
    progress: Progress,
    encoder: Encoder | None,
) -> Detector:
    """Fit on normal images; with `work_dir` an interrupted fit goes on where it stopped."""
    learns = settings.training.made_up_lesions
    model = new_model(settings, learns, encoder, taught_by="masks").to(choose_device(device))
    pixels, _ = stack_support(support, model.encoder.input_px)
    records = support_records(support)
    losses: dict[str, float] = {}
    if learns:
        mark = fingerprint("normal-only", settings, model.encoder, records)
        losses = _train(model, pixels, work_dir, mark, progress)
        model.drop_prototypes()
    tokens, descriptors = _tokens(model, pixels, progress)
    remembered = tokens
    if settings.memory.augmented:
        remembered, _ = _tokens(model, _copies(pixels, settings), progress)
    model.remember(remembered)
    scale = map_scale(model, tokens, pixels, remembered)
    detector = assemble(model, "normal-only", settings, records, losses, scale)
    return with_estimate(detector, tokens, pixels, remembered, descriptors)


def _train(
    model: ReCAP,
    pixels: Tensor,
    work_dir: Path | None,
    mark: str,
    progress: Progress,
) -> dict[str, float]:
    """Train adapters on normal images (n, 3, S, S) and on lesions made up on them."""
    settings, checkpoint = model.settings, open_checkpoint(work_dir, mark)
    normal = _copies(pixels[spread_over(len(pixels), MOST_TEACHING)], settings)
    lesions = lesions_on(normal, list(range(len(normal))), settings)
    shown = torch.cat([normal, lesions.pixels])
    store = frozen_tokens(model, shown.__getitem__, len(shown), work_dir, progress)
    return train_on_lesions(model, store, lesions.masks, progress, checkpoint)


def _copies(pixels: Tensor, settings: Settings) -> Tensor:
    """All copies of images that show no lesion, those of one image together."""
    nothing = torch.zeros(len(pixels), *pixels.shape[-2:], dtype=torch.bool)
    return with_copies(pixels, nothing, settings)[0]


@torch.no_grad()
def _tokens(model: ReCAP, pixels: Tensor, progress: Progress) -> tuple[Tokens, Tensor]:
    """Tokens of all images, and their descriptors (n, D)."""
    tokens, descriptors = [], []
    encoded = prefixes(model, pixels.__getitem__, range(len(pixels)))
    with closing(encoded):
        for index, prefix in enumerate(encoded):
            progress("remember", index, len(pixels), "")
            tokens.append(model.adapt(prefix))
            descriptors.append(model.describe(prefix))
    progress("remember", len(pixels), len(pixels), "")
    return concatenate(tokens), torch.cat(descriptors)
