"""From a trained model to a detector with its card."""

import hashlib
import json
from typing import Any

from recap.config import AnySettings
from recap.encoders.seen_through import seen_through
from recap.methods.recap.head import ReCAP, Teacher
from recap.methods.recap.scorer import Scorer
from recap.scoring.bundle import Card, EncoderRecord, Mode, library_versions
from recap.scoring.detector import Detector

STATEMENTS: dict[Mode, str] = {
    "few-shot": "Prototypes trained on labelled support images, fused with a memory of the "
    "normal ones.",
    "zero-shot": "Prototypes trained on other domains; no image of the target domain was seen, "
    "so there is no memory.",
    "normal-only": "Memory branch alone: fitted on normal images only, so nothing was trained. "
    "Scores are distances of the encoder's own tokens to those images.",
}
MADE_UP_LESIONS = (
    "Memory branch alone: fitted on normal images only. No real lesion was seen: adapters learned "
    "from lesions made up on those images, and scores are distances of adapted tokens to theirs."
)
MAPS_FROM_LESIONS = (
    "Prototypes trained on image labels give the score. No mask was seen: others, trained on "
    "lesions made up on the normal support images, give the map, which shows what is unlike them. "
    "Both are fused with a memory of the normal support images."
)
SINGLE_BRANCH: dict[Teacher, str] = {
    "masks": "One pair of prototypes per layer, trained on lesion masks, gives the map and, by its "
    "peak, the score; fused with a memory of the normal support images.",
    "labels": "One pair of prototypes per layer, trained on image labels, gives the score and the "
    "map; fused with a memory of the normal support images. No mask was seen: the map shows what "
    "tells the classes apart.",
}

ZERO_SHOT: dict[Teacher, str] = {
    "masks": "One pair of prototypes per layer, trained on lesion masks of other domains, gives "
    "the map. There is no memory.",
    "labels": "One pair of prototypes per layer, trained on image labels of other domains, gives "
    "the score and the map. No mask was seen: the map shows what tells the classes apart there. "
    "There is no memory.",
}

CLASS_TOKENS = (
    "The image score is not theirs: it says whether the image's class tokens lie where those of "
    "normal or of abnormal images of the other domains do."
)

TEST_SOURCES = (
    "It was trained on the test splits of the other domains, as MVFA's protocol has it, not on "
    "their pools."
)

NOT_LEARNED = (
    "WARNING: training did not tell normal from abnormal images (detection loss {loss:.2f}; a "
    "guess has 0.69), so its scores mean little. Try --set training.learning_rate=1e-4, or look "
    "for images in the wrong class."
)
GUESS = 0.65
"""Detection losses from here on are those of a head that answers the same to every image: ln 2."""


def assemble(
    model: Scorer,
    mode: Mode,
    settings: AnySettings,
    support: list[dict[str, Any]],
    losses: dict[str, float],
    map_scale: tuple[float, float],
    statement: str | None = None,
) -> Detector:
    """Wrap a finished model and say what it is; `statement` says it for other methods."""
    encoder = model.encoder
    card = Card(
        mode=mode,
        statement=_with_warning(statement or _statement(mode, model), losses),
        encoder=EncoderRecord(name=encoder.name, sha256=encoder.checksum),
        preprocessing={
            "input_px": encoder.input_px,
            "resize": "square, bicubic with antialias",
            **seen_through(encoder),
        },
        settings=settings,
        taught_by=model.single if isinstance(model, ReCAP) else None,
        support=support,
        losses=losses,
        map_scale=map_scale,
        versions=library_versions(),
        fingerprint=fingerprint(mode, settings, encoder, support),
    )
    return Detector(model, card)


def _with_warning(statement: str, losses: dict[str, float]) -> str:
    """At α = 100 a head may saturate for every image, and then has no gradient to come back by."""
    loss = losses.get("detection", 0.0)
    return statement if loss < GUESS else f"{statement} {NOT_LEARNED.format(loss=loss)}"


def _statement(mode: Mode, model: Scorer) -> str:
    assert isinstance(model, ReCAP)  # other methods come with a statement
    if mode == "normal-only":
        return MADE_UP_LESIONS if model.has_adapters else STATEMENTS[mode]
    if mode == "few-shot":
        return STATEMENTS[mode] if model.single is None else SINGLE_BRANCH[model.single]
    said = STATEMENTS[mode] if model.single is None else ZERO_SHOT[model.single]
    if model.class_direction is not None:
        said = f"{said} {CLASS_TOKENS}"
    if model.settings.training.source_split == "test":
        said = f"{said} {TEST_SOURCES}"
    return said


def fingerprint(
    mode: Mode, settings: AnySettings, encoder: Any, support: list[dict[str, Any]]
) -> str:
    """Identifies a fit before it is done: settings, encoder, images and versions."""
    # An image's size follows from the image; earlier versions did not record it.
    images = [{k: v for k, v in record.items() if k != "size_hw"} for record in support]
    # What is kept of tokens changes no number: a fit that found the disk full may go on without.
    own = settings.model_dump(mode="json", exclude={"training": {"cache_gb"}})
    how = [encoder.checksum, seen_through(encoder)]
    parts = [mode, own, how, images, library_versions()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
