"""Checks that a method keeps what recap promises of every method; for authors of their own.

    from recap.testing import check_method
    check_method("mine")

It fits a few generated images on a tiny random encoder, so it needs no file and no network.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from recap.config import Settings
from recap.data.support import SupportImage, gather_support
from recap.errors import InputError, RecapError
from recap.io import image_from_array
from recap.methods import training
from recap.methods.base import combine
from recap.methods.registry import find_method, resolve_settings
from recap.scoring.detector import Detector, head_tensors, load_detector
from recap.scoring.explain import explain
from recap.scoring.fit import fit_support
from recap.types import FloatArray

PX = 70
"""Side of the generated images, and of the tiny encoder's input: 5 × 5 patches of 14 pixels."""
TOLERANCE = 1e-4
"""Of a batch on a GPU, whose products of other sizes round otherwise."""


class ContractError(AssertionError):
    """A method does not keep what recap promises of every method."""


def check_method(
    name: str,
    *,
    encoder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    finds_a_dot: bool = True,
) -> Detector:
    """Check a method of this name on everything that recap promises; returns a fitted detector.

    That is: the same seed gives the same numbers; a score does not depend on what else is scored,
    nor on its order; saved and loaded, a detector says the same bits; a fit that was stopped goes
    on to the same numbers; unusable input is named; a map lines up with a moving dot; the parts of
    an explanation add up to score and map; `without` leaves an image out and changes nothing else.

    Args:
        name: of a row of recap's or of an entry point of the group `recap.methods`.
        encoder: a folder with a tiny encoder; by default one is made, with random weights.
        settings: nested settings such as `{"options": {"epochs": 1}}`, to make fits short.
        finds_a_dot: whether a bright dot is abnormal to a method fitted on so little.
    """
    with tempfile.TemporaryDirectory(prefix="recap-check-") as folder:
        work = Path(folder)
        place = Path(encoder) if encoder is not None else tiny_encoder(work / "encoder")
        chosen = _settings(name, place, settings or {})
        support = _support(name)
        detector = fit_support(support, chosen)
        with _about(name, "fitting twice with one seed"):
            _same_numbers(detector, fit_support(support, chosen))
        with _about(name, "scores in a batch and in any order"):
            check_batches(detector)
        with _about(name, "saving and loading"):
            check_saved(detector, work / "saved.recap")
        with _about(name, "a fit that is stopped and goes on"):
            check_resumed(detector, support, chosen, work / "unfinished")
        with _about(name, "unusable input"):
            check_bad_input(detector, support)
        if finds_a_dot:
            with _about(name, "the map of a moving dot"):
                check_dot(detector)
        with _about(name, "explaining"):
            check_explanation(detector)
        with _about(name, "leaving an image out"):
            check_without(detector)
    return detector


def tiny_encoder(folder: Path) -> Path:
    """Write a random DINOv2 of width 32 as a folder that `encoder.name` may point at."""
    import transformers

    config = transformers.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        patch_size=14,
        image_size=PX,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.Dinov2Model(config).eval()
        for parameter in model.parameters():  # zero-initialised tokens would hide mistakes
            if parameter.abs().max() == 0:
                torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder, safe_serialization=True)
    return folder


def check_batches(detector: Detector) -> None:
    """A score belongs to its image: alone, among others and in any order it is the same."""
    queries, model = [_stripes(number) for number in (50, 51, 52)], detector.model
    images = [image_from_array(query) for query in queries]
    pixels = torch.stack([detector.preprocess(image) for image in images]).to(model.device)
    with torch.inference_mode():
        together = model(pixels)
    _need(together.map.shape == pixels[:, 0].shape, f"a map of {tuple(together.map.shape)}")
    alone = [detector.score(query) for query in queries]
    among = list(detector.score_batch(queries[::-1], batch_size=3))[::-1]
    for one, other in zip(alone, among, strict=True):
        _need(one.score == other.score, f"{one.score} alone, {other.score} among others")
        _need(np.array_equal(one.map, other.map), "the map depends on what else is scored")
    for index, one in enumerate(alone):
        apart = abs(float(together.score[index]) - one.score)
        _need(apart <= TOLERANCE * max(1, abs(one.score)), f"a batch moves a score by {apart:.2g}")


def check_saved(detector: Detector, folder: Path) -> None:
    """Saved and loaded, a detector says the same bits of every image."""
    detector.save(folder)
    again = load_detector(folder, encoder=detector.model.encoder)
    for number in (50, 51):
        one, other = (d.score(_stripes(number)) for d in (detector, again))
        _need(one.score == other.score, f"{one.score} fitted, {other.score} loaded")
        _need(np.array_equal(one.map, other.map), "the loaded map is another one")


def check_resumed(
    detector: Detector, support: list[SupportImage], settings: Settings, folder: Path
) -> None:
    """A fit that was stopped ends as one that was not."""
    told: list[tuple[str, int]] = []

    def listen(stage: str, done: int, total: int, detail: str) -> None:
        told.append((stage, done))

    _same_numbers(detector, fit_support(support, settings, progress=listen))
    for stop in dict.fromkeys(told[1:-1:3]):

        def kill(
            stage: str, done: int, total: int, detail: str, at: tuple[str, int] = stop
        ) -> None:
            if (stage, done) == at:
                raise KeyboardInterrupt

        place = folder / f"{stop[0]}-{stop[1]}"
        with mock.patch.object(training, "SAVE_EVERY_S", -1.0):
            try:
                fit_support(support, settings, work_dir=place, progress=kill)
            except KeyboardInterrupt:
                torch.manual_seed(99)  # the state of the global generator must not matter
                _same_numbers(detector, fit_support(support, settings, work_dir=place))


def check_bad_input(detector: Detector, support: list[SupportImage]) -> None:
    """What cannot be scored or fitted on is an error of recap's, with a sentence."""
    settings = detector.card.settings
    lesions = [item for item in support if item.abnormal]
    attempts: dict[str, Callable[[], object]] = {
        "no normal images": lambda: fit_support(lesions, settings),
        "no images at all": lambda: fit_support([], settings),
        "an image without pixels": lambda: detector.score(np.zeros((0, 4), np.float32)),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
        except InputError as error:
            _need(len(str(error)) > 20, f"{what}: '{error}' does not say what to do")
        except Exception as error:
            raise ContractError(f"{what}: {type(error).__name__}, no error of recap's") from error
        else:
            raise ContractError(f"{what} is taken")


def check_dot(detector: Detector) -> None:
    """A map lines up with its image: where a bright dot goes, what it adds to the map goes."""
    blank = np.full((PX, PX), 0.4, np.float32)
    base = detector.score(blank).map
    found = []
    for row, column in ((1, 1), (1, 3), (3, 1), (3, 3)):
        image = blank.copy()
        image[14 * row : 14 * row + 14, 14 * column : 14 * column + 14] = 1.0
        change = np.abs(detector.score(image).map - base)
        _need(bool(change.max() > 0), "a bright dot changes nothing in the map")
        found.append(_centre(change / change.sum()))
    top_left, top_right, low_left, low_right = found
    for (one, other), axis in (
        ((top_left, top_right), 1),
        ((low_left, low_right), 1),
        ((top_left, low_left), 0),
        ((top_right, low_right), 0),
    ):
        _need(other[axis] > one[axis], f"the map of a dot does not follow it: {found}")


def check_explanation(detector: Detector) -> None:
    """The parts of an explanation add up to the score and to the map's value."""
    for number in (50, 51):
        found = explain(detector, _stripes(number))
        for parts, whole in (
            (found.score_parts, found.score),
            (found.map_parts, found.map_value),
        ):
            total = sum(part.amount for part in parts)
            apart = abs(total - whole)
            _need(apart <= 1e-4 * max(1, abs(whole)), f"parts are {total:.6g}, not {whole:.6g}")
            weights = sum(part.weight for part in parts)
            _need(abs(weights - 1) < 1e-4, f"weights add up to {weights:.6g}, not to 1")


def check_without(detector: Detector) -> None:
    """Leaving an image out gives a model of the same kind and leaves this one as it is."""
    model = detector.model
    before = head_tensors(model)
    pixels = detector.preprocess(image_from_array(_stripes(0)))[None].to(model.device)
    with torch.inference_mode():
        own = model(pixels)
        other = model.without(0)
        if other is not None:
            said = combine(other.evidence(pixels))
            _need(said.score.shape == own.score.shape, "a score of another shape")
            _need(bool(said.score.isfinite().all()), "a score that is not finite")
        again = model(pixels)
    after = head_tensors(model)
    _need(before.keys() == after.keys(), "the model lost or gained numbers")
    _need(all(torch.equal(before[k], after[k]) for k in before), "the model's numbers changed")
    _need(torch.equal(own.score, again.score), "the model's score changed")


def _centre(weights: FloatArray) -> tuple[float, float]:
    places = np.arange(PX)
    return float((weights.sum(axis=1) * places).sum()), float((weights.sum(axis=0) * places).sum())


def _settings(name: str, encoder: Path, values: Mapping[str, Any]) -> Settings:
    chosen = {"name": str(encoder), "input_px": PX, **values.get("encoder", {})}
    rest = {key: value for key, value in values.items() if key != "encoder"}
    settings: Settings = resolve_settings(method=name, encoder=chosen, **rest)
    return settings


def _support(name: str) -> list[SupportImage]:
    """Three normal images of stripes and, where a method wants them, two with a bright square."""
    normal = [_stripes(number) for number in range(3)]
    if find_method(name).normal_only:
        return gather_support(normal)
    masks = [np.zeros((PX, PX), bool) for _ in range(2)]
    for number, mask in enumerate(masks):
        corner = 10 + 25 * number
        mask[corner : corner + 20, corner : corner + 20] = True
    lesions = [np.maximum(_stripes(10 + n), mask) for n, mask in enumerate(masks)]
    return gather_support(normal, [lesion.astype(np.float32) for lesion in lesions], masks)


def _stripes(seed: int) -> FloatArray:
    """A grey image of soft stripes."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:PX, :PX] / PX
    waves = np.sin(6 * rows + seed) * np.cos(5 * columns) + 0.2 * rng.standard_normal((PX, PX))
    return np.clip(0.4 + 0.15 * waves, 0, 1).astype(np.float32)


def _same_numbers(one: Detector, other: Detector) -> None:
    first, second = head_tensors(one.model), head_tensors(other.model)
    _need(first.keys() == second.keys(), "a second fit has other numbers")
    for name in first:
        _need(torch.equal(first[name], second[name]), f"{name} is not the same in both fits")
    _need(one.card.map_scale == other.card.map_scale, "maps are scaled otherwise")


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ContractError(otherwise)


@contextmanager
def _about(name: str, what: str) -> Iterator[None]:
    """Say which promise of which method does not hold."""
    try:
        yield
    except ContractError as error:
        raise ContractError(f"{name}, {what}: {error}") from error
    except RecapError as error:
        raise ContractError(f"{name}, {what}: {error}") from error
