"""Many detectors, one image: those with side adapters on one encoder share its pass."""

from collections.abc import Hashable, Sequence

import torch

from recap.model.appearance import Whole
from recap.model.recap import ReCAP
from recap.model.scorer import Output
from recap.scoring.detector import Detector, Source, as_image
from recap.types import Image, Prediction

Seen = dict[Hashable, tuple[torch.Tensor, Whole]]


def score_many(detectors: Sequence[Detector], image: Source) -> list[Prediction]:
    """What every detector says about an image, in their order; the same bits as one by one.

    The encoder runs once for all detectors that look at it from the side: those with other
    encoders, sizes or tapped layers, with adapters that write back, of other methods or with a
    runtime of their own run by themselves.
    """
    read: dict[str, Image] = {}
    seen: Seen = {}
    predictions = []
    for detector in detectors:
        reading = detector.card.settings.reading
        how = reading.model_dump_json()
        if how not in read:
            read[how] = as_image(image, reading)
        key = encoder_key(detector)
        if key is None:
            predictions.append(detector.score(read[how]))
            continue
        output = _score_shared(detector, read[how], seen, (key, how))
        predictions.append(detector.prediction(output, 0, read[how]))
    return predictions


def encoder_key(detector: Detector) -> Hashable | None:
    """The same for detectors that can share a pass of the encoder; None for those that cannot."""
    model = detector.model
    if detector.runtime is not None or not isinstance(model, ReCAP) or model.writes_back:
        return None
    encoder = model.encoder
    # Encoders that were never trained are all called "random": only the very same one is the same.
    weights = id(encoder) if encoder.checksum == "random" else encoder.checksum
    normalisation = (*encoder.mean.flatten().tolist(), *encoder.std.flatten().tolist())
    how = (encoder.input_px, encoder.layers, encoder.interpolate, normalisation)
    return (weights, *how, str(model.device))


@torch.inference_mode()
def _score_shared(detector: Detector, image: Image, seen: Seen, key: Hashable) -> Output:
    model = detector.model
    assert isinstance(model, ReCAP)
    if key not in seen:
        prefix = model.prefix(detector.preprocess(image)[None].to(model.device))
        seen[key] = prefix, model.whole(prefix)
    return model.score_prefix(*seen[key])
