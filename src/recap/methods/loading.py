"""Loading a saved detector of any method."""

from pathlib import Path
from typing import Any

from recap.config import PeerSettings
from recap.methods.fitting import encoder_of
from recap.methods.recap.scorer import Scorer
from recap.methods.registry import find_peer
from recap.scoring.bundle import Card, read_card
from recap.scoring.detector import Detector, build_recap, load_as


def load(
    path: str | Path, device: str = "cpu", random_weights: bool = False, encoder: Any = None
) -> Detector:
    """Load a saved detector, ours or another method's.

    Its encoder must be here and be the one it was fitted on. An encoder that is loaded already
    can be given, and then serves this detector too.
    """
    settings = read_card(Path(path)).settings
    if not isinstance(settings, PeerSettings):
        return load_as(build_recap, path, device, random_weights, encoder)
    peer = find_peer(settings.method)

    def build(card: Card, encoder: Any) -> Scorer:
        return peer.module.build(encoder, peer.module.Options(**card.settings.options))  # type: ignore[union-attr]

    if encoder is None and hasattr(peer.module, "load_encoder"):
        encoder = encoder_of(peer, settings.encoder, settings.seed)
    return load_as(build, path, device, random_weights, encoder)
