import json
from statistics import fmean, stdev

import numpy as np
import pytest

from recap.bench.compare import compare, study_tables, summarise, write_summary
from recap.bench.kept import write_result
from recap.bench.render import render
from recap.bench.results import register
from recap.bench.studies import plan_study
from recap.errors import InputError
from recap.methods.registry import resolve_settings
from recap.metrics import auroc
from recap.metrics.bootstrap import paired_bootstrap

N = 40


def rows(rng, strength, patients=False):
    abnormal = np.arange(N) % 2 == 1
    scores = strength * abnormal + rng.normal(size=N)
    return [
        {
            "file": f"{i}.png",
            "abnormal": bool(abnormal[i]),
            "patient": f"p{i // 4}" if patients else None,
            "score": float(scores[i]),
        }
        for i in range(N)
    ]


def fake_result(images, pixel=None):
    scores, labels = ([row[key] for row in images] for key in ("score", "abnormal"))
    metrics = {"image_auroc": auroc(scores, labels)}
    if pixel is not None:
        metrics["pixel_auroc"] = pixel
    return {"metrics": metrics, "images": images}


def run(images, seed=0):
    cell = {"method": "recap", "dataset": "Brain", "shots": 4, "settings": {"seed": seed}}
    return {"cell": cell, **fake_result(images)}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """η = 0.1 is far better than the default, 0.2 the same; Chest has no masks."""
    folder = tmp_path_factory.mktemp("runs")
    values = ["0.1", "0.2", "0.01"]
    study = plan_study(
        "sweep-eta", resolve_settings(), ["Chest", "Brain"], [4], [0, 1, 2], values=values
    )
    register(folder, study.name, study.variants, study.base)
    for label, cells in study.variants.items():
        for cell in cells:
            seed = cell.settings.seed
            if label == "0.01" and (seed > 0 or cell.dataset == "Chest"):
                continue  # not finished
            rng = np.random.default_rng(seed)
            pixel = None if cell.dataset == "Chest" else 0.9 + 0.01 * seed + float(label) / 10
            images = rows(rng, 2.5 if label == "0.1" else 0.5)
            write_result(folder, cell, fake_result(images, pixel))
    return folder


def test_each_variant_has_its_mean_and_its_difference(out):
    summary = summarise(out, "sweep-eta")
    found = [(r["dataset"], r["metric"], r["value"]) for r in summary]
    assert found == [
        *(("Brain", metric, value) for metric in ("image_auroc", "pixel_auroc")
          for value in (0.01, 0.05, 0.1, 0.2)),
        *(("Chest", "image_auroc", value) for value in (0.05, 0.1, 0.2)),
    ]  # fmt: skip
    by_place = dict(zip(found, summary, strict=True))
    better = by_place["Brain", "image_auroc", 0.1]
    own, ref = (
        [fake_result(rows(np.random.default_rng(s), x))["metrics"]["image_auroc"] for s in range(3)]
        for x in (2.5, 0.5)
    )
    assert better["mean"] == pytest.approx(fmean(own))
    assert better["std"] == pytest.approx(stdev(own))
    assert better["delta"] == pytest.approx(fmean(own) - fmean(ref))
    assert 0 < better["delta_low"] < better["delta"] < better["delta_high"]
    assert (better["seeds"], better["shots"], better["experiment"]) == (3, 4, "sweep-eta")
    same = by_place["Brain", "image_auroc", 0.2]
    assert (same["delta"], same["delta_low"], same["delta_high"]) == (0, 0, 0)
    reference = by_place["Brain", "image_auroc", 0.05]
    assert [reference[k] for k in ("delta", "delta_low", "delta_high", "delta_std")] == [None] * 4
    single = by_place["Brain", "image_auroc", 0.01]
    assert (single["seeds"], single["std"], single["delta"]) == (1, None, 0)
    pixel = by_place["Brain", "pixel_auroc", 0.2]
    assert pixel["delta"] == pytest.approx(0.015)
    assert pixel["delta_std"] == pytest.approx(0, abs=1e-12)
    assert (pixel["delta_low"], pixel["delta_high"]) == (None, None)
    assert {row["reference"] for row in summary} == {"0.05"}


def test_the_summary_is_kept(out):
    kept = write_summary(out, "sweep-eta")
    text = (out / "experiments" / "sweep-eta-summary.json").read_text()
    assert json.loads(text) == kept == summarise(out, "sweep-eta")


@pytest.mark.parametrize("patients", [False, True])
def test_one_seed_is_the_plain_paired_bootstrap(patients):
    rng = np.random.default_rng(5)
    mine, theirs = rows(rng, 1.5, patients), rows(rng, 0.5, patients)
    scores = [[row["score"] for row in side] for side in (mine, theirs)]
    groups = [row["patient"] for row in mine]
    expected = paired_bootstrap(auroc, *scores, [row["abnormal"] for row in mine], groups)
    found = compare([(run(mine), run(theirs))])
    assert found is not None
    for name in ("difference", "low", "high", "p_value"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-12)


def test_seeds_are_averaged_on_each_resample():
    """Differences of two seeds that cancel do so on each resample, so the interval is nothing."""
    rng = np.random.default_rng(6)
    mine, theirs = rows(rng, 1.5), rows(rng, 0.5)
    pairs = [(run(mine), run(theirs)), (run(theirs, 1), run(mine, 1))]
    found = compare(pairs)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0, 0), abs=1e-12)
    one = compare(pairs[:1])
    assert one is not None
    assert one.high - one.low > 0.05


def test_no_interval_where_nothing_can_be_resampled():
    images = rows(np.random.default_rng(0), 1.0)
    for row in images:
        row["patient"] = "one"
    assert compare([(run(images), run(images))]) is None


def test_draws_that_leave_other_images_have_no_interval():
    images = rows(np.random.default_rng(0), 1.0)
    assert compare([(run(images), run(images)), (run(images[2:], 3), run(images[2:], 3))]) is None


def test_runs_on_other_images_are_refused():
    images = rows(np.random.default_rng(0), 1.0)
    with pytest.raises(InputError, match="Brain, 4 shots, seed 3 are on different images"):
        compare([(run(images), run(images)), (run(images, 3), run(images[2:], 3))])


def test_a_study_that_was_never_begun_is_told(out):
    with pytest.raises(InputError, match=r"conditioning\.json: there is no such study"):
        summarise(out, "conditioning")


def test_the_tables_say_how_sure_a_difference_is(out):
    tables = study_tables(summarise(out, "sweep-eta"))
    assert [table.title.text for table in tables] == [
        "Strength of the conditioning η: Brain, 4-shot, image AUROC (%)",
        "Strength of the conditioning η: Brain, 4-shot, pixel AUROC (%)",
        "Strength of the conditioning η: Chest, 4-shot, image AUROC (%)",
    ]
    image, pixel, _ = tables
    assert [row.labels[0].text for row in image.rows] == ["0.01", "0.05", "0.1", "0.2"]
    ranks = [row.cells[0].ours.rank for row in image.rows]
    assert ranks[2] == "best"
    assert all(cell.ours is None for cell in image.rows[1].cells[1:])
    assert pixel.rows[3].cells[1].ours.value == pytest.approx(1.5)
    text = render(tables, "md")
    assert "| Variant | AUROC | Difference to 0.05<sup>2</sup> | 95 % interval from |" in text
    assert "Paired bootstrap over the images" in text
