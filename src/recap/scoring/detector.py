"""The predictor: one object that scores images, saves itself and comes back the same."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor, nn

from recap.config import ReadingSettings, Settings
from recap.encoders.load import seeded
from recap.encoders.registry import RANDOM
from recap.errors import BundleError, InputError, RecapError
from recap.io import image_from_array, read_image
from recap.io.case import Case, CaseKind
from recap.io.raster import refuse_one_image
from recap.io.resize import SquareResize
from recap.methods.base import Output, Scorer
from recap.methods.registry import find_method
from recap.scoring.arrays import Runtime, as_output
from recap.scoring.bundle import Card, is_of_fit, read_card, read_tensors, write_bundle
from recap.scoring.bundle_folder import TENSORS
from recap.scoring.calibration import Calibration
from recap.scoring.domain_guard import DESCRIPTORS, DomainRange, check_domain
from recap.scoring.own_encoder import checked, find_encoder
from recap.scoring.predict import Opened, predict
from recap.types import CLASSES, Decision, DomainCheck, FloatArray, Image, Prediction

Source = str | Path | np.ndarray | PillowImage.Image | Image


class Detector:
    """A fitted detector.

    >>> detector = recap.load("brain.recap")                      # doctest: +SKIP
    >>> prediction = detector.score("slice.png")                  # doctest: +SKIP
    >>> prediction.score, prediction.map.shape                    # doctest: +SKIP
    """

    def __init__(self, model: Scorer, card: Card, descriptors: FloatArray | None = None) -> None:
        self.model = model.eval()
        self.card = card
        self.descriptors = descriptors
        """Images of the fitted domain as the encoder sees them (n, D), unit rows."""
        self.runtime: Runtime | None = None
        """What computes, if not the model itself; see `recap.runtime.choose`."""

    def __repr__(self) -> str:
        card = self.card
        labels = [record.get("label") for record in card.support]
        parts = [card.mode, f"encoder={card.encoder.name!r}"]
        parts += [f"{labels.count(label)} {label}" for label in CLASSES if label in labels]
        if card.calibration is not None:
            parts.append(f"abnormal from {card.calibration.threshold:.4g} up")
        return f"Detector({', '.join(parts)})"

    @property
    def map_scale(self) -> tuple[float, float]:
        """The map values drawn from nothing to full strength, fixed at fitting and calibration."""
        return self.card.drawn_scale

    def score(self, image: Source) -> Prediction:
        """Score one image: a file, an array, a Pillow image or an `Image`.

        An array is grey (H, W), RGB or RGBA, channels last. Its type says what white is: 255 in
        uint8, 65535 in uint16, 1 in floats.
        """
        return next(self.score_batch([image]))

    def score_batch(self, images: Iterable[Source], batch_size: int = 1) -> Iterator[Prediction]:
        """Score images as they come, on a GPU `batch_size` at a time.

        On a CPU every image runs by itself: a larger batch gains nothing there, and a matrix
        product may round differently when there are more rows to it.
        """
        if isinstance(images, str | Path):
            raise InputError(
                f"{images}: score_batch takes a list of images. For a folder give "
                f'sorted(Path("{images}").glob("*.png")), or use `recap score`.'
            )
        refuse_one_image(images, "score_batch")
        for one in predict(self, map(_Given, images), batch=batch_size if self.on_gpu else 1):
            yield one.or_raise()[1]

    def score_case(self, path: str | Path) -> Prediction:
        """Score a file of many images: a volume, a multi-frame DICOM file or a slide.

        Or a folder that holds one case, such as the slices of a DICOM series.
        """
        from recap.data.cases import open_one_case

        case = open_one_case(Path(path), self.card.reading)
        at_a_time = 1 if len(case.images) == 1 else None
        return next(predict(self, [Opened(case)], batch=at_a_time)).or_raise()[1]

    def calibrated(self, calibration: Calibration) -> "Detector":
        """Return the same detector with another calibration."""
        return self._with({"calibration": calibration}, self.descriptors)

    def guarded(self, domain: DomainRange | None, descriptors: FloatArray | None) -> "Detector":
        """Return the same detector with other images that make up its domain."""
        return self._with({"domain": domain}, descriptors)

    def _with(self, changes: dict[str, Any], descriptors: FloatArray | None) -> "Detector":
        other = Detector(self.model, self.card.model_copy(update=changes), descriptors)
        other.runtime = self.runtime
        return other

    def check_domain(
        self, descriptors: FloatArray | None, kind: CaseKind = "image"
    ) -> DomainCheck | None:
        """Compare a case with those that are known, by the descriptors (n, D) of its images.

        That takes no calibration, and the case may be of another kind than those. None where
        nothing is known of either.
        """
        if self.card.domain is None or self.descriptors is None or descriptors is None:
            return None
        return check_domain(self.card.domain, self.descriptors, descriptors, kind)

    def decide(
        self,
        score: float,
        domain: DomainCheck | None = None,
        kind: CaseKind = "image",
        reading: ReadingSettings | None = None,
    ) -> Decision | None:
        """Decide upon a score; None without a calibration that fits, see `undecided`."""
        calibration = self.card.calibration
        if calibration is None or self.undecided(kind, reading):
            return None
        return calibration.decide(score, domain)

    def undecided(self, kind: CaseKind = "image", reading: ReadingSettings | None = None) -> str:
        """Why scores of this kind are not decided upon; empty if they are."""
        if self.card.calibration is None:
            return "no decision: not calibrated; run recap calibrate"
        return self.card.calibration.why_not(kind, reading or self.card.reading)

    def raw_output(self, images: list[Image]) -> Output:
        """The model's output in the input's frame (S × S), for metrics at that size."""
        pixels = torch.stack([self.preprocess(image) for image in images])
        if self.runtime is not None:
            return as_output(self.runtime.run(pixels.numpy()))
        with torch.inference_mode():
            return self.model(pixels.to(self.model.device))

    def preprocess(self, image: Image) -> Tensor:
        """Source pixels to the encoder's square: (3, S, S) in 0..1."""
        resize = SquareResize(image.size_hw, self.model.encoder.input_px)
        return torch.from_numpy(resize.apply(image.pixels)).permute(2, 0, 1)

    @property
    def on_gpu(self) -> bool:
        """Whether batches run as one."""
        return self.model.device.type != "cpu"

    def prediction(self, output: Output, index: int, image: Image) -> Prediction:
        """Read what an output says about one of its images, in the image's own frame."""
        resize = SquareResize(image.size_hw, self.model.encoder.input_px)
        scores, drift, descriptor = output.scores, output.drift, output.descriptor
        return Prediction(
            score=float(output.score[index]),
            map=resize.invert(output.map[index].cpu().numpy()),
            score_prototype=float(scores["prototype"][index]) if "prototype" in scores else None,
            score_memory=float(scores["memory"][index]) if "memory" in scores else None,
            drift=drift[index].cpu().numpy() if drift is not None else None,
            source=image.source,
            descriptor=None if descriptor is None else descriptor[index].cpu().numpy(),
        )

    def decided(
        self, said: Prediction, kind: CaseKind = "image", reading: ReadingSettings | None = None
    ) -> Prediction:
        """Add to a prediction whether it is of the domain, and what to make of its score."""
        domain = self.check_domain(said.descriptors, kind)
        decision = self.decide(said.score, domain, kind, reading)
        return replace(said, domain=domain, decision=decision)

    def save(
        self,
        path: str | Path,
        keep: str | Path | None = None,
        thumbnails: Mapping[int, bytes] | None = None,
    ) -> None:
        """Save as one folder; an existing bundle there is replaced.

        What else lies in the bundle `keep` is carried over: exported graphs, small pictures. By
        default that is the bundle at `path`, if it is of the same fit, as after calibrating.
        `thumbnails` are small pictures (PNG) of support images by their number in the card; where
        they are given, be it none, the bundle is new, and only what lies in `keep` is carried over.
        """
        tensors = head_tensors(self.model)
        if self.descriptors is not None:
            tensors[DESCRIPTORS] = torch.from_numpy(np.ascontiguousarray(self.descriptors))
        kept = Path(keep) if keep is not None else None
        if kept is None and thumbnails is None and is_of_fit(Path(path), self.card.fingerprint):
            kept = Path(path)
        write_bundle(Path(path), self.card, tensors, kept, thumbnails)


@dataclass(frozen=True, eq=False)
class _Given:
    """An image in whichever way the user holds it, read when its turn comes."""

    image: Source
    name = ""
    read_alone = False

    def open(self, reading: ReadingSettings) -> Case:
        image = as_image(self.image, reading)
        return Case("image", image.source, [image])


def load_detector(
    path: str | Path,
    device: str = "cpu",
    random_weights: bool = False,
    encoder: Any = None,
    settings: Settings | None = None,
) -> Detector:
    """Load a saved detector of any method; see `recap.load`.

    Its encoder must be here and be the one it was fitted on. An encoder that is loaded already
    can be given, and then serves this detector too; so can settings that differ from its own in
    how it scores alone.
    """
    folder = Path(path)
    card = read_card(folder)
    if settings is not None:
        card = card.model_copy(update={"settings": settings})
    if card.encoder.sha256 == RANDOM and not random_weights:
        raise BundleError(
            f"{folder} was fitted on an encoder with random weights, for latency work only: its "
            "scores mean nothing. Pass --random-weights (random_weights=True) to use it anyway."
        )
    method = find_method(card.settings.method)
    encoder = checked(encoder or find_encoder(method, folder, card), folder, card)
    with seeded():  # where it starts is of no matter: the bundle has its numbers
        model = method.build(encoder, card.settings, card.variant)
    model.settle()
    tensors = read_tensors(folder, card)
    descriptors = _descriptors(tensors.pop(DESCRIPTORS, None), card, folder)
    restore(model, tensors, folder)
    if lacking := model.lacking():
        raise BundleError(f"{folder / TENSORS}: lacks {lacking}. Copy the bundle again.")
    # A digest is of the file, not of the detector, which may be calibrated and saved anew.
    card = card.model_copy(update={"head_sha256": None})
    detector = Detector(model.to(device), card, descriptors)
    _try_out(detector, folder)
    return detector


def _try_out(detector: Detector, folder: Path) -> None:
    """Score a blank image: what fitting filled may have any size in a bundle, but not every one."""
    blank = np.zeros((detector.model.encoder.input_px,) * 2, np.uint8)
    try:
        detector.score(blank)
    except RecapError:
        raise
    # Numbers that do not fit each other are answered with almost any exception.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BundleError(
            f"{folder / TENSORS} cannot score: its numbers do not fit each other ({reason}). Copy "
            "the bundle again."
        ) from error


def as_image(source: Any, reading: ReadingSettings) -> Image:
    """Whatever the user holds, as an `Image`."""
    if isinstance(source, Image):
        return source
    if isinstance(source, str | Path):
        if Path(source).is_dir():
            raise InputError(
                f"{source}: a folder is not one image. Score its files with score_batch, or the "
                "DICOM series that it holds with score_case."
            )
        return read_image(source, reading)
    if isinstance(source, list | tuple):
        raise InputError(
            f"A {type(source).__name__} is not one image. Score several with score_batch."
        )
    return image_from_array(source)


def head_tensors(model: Scorer) -> dict[str, Tensor]:
    """All numbers of a detector but its encoder's."""
    state = model.state_dict()
    return {k: v.cpu().clone() for k, v in state.items() if not k.startswith("encoder.")}


def _descriptors(stored: Tensor | None, card: Card, folder: Path) -> FloatArray | None:
    expected = card.domain is not None
    if expected != (stored is not None) or (stored is not None and stored.ndim != 2):
        raise BundleError(
            f"{folder / TENSORS}: {DESCRIPTORS} do not fit its card. Copy the bundle again."
        )
    if stored is None:
        return None
    if not bool(torch.isfinite(stored).all()):
        raise BundleError(f"{folder / TENSORS}: holds values that are not finite. Fit again.")
    return stored.float().numpy()


def restore(model: Scorer, tensors: dict[str, Tensor], folder: Path) -> None:
    """Put a bundle's numbers into its model; whatever does not fit is an error."""
    for name in empty_buffers(model):  # a memory has as many rows as its bundle says
        if name in tensors:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, torch.empty_like(tensors[name]))
    expected = {k: (v.shape, v.dtype) for k, v in head_tensors(model).items()}
    found = {k: (v.shape, v.dtype) for k, v in tensors.items()}
    if expected != found:
        wrong = sorted(k for k in expected | found if expected.get(k) != found.get(k))
        raise BundleError(
            f"{folder / TENSORS}: {', '.join(wrong)} do not fit its settings. Copy the bundle "
            "again."
        )
    if not all(bool(torch.isfinite(v).all()) for v in tensors.values()):
        raise BundleError(f"{folder / TENSORS}: holds values that are not finite. Fit again.")
    model.load_state_dict(tensors, strict=False)


def empty_buffers(model: nn.Module) -> list[str]:
    """Names of registered buffers that hold nothing yet, the encoder's aside."""
    return [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if not path.startswith("encoder")
        for name, value in module._buffers.items()
        if value is None
    ]
