"""What the detector of any method must hold to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recap
from recap.io import image_from_array
from recap.methods import training
from recap.scoring.detector import Detector
from recap.scoring.fit import fit_support
from recap.types import Prediction


def pixels_of(detector: Any, query: np.ndarray) -> torch.Tensor:
    """One image as the model takes it: (1, 3, S, S)."""
    return detector.preprocess(image_from_array(query))[None]


def numbers(detector: Any) -> dict[str, torch.Tensor]:
    """All that fitting decides."""
    state = detector.model.state_dict()
    return {name: value for name, value in state.items() if not name.startswith("encoder.")}


def same_numbers(first: Any, second: Any) -> bool:
    """Whether two detectors are equal to the last bit."""
    one, two = numbers(first), numbers(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def are_same(first: Any, second: Any) -> bool:
    """Whether two detectors are equal, their cards included."""
    return same_numbers(first, second) and first.card == second.card


def check_saved(detector: Any, queries: list[np.ndarray], folder: Path) -> Any:
    """Saved and loaded scores and maps are the same bits, without a text tower; returns it."""

    def refused(*_: object) -> None:
        raise AssertionError("Scoring asked for the text tower.")

    detector.save(folder)
    with pytest.MonkeyPatch.context() as patch:
        for place in ("recap.encoders.text", "recap.methods._prompts"):
            patch.setattr(f"{place}.load_text_tower", refused)
        again = recap.load(folder)
        for query in queries:
            assert are_equal(detector.score(query), again.score(query))
    return again


def are_equal(one: Prediction, other: Prediction) -> bool:
    """Whether score and map of two predictions are the same bits."""
    return one.score == other.score and np.array_equal(one.map, other.map)


def check_batches(
    detector: Any, queries: list[np.ndarray], rel: float = 0, abs: float = 1e-5
) -> None:
    """An image's score depends neither on those that are scored with it nor on their order.

    To the last bit on a CPU; on a GPU up to what products of other sizes round otherwise.
    """
    alone = [detector.score(query) for query in queries]
    one_by_one = list(detector.score_batch(queries[::-1], batch_size=3))[::-1]
    assert all(are_equal(*pair) for pair in zip(alone, one_by_one, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Detector, "on_gpu", True)  # a CPU would score them one by one
        together = list(detector.score_batch(queries[::-1], batch_size=3))[::-1]
    for one, other in zip(alone, together, strict=True):
        assert np.isfinite(one.map).all()
        assert one.score == pytest.approx(other.score, rel=rel, abs=abs)
        np.testing.assert_allclose(one.map, other.map, rtol=rel, atol=abs)


def check_seeds_and_interruption(
    support: Any, settings: Any, folder: Path, stop: tuple[str, int] = ("train", 2)
) -> Any:
    """The seed decides the detector, whether or not its fit was interrupted; returns it.

    The fit is stopped at that step, when the one before has been saved.
    """
    whole = fit_support(support, settings)
    other = fit_support(support, settings.model_copy(update={"seed": 1}))
    assert not same_numbers(whole, other)

    def kill(stage: str, done: int, total: int, note: str) -> None:
        if (stage, done) == stop:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "SAVE_EVERY_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            fit_support(support, settings, work_dir=folder, progress=kill)
    assert (folder / "checkpoint.safetensors").exists() == (stop[0] == "train")
    torch.manual_seed(99)  # the global generator must not matter
    assert are_same(whole, fit_support(support, settings, work_dir=folder))
    return whole
