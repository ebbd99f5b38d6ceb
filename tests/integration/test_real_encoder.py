"""The default encoder with its real weights, where they are on this machine."""

import re

import numpy as np
import pytest

import recap
from recap import demo
from recap.data import draw_support, write_phantoms
from recap.data.support import load_support
from recap.encoders.weights import locate
from recap.errors import WeightsError
from recap.scoring.fit import fit_support

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def weights():
    try:
        return locate("dinov2-small")
    except WeightsError as error:
        pytest.skip(f"needs the real weights: {error}")


@pytest.fixture
def quick():
    return recap.resolve_settings(training={"epochs": 1, "augment": False})


def test_one_shot_fit_score_save_and_load(quick, tmp_path, weights):
    brain = write_phantoms(tmp_path, pool=1, test=3, domains=["Brain"])[0]
    support = draw_support(brain, 1)
    detector = fit_support(load_support([*support.normal, *support.abnormal]), quick)
    assert detector.card.encoder.sha256 == weights.sha256
    assert detector.card.preprocessing["input_px"] == 240
    detector.save(tmp_path / "brain.recap")
    loaded = recap.load(tmp_path / "brain.recap")
    memory = {True: [], False: []}
    for sample in brain.test():
        one, two = detector.score(sample.path), loaded.score(sample.path)
        assert one.score == two.score
        assert np.array_equal(one.map, two.map)
        assert one.map.shape == (240, 240)
        memory[sample.abnormal].append(one.score_memory)
    assert np.mean(memory[True]) > np.mean(memory[False])


def test_a_dot_is_found_where_it_is(quick):
    """240 px are not a multiple of 14: the map must still line up with the image."""
    flat = np.full((480, 360), 0.5, np.float32)
    detector = recap.fit([flat], settings=quick)
    for y, x in ((60, 60), (240, 180), (420, 300), (130, 250)):
        image = flat.copy()
        image[y - 14 : y + 14, x - 11 : x + 11] = 1
        peak = np.unravel_index(detector.score(image).map.argmax(), flat.shape)
        assert abs(peak[0] - y) <= 28  # one source patch: 14 px of 240
        assert abs(peak[1] - x) <= 21


def test_the_demo_on_phantoms(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "resolve_settings", lambda *args: quick)
    lines, stages = [], set()
    result = demo.run_demo(
        tmp_path, lines.append, lambda stage, *rest: stages.add(stage), phantoms=True
    )
    assert stages >= {"encode", "train", "score"}
    page = result.page.read_text(encoding="utf-8")
    assert not re.findall(r"https?://", page)
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert all(note[:40] in page for note in demo.NOTES_PHANTOM)
    assert len(result.table) == 1 + 12 + 1
    assert recap.load(tmp_path / "demo.recap").card.mode == "few-shot"
