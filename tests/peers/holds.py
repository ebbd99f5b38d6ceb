"""What the detector of any method must hold to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recap.io import image_from_array
from recap.peers import training
from recap.peers.fitting import fit_few_shot
from recap.peers.loading import load


def pixels_of(detector: Any, query: np.ndarray) -> torch.Tensor:
    """One image as the model takes it: (1, 3, S, S)."""
    return detector.preprocess(image_from_array(query))[None]


def numbers(detector: Any) -> dict[str, torch.Tensor]:
    """All that fitting decides."""
    state = detector.model.state_dict()
    return {name: value for name, value in state.items() if not name.startswith("encoder.")}


def are_same(first: Any, second: Any) -> bool:
    """Whether two detectors are equal to the last bit."""
    one, two = numbers(first), numbers(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def check_saved(detector: Any, queries: list[np.ndarray], folder: Path) -> None:
    """Saved and loaded scores and maps are the same bits."""
    detector.save(folder)
    again = load(folder)
    for query in queries:
        before, after = detector.score(query), again.score(query)
        assert before.score == after.score
        assert np.array_equal(before.map, after.map)


@torch.no_grad()
def check_batches(detector: Any, queries: list[np.ndarray]) -> None:
    """An image's score does not depend on the images that are scored with it."""
    pixels = torch.cat([pixels_of(detector, query) for query in queries])
    together = detector.model(pixels)
    for index in range(len(queries)):
        alone = detector.model(pixels[index : index + 1])
        assert torch.allclose(together.score[index], alone.score[0], atol=1e-5)
        assert torch.allclose(together.map[index], alone.map[0], atol=1e-5)


def check_seeds_and_interruption(support: Any, settings: Any, folder: Path) -> None:
    """The seed decides the detector, whether or not its fit was interrupted (2 epochs)."""
    whole = fit_few_shot(support, settings)
    other = fit_few_shot(support, settings.model_copy(update={"seed": 1}))
    assert not are_same(whole, other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "SAVE_EVERY_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            fit_few_shot(support, settings, work_dir=folder, progress=_stop_in_second_epoch)
    assert (folder / "checkpoint.safetensors").exists()
    assert are_same(whole, fit_few_shot(support, settings, work_dir=folder))


def _stop_in_second_epoch(stage: str, done: int, total: int, note: str) -> None:
    if stage == "train" and done == 2:
        raise KeyboardInterrupt
