"""The ensembles, and the directions made of them."""

import numpy as np
import pytest
import torch

from recap.config import EncoderSettings
from recap.encoders.text import load_text_tower
from recap.errors import WeightsError
from recap.methods import _prompts as prompts
from recap.methods.fitting import Job
from recap.methods.images import LabelledImages


@pytest.fixture(scope="module")
def tower(tiny_clip_folder):
    return load_text_tower(EncoderSettings(name=str(tiny_clip_folder)))


def images_of(*domains):
    count = len(domains)
    flags, places = torch.zeros(count, dtype=torch.bool), torch.arange(count)
    masks = torch.zeros(count, 1, 1, dtype=torch.bool)
    return LabelledImages(torch.zeros, flags, masks, flags, places, places, domains, places * 0)


def test_states_times_templates():
    normal, abnormal = prompts.sentences("Liver")
    assert (len(prompts.TEMPLATES), len(normal), len(abnormal)) == (35, 7 * 35, 5 * 35)
    assert len(set(normal) | set(abnormal)) == 12 * 35
    assert "a blurry photo of the healthy Liver." in normal
    assert "the Liver with lesion in a scan." in abnormal
    assert not any("{" in text or "  " in text for text in normal + abnormal)


@pytest.mark.parametrize(
    ("domain", "subject"),
    [
        ("Brain", "Brain"),
        ("Retina_RESC", "retinal OCT"),
        ("Retina_OCT2017", "retinal OCT"),
        ("Chest", "Chest X-ray film"),
        ("Histopathology", "histopathological image"),
        ("left_knee", "left knee"),
        ("_", "medical image"),
        ("", "medical image"),
    ],
)
def test_subjects(domain, subject):
    assert prompts.subject_of(domain) == subject


def test_directions_are_means_of_unit_vectors(tower):
    found = prompts.text_features(tower, "Brain").numpy()
    for ensemble, row in zip(prompts.sentences("Brain"), found, strict=True):
        total = np.zeros(tower.projection_dim)
        for text in ensemble:
            vector = tower.encode_text([text])[0].double().numpy()
            total += vector / np.linalg.norm(vector)
        np.testing.assert_allclose(row, total / np.linalg.norm(total), atol=1e-5)
    assert abs(found[0] @ found[1]) < 0.9999


def test_every_domain_has_its_own_directions(tower):
    images = images_of("Brain", "Retina_RESC", "Retina_OCT2017")
    target, features = prompts.features_of(tower, images, "Liver", zero_shot=True)
    assert torch.equal(target, prompts.text_features(tower, "Liver"))
    assert torch.equal(features[1], features[2])
    assert not torch.equal(features[0], features[1])
    anchors = prompts.anchors_of(features, images, [2, 0])
    assert torch.equal(anchors, features[[2, 0]])


@pytest.mark.parametrize(
    ("zero_shot", "target", "scored", "fitted_on"),
    [
        (False, "", "Brain", "Brain"),
        (True, "", "medical image", "Brain"),
        (True, "spine", "spine", "Brain"),
        # A support set is of what is scored: trained against one text and scored against another,
        # it would have learned something else.
        (False, "spine", "spine", "spine"),
    ],
)
def test_what_the_sentences_are_about(tower, zero_shot, target, scored, fitted_on):
    goal, features = prompts.features_of(tower, images_of("Brain"), target, zero_shot)
    assert torch.equal(goal, prompts.text_features(tower, scored))
    assert torch.equal(features, prompts.text_features(tower, fitted_on)[None])


def test_towers_of_another_width_are_refused(peer_settings):
    job = Job(peer_settings("mvfa"), False, lambda *_: None, "", None)
    assert prompts.tower_for(job, 24, torch.device("cpu")).projection_dim == 24
    with pytest.raises(WeightsError, match="25 channels"):
        prompts.tower_for(job, 25, torch.device("cpu"))
