"""Many detectors, one image: those with side adapters on one encoder share its pass."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from recap.encoders.load import RANDOM
from recap.encoders.memo import TapsMemo
from recap.encoders.seen_through import seen_through
from recap.encoders.vit import Encoder
from recap.methods.recap.appearance import Whole
from recap.methods.recap.head import ReCAP
from recap.methods.recap.scorer import Output
from recap.scoring.detector import Detector, Source, as_image
from recap.types import Image, Prediction

MEMO_BYTES = 8e9
"""What detectors on one encoder may keep of the images of a volume or slide, on disk."""


class SharedPass:
    """Images on their way through one detector after the other, encoded once.

    Detectors with other encoders, sizes or tapped layers, with adapters that write back, of other
    methods or with a runtime of their own run by themselves. The bits are the same either way.
    """

    def __init__(self, images: Sequence[Image]) -> None:
        self.images = list(images)
        self._seen: dict[Hashable, tuple[torch.Tensor, Whole]] = {}

    @torch.inference_mode()
    def output(self, detector: Detector) -> Output:
        """What a detector says about the images, in the frame of its encoder's square."""
        key, model = encoder_key(detector), detector.model
        if key is None or not isinstance(model, ReCAP):
            return detector.raw_output(self.images)
        if key not in self._seen:
            squares = torch.stack([detector.preprocess(image) for image in self.images])
            pixels = squares.to(model.device)
            prefix = model.prefix(pixels)
            self._seen[key] = prefix, model.whole(pixels, prefix)
        return model.score_prefix(*self._seen[key])


def score_many(detectors: Sequence[Detector], image: Source) -> list[Prediction]:
    """What every detector says about an image, in their order; the same bits as one by one."""
    read: dict[str, tuple[Image, SharedPass]] = {}
    predictions = []
    for detector in detectors:
        reading = detector.card.reading
        how = reading.model_dump_json()
        if how not in read:
            opened = as_image(image, reading)
            read[how] = opened, SharedPass([opened])
        opened, shared = read[how]
        predictions.append(detector.prediction(shared.output(detector), 0, opened))
    return predictions


def encoder_key(detector: Detector) -> Hashable | None:
    """The same for detectors that can share a pass of the encoder; None for those that cannot."""
    model = detector.model
    if detector.runtime is not None or not isinstance(model, ReCAP) or model.writes_back:
        return None
    encoder = model.encoder
    # Encoders that were never trained are all called "random": only the very same one is the same.
    weights = id(encoder) if encoder.checksum == RANDOM else encoder.checksum
    how = (encoder.input_px, encoder.layers, encoder.interpolate, repr(seen_through(encoder)))
    return (weights, *how, str(model.device))


@contextmanager
def encoding_once(detectors: Sequence[Detector]) -> Iterator[None]:
    """Keep encoded images on disk meanwhile, where several detectors have the same encoder.

    A volume is scored by one detector after the other, and its tokens may not fit into memory. On
    a full disk images are encoded for each detector.
    """
    sharing: dict[Hashable, list[Encoder]] = {}
    for detector in detectors:
        if (key := encoder_key(detector)) is not None:
            sharing.setdefault(key, []).append(detector.model.encoder)
    with ExitStack() as stack:
        for encoders in sharing.values():
            if len(encoders) == 1:
                continue
            try:
                folder = stack.enter_context(TemporaryDirectory(prefix="recap-"))
            except OSError:  # no room there: each encodes for itself
                break
            memo = TapsMemo(Path(folder), MEMO_BYTES, optional=True)
            for encoder in encoders:
                if encoder.memo is None:  # not yet, nor by the caller
                    encoder.memo = memo
                    stack.callback(setattr, encoder, "memo", None)
        yield
