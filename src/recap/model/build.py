"""`recap.build_model`: an unfitted model, for counting, timing and research."""

from typing import TYPE_CHECKING

from recap.config import Settings, resolve_settings

if TYPE_CHECKING:
    from recap.model.recap import ReCAP


def build_model(
    encoder: str = "dinov2-small",
    *,
    preset: str = "paper",
    random_weights: bool = False,
    settings: Settings | None = None,
) -> "ReCAP":
    """Build an unfitted model on an encoder; `random_weights` needs no file and is for timing."""
    from recap.encoders.load import load_encoder
    from recap.model.recap import ReCAP

    if settings is None:
        chosen = {"name": encoder, "random_weights": random_weights}
        settings = resolve_settings(preset, encoder=chosen)
    return ReCAP(load_encoder(settings.encoder, settings.seed), settings)
