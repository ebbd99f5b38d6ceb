"""Without masks, labels teach the score and made-up lesions the map; neither knows of the other."""

from dataclasses import replace

import numpy as np
import pytest

import recap
from recap.errors import SettingsError
from recap.methods.recap.head import ReCAP
from recap.methods.recap.regimes import REGIMES
from recap.scoring.explain import explain


@pytest.fixture
def fit(arrays, tiny_settings):
    def make(made_up=True, abnormal=True, **sections):
        training = {"made_up_lesions": made_up, **sections.pop("training", {})}
        settings = tiny_settings("recap", training=training, **sections)
        return recap.fit(
            arrays["normal"], arrays["abnormal"] if abnormal else None, settings=settings
        )

    return make


def test_scores_are_those_that_labels_taught_alone(fit, arrays):
    both, labels = fit(), fit(made_up=False)
    assert (len(both.model.branches), len(labels.model.branches)) == (2, 1)
    assert "lesions made up on the normal support images" in both.card.statement
    for image in arrays["normal"] + arrays["abnormal"]:
        one, other = both.score(image), labels.score(image)
        assert one.score == pytest.approx(other.score, abs=1e-6)
        assert one.score_prototype == pytest.approx(other.score_prototype, abs=1e-6)
        assert one.score_memory == pytest.approx(other.score_memory, abs=1e-6)
        assert not np.allclose(one.map, other.map)


def test_maps_are_those_that_lesions_taught_alone(fit, arrays, monkeypatch):
    """A detector of normal images alone that keeps its prototypes draws the same."""
    both = fit()
    row = replace(REGIMES["normals"], sources=("peak", "peak_memory"))
    monkeypatch.setitem(REGIMES, "normals", row)
    alone = fit(abnormal=False)
    for image in arrays["abnormal"]:
        assert np.allclose(both.score(image).map, alone.score(image).map, atol=1e-6)


@pytest.mark.parametrize("conditioning", ["gated", "tokens"])
def test_saved_and_loaded_it_is_the_same(conditioning, fit, arrays, tmp_path):
    """Also with anchors that the layers of each branch share, but not the two branches."""
    detector = fit(model={"conditioning": conditioning})
    detector.save(tmp_path / "a.recap")
    loaded = recap.load(tmp_path / "a.recap")
    for image in arrays["normal"] + arrays["abnormal"]:
        one, two = detector.score(image), loaded.score(image)
        assert one.score == two.score
        assert np.array_equal(one.map, two.map)
    found = explain(loaded, arrays["abnormal"][0])
    assert sum(part.amount for part in found.score_parts) == pytest.approx(found.score, abs=1e-6)
    assert sum(part.amount for part in found.map_parts) == pytest.approx(found.map_value, abs=1e-5)


def test_losses_are_of_both(fit):
    both, labels = fit().card.losses, fit(made_up=False).card.losses
    assert both["detection"] == labels["detection"] > 0
    assert both["segmentation"] > labels["segmentation"] == 0
    parts = sum(both[name] for name in ("segmentation", "detection", "separation"))
    assert both["loss"] == pytest.approx(parts, rel=1e-5)


@pytest.mark.parametrize("augment", [False, True])
def test_images_are_encoded_once_for_both(augment, fit, count_calls):
    encoded = count_calls(ReCAP, "encode")
    fit(training={"augment": augment, "epochs": 1, "batch_size": 55})
    copies = 11 if augment else 1
    assert len(encoded) == copies * (5 + 3) + 1  # support, lesions, and one for the tokens' shape


def test_masks_need_no_made_up_lesions(arrays, tiny_settings):
    detector = recap.fit(**arrays, settings=tiny_settings("recap"))
    assert detector.card.variant == "masks"


def test_heads_that_write_back_are_refused_as_before(fit):
    with pytest.raises(SettingsError, match="needs side adapters"):
        fit(model={"write_back": True})
