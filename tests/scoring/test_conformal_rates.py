"""The measurement behind the table of false-positive rates in docs/decisions.md."""

import sys
from pathlib import Path

import numpy as np
import pytest

from recap.data import write_phantoms
from recap.errors import InputError
from recap.scoring.calibration import calibrate_scores
from recap.scoring.regions import find_regions


@pytest.fixture
def rates(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import conformal_rates

    yield conformal_rates
    sys.modules.pop("conformal_rates")


def test_nothing_is_trained(rates, tmp_path, monkeypatch):
    write_phantoms(tmp_path, pool=1, test=1, size_px=32, domains=["Brain"])
    asked = []

    def fit(support, settings, **_):
        asked.append((len(support), settings.training.made_up_lesions))
        raise InputError("enough")

    monkeypatch.setattr(rates, "load_encoder", lambda _: type("Encoder", (), {})())
    monkeypatch.setattr(rates, "fit_support", fit)
    with pytest.raises(InputError, match="enough"):
        rates.measure(tmp_path, tmp_path / "out", shots=1)
    assert asked == [(1, False)]


def test_maps_with_a_region_are_those_in_which_one_is_found(rates):
    maxima = np.random.default_rng(0).random(200).round(1).astype(np.float32)
    chosen = np.arange(200) % 2 == 0
    level = calibrate_scores([0.0] * 100, maxima[chosen].tolist(), fpr=0.25).map_level
    found = [bool(find_regions(np.full((2, 2), value), level)) for value in maxima[~chosen]]
    assert rates._region_rate(maxima, chosen, 0.25) == np.mean(found)
    assert 0 < np.mean(found) <= 0.25
