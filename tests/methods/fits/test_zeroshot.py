import builtins
import io
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

import recap
from recap.config import ReadingSettings
from recap.data import write_phantoms
from recap.data.benchmark import find_domains
from recap.errors import InputError, SettingsError
from recap.methods.images import leave_one_out, source_images, source_masks, square_pixels
from recap.methods.recap import teach
from recap.methods.recap.losses import Objective
from recap.methods.recap.sources import solve_domains
from recap.scoring import fit as fitting
from recap.scoring.explain import explain
from recap.scoring.fit import fit_sources


@pytest.fixture
def opened(monkeypatch):
    """Every file that is opened from now on, by whichever of Python's three ways."""
    seen = []

    def noted(how):
        def call(path, *args, **kwargs):
            seen.append(str(path))
            return how(path, *args, **kwargs)

        return call

    for module, name in [(builtins, "open"), (io, "open"), (os, "open")]:
        monkeypatch.setattr(module, name, noted(getattr(module, name)))
    return seen


def files_read(opened, domains):
    root = domains[0].root.parent
    return {path for path in opened if path.startswith(str(root))}


def pool_files(domains, split="valid"):
    return {
        str(path)
        for domain in domains
        for path in (domain.root / split).rglob("*.png")
        if path.is_file()
    }


def test_leave_one_out_reads_neither_the_target_nor_any_test_image(phantoms, tiny_settings, opened):
    sources = leave_one_out(find_domains(phantoms[0].root.parent), "Brain")
    assert [domain.name for domain in sources] == ["Liver", "Chest"]
    opened.clear()
    detector = fit_sources(sources, tiny_settings())
    assert files_read(opened, phantoms) == pool_files(phantoms[1:])
    assert {record["domain"] for record in detector.card.support} == {"Liver", "Chest"}


def test_mvfa_protocol_reads_the_test_split_and_says_so(phantoms, tiny_settings, opened):
    settings = tiny_settings(training={"source_split": "test"})
    detector = fit_sources(phantoms[1:], settings)
    assert files_read(opened, phantoms) == pool_files(phantoms[1:], "test")
    assert "test splits of the other domains" in detector.card.statement
    pools = fit_sources(phantoms[1:], tiny_settings())
    assert "test splits" not in pools.card.statement


def test_zero_shot_detector_has_no_memory(phantoms, tiny_settings):
    detector = fit_sources(phantoms[:2], tiny_settings())
    assert detector.card.mode == "zero-shot"
    assert "no memory" in detector.card.statement
    assert detector.model.memory is None
    prediction = detector.score(phantoms[2].test()[0].path)
    assert prediction.score_memory is None
    assert prediction.score == prediction.score_prototype
    assert len(detector.card.support) == 8


def test_same_seed_same_bytes_other_seed_others(phantoms, tiny_settings, bytes_of):
    one, two, other = (
        bytes_of(fit_sources(phantoms[:2], tiny_settings(seed=s))) for s in (1, 1, 2)
    )
    assert one == two
    assert one["head.safetensors"] != other["head.safetensors"]


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_training_lowers_the_loss(preset, phantoms, tiny_settings):
    losses = []
    for epochs in (1, 10):
        training = {"epochs": epochs, "batch_size": 4, "learning_rate": 5e-3}
        settings = tiny_settings(preset, training=training, model={"logit_scale": 10})
        losses.append(fit_sources(phantoms[:2], settings).card.losses["loss"])
    assert losses[1] < 0.9 * losses[0]


def test_domains_are_numbered_by_alphabet(phantoms, tiny_settings, count_calls):
    trained = count_calls(teach, "train")
    fit_sources(phantoms, tiny_settings())
    assert trained[0][2].domain.tolist() == [0] * 4 + [2] * 4 + [1] * 4


def test_the_optimiser_is_the_published_one(phantoms, arrays, tiny_settings, monkeypatch):
    made = []

    class Recorded(teach.Adam):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(teach, "Adam", Recorded)
    fit_sources(phantoms, tiny_settings(training={"learning_rate": None}))
    recap.fit(**arrays, settings=tiny_settings(training={"learning_rate": None}))
    kept = ("lr", "betas", "weight_decay", "amsgrad")
    assert [tuple(one.defaults[key] for key in kept) for one in made] == [
        (5e-4, (0.5, 0.999), 0, False),
        (1e-3, (0.5, 0.999), 0, False),
    ]


def test_only_domains_with_masks_supervise_maps(phantoms, tiny_settings, count_calls):
    trained = count_calls(teach, "train")
    fit_sources(phantoms, tiny_settings())
    data = trained[0][2]
    assert data.has_mask.tolist() == [True] * 8 + [False] * 4
    assert data.masks.flatten(1).any(dim=1).tolist() == (
        [False, False, True, True] * 2 + [False] * 4
    )


def test_an_abnormal_image_without_a_mask_is_not_taken_for_healthy(
    phantoms, tiny_settings, count_calls, monkeypatch
):
    samples = phantoms[0].pool()
    samples[2] = replace(samples[2], mask=None)
    monkeypatch.setattr(fitting, "source_samples", lambda sources, split: samples)
    trained = count_calls(teach, "train")
    fit_sources(phantoms[:1], tiny_settings())
    expected = [True, True, False, True]
    assert trained[0][2].has_mask.tolist() == expected
    assert source_images(samples, 70, ReadingSettings()).has_mask.tolist() == expected


def test_without_any_mask_the_map_is_not_supervised(phantoms, tiny_settings):
    assert fit_sources(phantoms[2:], tiny_settings()).card.losses["segmentation"] == 0


def test_without_any_mask_the_branch_that_labels_taught_draws_the_map(
    phantoms, tiny_settings, tmp_path
):
    settings = tiny_settings(model={"branches": "taught"})
    detector = fit_sources(phantoms[2:], settings)
    assert detector.model.regime == detector.card.variant == "domain_labels"
    assert len(detector.model.branches) == 1
    assert "no memory" in detector.card.statement
    detector.save(tmp_path / "zero.recap")
    image = phantoms[0].test()[0].path
    one, two = detector.score(image), recap.load(tmp_path / "zero.recap").score(image)
    assert one.score == two.score
    assert np.array_equal(one.map, two.map)
    # With masks among the sources there are two branches, as published, if prototypes score.
    assert len(fit_sources(phantoms, settings).model.branches) == 2


def test_random_start_is_a_unit_vector_of_the_seed(phantoms, tiny_settings, monkeypatch):
    monkeypatch.setattr(teach, "train", lambda *args: {})
    fits = [fit_sources(phantoms[:1], tiny_settings(seed=s)).model for s in (1, 1, 2)]
    bases = [torch.stack([model.maps.base(), model.scores.base()], dim=1) for model in fits]
    assert torch.allclose(bases[0].norm(dim=-1), torch.ones(4, 2, 2), atol=1e-6)
    assert torch.equal(bases[0], bases[1])
    assert not torch.allclose(bases[0], bases[2])


def test_unknown_target_names_what_is_there(phantoms):
    with pytest.raises(InputError, match=r"no domain 'Knee'.*Brain, Liver, Chest"):
        leave_one_out(phantoms, "Knee")


def test_a_target_needs_sources(phantoms):
    with pytest.raises(InputError, match="at least one other"):
        leave_one_out(phantoms[:1], "Brain")


def test_sources_need_both_classes(tmp_path, tiny_settings):
    domain = write_phantoms(tmp_path, pool=1, test=1, size_px=70, domains=["Chest"])[0]
    for file in (domain.root / "valid" / "Ungood" / "img").iterdir():
        file.unlink()
    with pytest.raises(InputError, match="no abnormal images"):
        fit_sources([domain], tiny_settings())


def test_a_mask_of_another_size_is_an_error(tmp_path, tiny_settings):
    domain = write_phantoms(tmp_path, pool=1, test=1, size_px=70, domains=["Brain"])[0]
    mask = next((domain.root / "valid" / "Ungood" / "anomaly_mask").iterdir())
    PillowImage.new("L", (70, 35)).save(mask)
    with pytest.raises(InputError, match=f"{mask.name}.*70×35.*70×70"):
        fit_sources([domain], tiny_settings())


def test_a_lesion_whose_mask_marks_nothing_is_not_taught_as_healthy(tmp_path, tiny_settings):
    domain = write_phantoms(tmp_path, pool=2, test=1, size_px=70, domains=["Brain"])[0]
    *healthy, marked, unmarked = sorted(domain.pool(), key=lambda sample: sample.abnormal)
    PillowImage.new("L", (70, 70)).save(unmarked.mask)
    reading = tiny_settings().reading
    masks, supervised = source_masks([*healthy, marked, unmarked], 70, reading)
    assert supervised.tolist() == [*[True] * len(healthy), True, False]
    assert masks.flatten(1).any(dim=1).tolist() == [*[False] * len(healthy), True, False]
    with pytest.raises(InputError, match="mark nothing"):
        source_masks([*healthy, unmarked], 70, reading)


def test_class_tokens_score_and_prototypes_draw(phantoms, tiny_settings, tmp_path):
    fits = [
        fit_sources(phantoms[:2], tiny_settings(seed=s, model={"zero_shot_score": "class_tokens"}))
        for s in (1, 2)
    ]
    samples = [sample for domain in phantoms[:2] for sample in domain.pool()]
    model = fits[0].model
    with torch.no_grad():
        pixels = torch.stack([square_pixels(s, 70, ReadingSettings()) for s in samples])
        vectors = model.features(model.encode(pixels)).class_tokens
    solved = solve_domains(
        vectors,
        torch.tensor([s.abnormal for s in samples]),
        torch.tensor([s.domain == samples[0].domain for s in samples]),
    )
    assert torch.allclose(model.find_source("appearance").direction, solved, rtol=1e-3)
    image = phantoms[2].test()[0].path
    one, other = (detector.score(image) for detector in fits)
    assert one.score == other.score  # a closed form knows no seed
    assert not np.array_equal(one.map, other.map)
    assert "class tokens" in fits[0].card.statement
    fits[0].save(tmp_path / "zero.recap")
    loaded = recap.load(tmp_path / "zero.recap")
    assert loaded.score(image).score == one.score
    found = explain(loaded, image)
    parts = [(part.source, part.weight) for part in found.score_parts if part.weight]
    assert parts == [("appearance", 1.0)]
    assert sum(part.amount for part in found.score_parts) == pytest.approx(one.score)


def test_where_class_tokens_score_masks_alone_teach(phantoms, tiny_settings, monkeypatch):
    head = {"zero_shot_score": "class_tokens", "branches": "taught"}
    seen = []
    original = Objective.__call__

    def watched(self, hidden, images):
        seen.extend(images.origin.tolist())
        return original(self, hidden, images)

    monkeypatch.setattr(Objective, "__call__", watched)
    detector = fit_sources(phantoms, tiny_settings(model=head))
    assert detector.model.regime == detector.card.variant == "domain_masks"
    assert "masks of other domains" in detector.card.statement
    with_masks = sum(len(domain.pool()) for domain in phantoms[:2])
    assert set(seen) == set(range(with_masks))
    # What the score is made of is of all domains.
    others = (
        fit_sources(phantoms[:2], tiny_settings(model=head))
        .model.find_source("appearance")
        .direction
    )
    assert not torch.allclose(detector.model.find_source("appearance").direction, others)


def test_writing_back_has_no_frozen_class_tokens(phantoms, tiny_settings):
    head = {"zero_shot_score": "class_tokens", "write_back": True}
    with pytest.raises(SettingsError, match="needs side adapters"):
        fit_sources(phantoms[:2], tiny_settings(model=head))
