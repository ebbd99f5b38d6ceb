"""The contract of fitting: what a method is given, and what it gives back.

The module of a method holds

- `Options`: its own settings, a closed group with the defaults of preset `equal`;
- `OFFICIAL`: what preset `official` changes, as a nested dictionary of settings;
- `STATEMENT`: what a fitted detector consists of, in a plain sentence;
- `build(encoder, options) -> Scorer`: the model at its start;
- `fit(model, images, job) -> Fitted`: makes it ready to score, in place.

A method with a backbone of its own also has `load_encoder(settings, seed)`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recap.data.support import spread_over
from recap.methods.base import Output, Scorer
from recap.methods.checkpoint import Checkpoint, open_checkpoint
from recap.methods.features import Encodes, FeatureStore
from recap.methods.images import LabelledImages
from recap.progress import Progress

CACHE_BYTES = 8e9
MOST_IMAGES = 16
"""Normal images that a map's scale is told from; that many say enough about a percentile."""


@dataclass(frozen=True)
class Job:
    """One fit: what it is told, and where it tells how far it is."""

    settings: Any
    """Those of the method; its own are `options`."""
    zero_shot: bool
    progress: Progress
    fingerprint: str
    """Identifies the fit, so that another one's unfinished work is not taken for its own."""
    work_dir: Path | None

    @property
    def options(self) -> Any:
        """The method's Options."""
        return self.settings.options

    def checkpoint(self, part: str = "") -> Checkpoint | None:
        """Open where training state is kept, if anywhere; a fit in several parts names each."""
        return open_checkpoint(self.work_dir and self.work_dir / part, self.fingerprint)

    def encoded(
        self,
        model: Encodes,
        images: LabelledImages,
        limit_bytes: float = CACHE_BYTES,
        remedy: str = "or choose another disk: unfinished work lies where --out is",
    ) -> FeatureStore:
        """`model.encode(pixels)` of all images; indexed by lists of positions.

        Computed once, unless there is more of it than the limit.
        """
        store = FeatureStore(
            model,
            images.pixels,
            len(images),
            limit_bytes=limit_bytes,
            folder=self.work_dir,
            remedy=f"Free some space, {remedy}.",
        )
        store.fill(self.progress)
        return store


@dataclass(frozen=True)
class Fitted:
    """Final losses, the scale of maps, and what was found out for a first calibration."""

    losses: dict[str, float] = field(default_factory=dict)
    map_scale: tuple[float, float] | None = None
    """Map values drawn from nothing to full strength; None: from the maps of the normal images."""
    statement: str = ""
    """Of what the detector consists, where the method's own sentence does not say it."""
    left_out: tuple[Output, ...] = ()
    """Normal support images, each judged by `model.without(image)`; for a first calibration."""
    descriptors: Tensor | None = None
    """(n, D) of all support images: the domain that is known with that calibration."""


def scale_of(maps: Iterable[Tensor]) -> tuple[float, float]:
    """Map values drawn from nothing to full strength, from maps (1, S, S) of normal images.

    From the 90th percentile of normal pixels to where the most abnormal of them would be if it
    were as far above again.
    """
    low, high = np.quantile(torch.cat(list(maps)).cpu().numpy(), (0.90, 1.0))
    return float(low), float(high + max(high - low, 1e-3))


@torch.no_grad()
def scale_of_images(model: Scorer, images: LabelledImages) -> tuple[float, float]:
    """Measure the scale of a model's maps, from its normal images.

    An image that is in a memory is at distance nought from itself, so each is judged without its
    own part in it, copies included. Of a single image nothing would be left: it is shown turned or
    mirrored, in a way that no remembered copy is.
    """
    normal = images.positions(abnormal=False)
    maps = []
    for number in spread_over(len(normal), MOST_IMAGES):
        pixels = images.stack([normal[number]]).to(model.device)
        other = model.without(number)
        if other is None:
            other, pixels = model, pixels.flip(*model.mirrored)
        maps.append(other(pixels).map)
    return scale_of(maps)
