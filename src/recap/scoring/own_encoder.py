"""The encoder of a bundle: a detector's scores mean something only on the one it was fitted on."""

from pathlib import Path
from typing import Any

from recap.encoders.registry import preprocessing_fingerprint
from recap.errors import BundleError, WeightsError
from recap.methods.registry import Method
from recap.scoring.bundle import Card


def find_encoder(method: Method, folder: Path, card: Card) -> Any:
    """Load the encoder that a bundle names, if it is on this machine."""
    named = Path(card.settings.encoder.name)
    if named.exists() and named.resolve().is_relative_to(folder.resolve()):
        raise BundleError(
            f"{folder} names an encoder in its own folder ({named}), where nothing is opened but "
            "the bundle's own files. Fit again with an encoder of this machine."
        )
    try:
        return method.load_encoder(card.settings.encoder, card.settings.seed)
    except WeightsError as error:
        raise BundleError(
            f"{folder} needs the encoder '{card.encoder.name}' "
            f"(sha256 {card.encoder.sha256[:12]}…). {error}"
        ) from error


def checked(encoder: Any, folder: Path, card: Card) -> Any:
    """Refuse an encoder that is not the very one the detector was fitted on."""
    if encoder.checksum != card.encoder.sha256:
        raise BundleError(
            f"{folder} was fitted on '{card.encoder.name}' with sha256 {card.encoder.sha256}, but "
            f"the weights here have {encoder.checksum}. Bring the original file back with "
            f"`recap weights add FILE --name {card.encoder.name}`, or fit again."
        )
    for key, here in preprocessing_fingerprint(encoder).items():
        then = card.preprocessing.get(key, here)
        if then != here:
            raise BundleError(
                f"{folder} was fitted on '{card.encoder.name}' with {key} = {then}, but its files "
                f"here say {here}. Bring its original config.json and preprocessor_config.json "
                "back, or fit again."
            )
    return encoder
