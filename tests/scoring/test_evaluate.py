import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import sklearn.metrics
from PIL import Image as PillowImage

from recap.data.benchmark import read_domain
from recap.data.supports import read_exclusions
from recap.errors import InputError
from recap.io import read_mask
from recap.metrics import PixelMetrics
from recap.scoring.evaluate import evaluate, measure


@pytest.fixture
def copy_of(tmp_path):
    def copy(domain):
        shutil.copytree(domain.root, tmp_path / domain.root.name)
        return read_domain(tmp_path / domain.root.name)

    return copy


def at_240(array, how):
    picture = PillowImage.fromarray(array)
    return np.array(picture.resize((240, 240), PillowImage.Resampling[how]))


@pytest.mark.parametrize("kind", ["few-shot", "zero-shot"])
def test_numbers_are_those_of_scikit_learn(kind, detectors, domains):
    """Images have the input's size here; Pillow brings their maps to the 240 px of metrics."""
    detector, samples = detectors[kind], domains[0].test()
    result = evaluate(detector, domains[0])
    predictions = [detector.score(sample.path) for sample in samples]
    scores = np.array([p.score for p in predictions], np.float32)
    labels = np.array([sample.abnormal for sample in samples])
    assert result["image"]["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores))
    ap = sklearn.metrics.average_precision_score(labels, scores)
    assert result["image"]["ap"] == pytest.approx(ap)
    f1 = max(sklearn.metrics.f1_score(labels, scores >= t) for t in scores)
    assert result["image"]["f1_max"] == pytest.approx(f1)
    maps = np.stack([at_240(p.map.astype(np.float32), "BILINEAR") for p in predictions])
    masks = np.stack([np.zeros((240, 240), bool) if s.mask is None
                      else at_240(read_mask(s.mask).astype(np.uint8), "NEAREST") > 0
                      for s in samples])  # fmt: skip
    expected = sklearn.metrics.roc_auc_score(masks.ravel(), maps.ravel())
    assert result["pixel"]["auroc"] == pytest.approx(expected, abs=1e-5)
    assert set(result["pixel"]) == {"auroc", "f1_max", "ap", "pro", "aupro_0.3"}


def test_what_is_reported_beside_the_numbers(few_shot, domains):
    result = evaluate(few_shot, domains[0])
    assert result["domain"] == "Brain"
    assert result["images"] == {"normal": 3, "abnormal": 3}
    assert result["support_images_in_test"] == 0
    assert result["mode"] == "few-shot"
    assert result["fingerprint"] == few_shot.card.fingerprint


def test_where_a_detector_is_not_zero_shot_is_reported(detectors, few_shot, domains):
    from recap.cli.evaluate import _warnings

    elsewhere, at_home = (evaluate(detectors["zero-shot"], domain) for domain in domains)
    assert (elsewhere["domain_is_a_source"], at_home["domain_is_a_source"]) == (False, True)
    assert any("here it is not zero-shot" in line for line in _warnings(at_home))
    assert list(_warnings(elsewhere)) == []
    assert not evaluate(few_shot, domains[0])["domain_is_a_source"]


def test_how_far_pixel_numbers_can_be_off_is_reported(few_shot, domains, monkeypatch):
    exact = evaluate(few_shot, domains[0])
    assert exact["pixel_error_bound"] == 0
    little = partial(PixelMetrics, memory_bytes=1 << 16)
    monkeypatch.setattr("recap.scoring.evaluate.PixelMetrics", little)
    rough = evaluate(few_shot, domains[0])
    assert 0 < rough["pixel_error_bound"] < 0.1
    off = abs(rough["pixel"]["auroc"] - exact["pixel"]["auroc"])
    assert 0 < off <= rough["pixel_error_bound"]


def test_no_masks_no_pixel_numbers(few_shot, domains):
    result = evaluate(few_shot, domains[1])
    assert result["pixel"] is None
    assert result["pixel_error_bound"] is None
    assert {"auroc", "f1_max", "ap", "fpr_at_95_tpr"} < set(result["image"])


def test_its_own_support_in_the_test_split_is_counted(few_shot, domains, copy_of):
    domain = copy_of(domains[0])
    pool = [sample.path for sample in domain.pool()]
    for label, source in (("good", pool[0]), ("good", pool[1]), ("Ungood", pool[-1])):
        target = sorted((domain.root / "test" / label / "img").iterdir())
        shutil.copy(source, target[0] if source != pool[1] else target[1])
    assert evaluate(few_shot, domain)["support_images_in_test"] == 3


def test_masks_of_larger_images_are_compared_at_the_input_size(few_shot, domains, copy_of):
    domain = copy_of(domains[0])
    for path in (domain.root / "test").rglob("*.png"):
        image = PillowImage.open(path)
        image.resize((140, 210), PillowImage.Resampling.NEAREST).save(path)
    larger, same = evaluate(few_shot, domain), evaluate(few_shot, domains[0])
    assert larger["pixel"]["auroc"] == pytest.approx(same["pixel"]["auroc"], abs=0.05)


def test_a_mask_of_another_size_is_named(few_shot, domains, copy_of):
    domain = copy_of(domains[0])
    mask = next((domain.root / "test" / "Ungood" / "anomaly_mask").iterdir())
    PillowImage.new("L", (35, 70), 255).save(mask)
    with pytest.raises(InputError, match=f"{mask.name}: the mask is 35×70 pixels but"):
        evaluate(few_shot, domain)


def test_progress_goes_to_the_end(few_shot, domains):
    steps = []
    evaluate(few_shot, domains[1], lambda *step: steps.append(step))
    assert steps == [("score", i, 6, "") for i in range(7)]


def test_excluded_images_are_left_out_and_counted(few_shot, domains, copy_of, tmp_path):
    domain = copy_of(domains[0])
    file = tmp_path / "exclude.txt"
    file.write_text("# reason\nBrain_AD/test/Ungood/img/test_001.png\n")
    exclusions = read_exclusions(file)
    without = evaluate(few_shot, domain, exclude=exclusions)
    for kind in ("img", "anomaly_mask"):
        (domain.root / "test" / "Ungood" / kind / "test_001.png").unlink()
    removed = evaluate(few_shot, domain)
    assert without.pop("excluded") == {
        "images": 1,
        "of": 6,
        "list": "exclude.txt",
        "sha256": exclusions.sha256,
        "unmatched": [],
    }
    assert removed.pop("excluded") is None
    assert without == removed


def test_abnormal_images_without_a_mask_are_not_taken_for_healthy(few_shot, domains):
    """Reference: the same images without those, which pixel metrics must not see."""
    samples = domains[0].test()
    ill = [sample for sample in samples if sample.abnormal]
    healthy = [sample for sample in samples if not sample.abnormal]
    unmarked = [replace(sample, mask=None) for sample in ill[1:]]
    some, fewer = (measure(few_shot, [*healthy, ill[0], *further]) for further in (unmarked, []))
    assert (some.without_mask, fewer.without_mask) == (2, 0)
    assert some.counts == {"normal": 3, "abnormal": 3}
    assert some.pixel == fewer.pixel
