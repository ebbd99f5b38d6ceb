"""Unfitted models: what fitting starts from, and what counting and timing need."""

from typing import TYPE_CHECKING

from recap.config import Settings, resolve_settings

if TYPE_CHECKING:
    from recap.encoders.vit import Encoder
    from recap.methods.recap.head import ReCAP, Teacher


def new_model(
    settings: Settings,
    trained_head: bool = True,
    encoder: "Encoder | None" = None,
    taught_by: "Teacher | None" = None,
) -> "ReCAP":
    """A model at its start; the same seed gives the same start, whatever ran before.

    An encoder that is loaded already must be the one that the settings name. `taught_by` is what a
    single branch learns from, if the settings ask for one.
    """
    from recap.encoders.draws import own_draws
    from recap.encoders.load import load_encoder
    from recap.methods.recap.head import ReCAP

    # Before the seed is set: loading may draw numbers for parts that are then thrown away.
    encoder = encoder or load_encoder(settings.encoder, settings.seed)
    single = taught_by if settings.model.branches == "taught" and trained_head else None
    with own_draws(settings.seed):
        return ReCAP(encoder, settings, trained_head, single)


def build_model(
    encoder: str = "dinov2-small",
    *,
    preset: str = "paper",
    random_weights: bool = False,
    settings: Settings | None = None,
) -> "ReCAP":
    """Build an unfitted model on an encoder; `random_weights` needs no file and is for timing."""
    if settings is None:
        chosen = {"name": encoder, "random_weights": random_weights}
        settings = resolve_settings(preset, encoder=chosen)
    return new_model(settings)
