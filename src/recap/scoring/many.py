"""Many detectors, one image: those on one encoder share its pass."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from recap.encoders.memo import Memo, Shared, encoder_key
from recap.encoders.registry import RANDOM
from recap.encoders.vit import Encoder
from recap.methods.base import Output
from recap.scoring.detector import Detector, Source, as_image
from recap.types import Image, Prediction

MEMO_BYTES = 8e9
"""What detectors on one encoder may keep of the images of a volume or slide, on disk."""


class SharedPass:
    """Images on their way through one detector after the other, encoded once; the bits are those of
    each detector by itself."""

    def __init__(self, images: Sequence[Image]) -> None:
        self.images = list(images)
        self._shared = Shared()

    def output(self, detector: Detector) -> Output:
        """What a detector says about the images, in the frame of its encoder's square."""
        with self._shared.used():
            return detector.raw_output(self.images)


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


@contextmanager
def encoding_once(detectors: Sequence[Detector]) -> Iterator[None]:
    """Keep encoded images on disk meanwhile, where several detectors have the same encoder.

    A volume is scored by one detector after the other, and its tokens may not fit into memory. On
    a full disk images are encoded for each detector.
    """
    sharing: dict[object, list[Encoder]] = {}
    for detector in detectors:
        encoder = detector.model.encoder
        if detector.runtime is None and isinstance(encoder, Encoder) and encoder.checksum != RANDOM:
            sharing.setdefault(encoder_key(encoder), []).append(encoder)
    with ExitStack() as stack:
        for encoders in sharing.values():
            if len(encoders) == 1:
                continue
            try:
                folder = stack.enter_context(TemporaryDirectory(prefix="recap-"))
            except OSError:  # no room there: each encodes for itself
                break
            memo = Memo(Path(folder), MEMO_BYTES, optional=True)
            for encoder in encoders:
                if encoder.memo is None:  # not yet, nor by the caller
                    encoder.memo = memo
                    stack.callback(setattr, encoder, "memo", None)
        yield
