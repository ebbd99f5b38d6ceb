"""The parts of a head, by what it is fitted on: one row each, and the only place that asks.

A row names the branches and how each is taught, and the sources of evidence. Everything else reads
the model that `build` makes of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from recap.encoders.load import seeded
from recap.encoders.vit import Encoder
from recap.errors import SettingsError
from recap.methods.recap.adapters import Adapter
from recap.methods.recap.head import ReCAP
from recap.methods.recap.maps import Drawing
from recap.methods.recap.memory import Memory
from recap.methods.recap.prototypes import CONDITIONING, PrototypePair, random_prototypes
from recap.methods.recap.settings import RecapSettings
from recap.methods.recap.sources import ClassTokens, Prototypes, WholeImage
from recap.methods.recap.view import Branch
from recap.types import Mode

Taught = Literal["all", "lesions", "masked"]
"""All images, by mask or label; made-up lesions on normal ones; those alone whose map is known."""


@dataclass(frozen=True)
class Lesson:
    """Branches that are trained together, and on what."""

    branches: tuple[int, ...]
    images: Taught
    by_masks: bool = False
    """Whether masks alone teach, real or made up."""
    part: str = ""
    """The name of its unfinished work and its stages, where there is another lesson."""


@dataclass(frozen=True)
class Regime:
    """One row: how a head is built and taught."""

    mode: Mode
    statement: str
    lessons: tuple[Lesson, ...]
    sources: tuple[str, ...]
    """Rows of SOURCES, in the order in which they take their shares."""
    starts_at_means: bool = True
    """Whether prototypes start at the class means of the images; else at random."""
    learning_rate: float = 1e-3


SINGLE_MASKS = (Lesson((0,), "all", by_masks=True),)
SINGLE_LABELS = (Lesson((0,), "all"),)
BOTH = (Lesson((0, 1), "all"),)

REGIMES: dict[str, Regime] = {
    "masks": Regime(
        "few-shot",
        "One pair of prototypes per layer, trained on lesion masks, gives the map and, by its "
        "peak, the score; fused with a memory of the normal support images.",
        SINGLE_MASKS,
        ("peak", "peak_memory"),
    ),
    "labels": Regime(
        "few-shot",
        "Prototypes trained on image labels give the score. No mask was seen: others, trained on "
        "lesions made up on the normal support images, give the map, which shows what is unlike "
        "them. Both are fused with a memory of the normal support images.",
        (Lesson((1,), "all"), Lesson((0,), "lesions", by_masks=True, part="maps")),
        ("prototypes", "beyond_memory", "whole_image"),
    ),
    "labels_alone": Regime(
        "few-shot",
        "One pair of prototypes per layer, trained on image labels, gives the score and the map; "
        "fused with a memory of the normal support images. No mask was seen: the map shows what "
        "tells the classes apart.",
        SINGLE_LABELS,
        ("prototypes", "beyond_memory", "whole_image"),
    ),
    "both": Regime(
        "few-shot",
        "Prototypes trained on labelled support images, fused with a memory of the normal ones.",
        BOTH,
        ("prototypes", "memory"),
    ),
    "normals": Regime(
        "normal-only",
        "Memory branch alone: fitted on normal images only. No real lesion was seen: adapters "
        "learned from lesions made up on those images, and scores are distances of adapted tokens "
        "to theirs.",
        (Lesson((0,), "lesions", by_masks=True),),
        ("peak_memory",),
    ),
    "normals_both": Regime(
        "normal-only",
        "Memory branch alone: fitted on normal images only. No real lesion was seen: adapters "
        "learned from lesions made up on those images, and scores are distances of adapted tokens "
        "to theirs.",
        (Lesson((0, 1), "lesions"),),
        ("memory",),
    ),
    "nearest": Regime(
        "normal-only",
        "Memory branch alone: fitted on normal images only, so nothing was trained. Scores are "
        "distances of the encoder's own tokens to those images.",
        (),
        ("memory",),
    ),
    "domain_masks": Regime(
        "zero-shot",
        "One pair of prototypes per layer, trained on lesion masks of other domains, gives the "
        "map. There is no memory.",
        (Lesson((0,), "masked", by_masks=True),),
        ("peak", "class_tokens"),
        starts_at_means=False,
        learning_rate=5e-4,
    ),
    "domain_labels": Regime(
        "zero-shot",
        "One pair of prototypes per layer, trained on image labels of other domains, gives the "
        "score and the map. No mask was seen: the map shows what tells the classes apart there. "
        "There is no memory.",
        SINGLE_LABELS,
        ("prototypes", "class_tokens"),
        starts_at_means=False,
        learning_rate=5e-4,
    ),
    "domain_both": Regime(
        "zero-shot",
        "Prototypes trained on other domains; no image of the target domain was seen, so there is "
        "no memory.",
        BOTH,
        ("prototypes", "class_tokens"),
        starts_at_means=False,
        learning_rate=5e-4,
    ),
}


def choose_variant(settings: RecapSettings, mode: Mode, has_masks: bool) -> str:
    """Choose the row for what there is to learn from, and for what the settings ask."""
    one = settings.model.branches == "taught"
    if mode == "few-shot" and one:
        alone = "labels" if settings.training.made_up_lesions else "labels_alone"
        return "masks" if has_masks else alone
    if mode == "few-shot":
        return "both"
    if mode == "normal-only":
        if not settings.training.made_up_lesions:
            return "nearest"
        return "normals" if one else "normals_both"
    # Without masks a branch for maps would keep its random start: the one that labels teach draws
    # the map too. With masks one for scores is for nothing where class tokens give the score.
    if one and not has_masks:
        return "domain_labels"
    by_classes = settings.model.zero_shot_score == "class_tokens"
    return "domain_masks" if one and by_classes else "domain_both"


def build(encoder: Encoder, settings: RecapSettings, regime: str) -> ReCAP:
    """Build a head at its start; the same seed gives the same start, whatever ran before."""
    row, head = REGIMES[regime], settings.model
    lessons, writes_back = row.lessons, head.write_back and bool(row.lessons)
    _refuse_write_back(settings, row)
    branches: dict[int, Branch] = {}
    for lesson in lessons:
        with seeded(settings.seed):
            made = new_branches(encoder, settings, len(lesson.branches))
        branches |= dict(zip(lesson.branches, made, strict=True))
    if not lessons:
        theta = nn.Parameter(torch.zeros(len(encoder.layers)), requires_grad=False)
        branches[0] = Branch([], [], theta, head.logit_scale)
    made_sources = [SOURCES[name](encoder, settings) for name in row.sources]
    edge_px, blur_px = head.map_edge_px, head.map_blur_px
    return ReCAP(
        encoder,
        settings,
        [branches[number] for number in sorted(branches)],
        [source for source in made_sources if source is not None],
        Drawing(encoder.input_px, encoder.patch_px, head.upsample, blur_px, edge_px),
        regime,
        writes_back,
    )


def _refuse_write_back(settings: RecapSettings, row: Regime) -> None:
    """Refuse what cannot be had where later layers see what adapters of earlier ones made."""
    head, taught = settings.model, bool(row.lessons)
    by_masks = any(lesson.by_masks for lesson in row.lessons)
    wrong = [
        ("branches", "taught", "both", "both branches write back", taught),
        (
            "adapter_start",
            "principal" if head.adapter_start == "principal" else "by_teacher",
            "random",
            "what later layers see is not known before the first ones are",
            taught and (head.adapter_start == "principal" or by_masks),
        ),
        (
            "zero_shot_score",
            "class_tokens",
            "prototypes",
            "tokens that adapters write into are no longer the encoder's own",
            "class_tokens" in row.sources,
        ),
    ]
    for key, value, instead, why, matters in wrong:
        if head.write_back and matters and getattr(head, key) == value:
            raise SettingsError(
                f'model.{key} = "{value}" needs side adapters: {why}. Set model.write_back = '
                f'false, or model.{key} = "{instead}".'
            )


def new_branches(encoder: Encoder, settings: RecapSettings, count: int) -> list[Branch]:
    """Make one or two branches at a random start, drawn layer by layer."""
    head = settings.model
    channels = head.bottleneck or min(768, encoder.width)
    shared = random_prototypes(channels) if CONDITIONING[head.conditioning].shared else None
    adapters: list[list[Adapter]] = [[] for _ in range(count)]
    pairs: list[list[PrototypePair]] = [[] for _ in range(count)]
    for _ in encoder.layers:
        for branch in range(count):
            adapters[branch].append(Adapter(encoder.width, channels, head.write_back))
            pairs[branch].append(PrototypePair(channels, head.conditioning, head.eta, shared))
    learned = head.layer_fusion == "learned"
    return [
        Branch(
            adapters[branch],
            pairs[branch],
            nn.Parameter(torch.zeros(len(encoder.layers)), requires_grad=learned),
            head.logit_scale,
        )
        for branch in range(count)
    ]


def _prototypes(encoder: Encoder, settings: RecapSettings, peak: bool) -> nn.Module:
    head = settings.model
    softness = (head.map_logit_scale or head.logit_scale) / head.logit_scale
    return Prototypes(softness, peak, head.map_top_k if peak else head.top_k)


def _memory(encoder: Encoder, settings: RecapSettings, pool: float) -> nn.Module:
    return Memory(settings.memory.weight, pool, encoder.grid**2)


def _beyond_memory(encoder: Encoder, settings: RecapSettings) -> nn.Module:
    head, standardised = settings.model, settings.memory.score == "standardised"
    beyond = head.map_top_k if standardised else None
    return Memory(settings.memory.weight, head.top_k, encoder.grid**2, beyond)


def _whole_image(encoder: Encoder, settings: RecapSettings) -> nn.Module | None:
    share = settings.model.appearance_weight
    return WholeImage(share) if share > 0 else None


def _class_tokens(encoder: Encoder, settings: RecapSettings) -> nn.Module | None:
    return ClassTokens() if settings.model.zero_shot_score == "class_tokens" else None


SOURCES: dict[str, Callable[[Encoder, RecapSettings], nn.Module | None]] = {
    "prototypes": lambda encoder, settings: _prototypes(encoder, settings, peak=False),
    "peak": lambda encoder, settings: _prototypes(encoder, settings, peak=True),
    "memory": lambda encoder, settings: _memory(encoder, settings, settings.model.top_k),
    "peak_memory": lambda encoder, settings: _memory(encoder, settings, settings.model.map_top_k),
    "beyond_memory": _beyond_memory,
    "whole_image": _whole_image,
    "class_tokens": _class_tokens,
}
"""How each source is made from the settings; None where they give it no share. `peak`: the score is
the mean of few patches, as masks taught which; `beyond`: against what normal images are to each
other, if the settings ask for it."""


def trained_parameters(branches: Sequence[Branch]) -> list[Tensor]:
    """List what training changes, layer by layer: a gradient's length is summed in this order."""
    found = [branch.theta for branch in branches]
    for part in ("adapters", "prototypes"):
        for layer in zip(*(getattr(branch, part) for branch in branches), strict=True):
            found += [parameter for module in layer for parameter in module.parameters()]
    unique = {id(parameter): parameter for parameter in found if parameter.requires_grad}
    return list(unique.values())
