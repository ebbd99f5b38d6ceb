"""The encoder of a bundle: a detector is worth something on the very one it was fitted on alone."""

from pathlib import Path
from typing import Any

from recap.encoders.load import load_encoder
from recap.encoders.vit import Encoder
from recap.errors import BundleError, WeightsError
from recap.scoring.bundle import Card

UNSEEN = ("hidden_act", "layer_norm_eps", "num_attention_heads", "rope_theta")
"""Of an encoder's configuration, what changes its tokens and leaves its weights as they are."""


def find_encoder(folder: Path, card: Card) -> Encoder:
    """The encoder that a bundle names, if it is on this machine."""
    try:
        return load_encoder(card.settings.encoder, card.settings.seed)
    except WeightsError as error:
        raise BundleError(
            f"{folder} needs the encoder '{card.encoder.name}' "
            f"(sha256 {card.encoder.sha256[:12]}…). {error}"
        ) from error


def checked(encoder: Encoder, folder: Path, card: Card) -> Encoder:
    """Refuse an encoder that is not the very one the detector was fitted on."""
    if encoder.checksum != card.encoder.sha256:
        raise BundleError(
            f"{folder} was fitted on '{card.encoder.name}' with sha256 {card.encoder.sha256}, but "
            f"the weights here have {encoder.checksum}. Bring the original file back with "
            f"`recap weights add FILE --name {card.encoder.name}`, or fit again."
        )
    for key, here in seen_through(encoder).items():
        then = card.preprocessing.get(key, here)
        if then != here:
            raise BundleError(
                f"{folder} was fitted on '{card.encoder.name}' with {key} = {then}, but its files "
                f"here say {here}. Bring its original config.json and preprocessor_config.json "
                "back, or fit again."
            )
    return encoder


def seen_through(encoder: Any) -> dict[str, Any]:
    """What changes an encoder's tokens and cannot be seen in its weights; DRA's has less of it."""
    config = getattr(getattr(encoder, "model", None), "config", None)
    known = {key: getattr(config, key, None) for key in UNSEEN}
    return {
        "mean": [round(v, 6) for v in encoder.mean.flatten().tolist()],
        "std": [round(v, 6) for v in encoder.std.flatten().tolist()],
        **{key: value for key, value in known.items() if value is not None},
    }
