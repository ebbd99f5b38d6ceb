"""The shipped numbers: all there, plausible, and equal to values read off the paper."""

from collections import Counter

import pytest

from recap.bench.possible import find_violations
from recap.bench.published import (
    CAVEATS,
    DATASETS,
    TestSplit,
    caveats_for,
    load_published,
    load_splits,
    split_note,
)

MASKED = {"BrainMRI", "LiverCT", "RESC"}
METHODS = {"DRA", "APRIL-GAN", "MediCLIP", "MVFA", "MadCLIP", "VisualAD", "ReCAP"}


def value(table, shots, method, dataset, level, metric, backbone=""):
    found = [
        cell.value
        for cell in load_published()
        if (cell.table, cell.shots, cell.method, cell.dataset, cell.level, cell.metric)
        == (table, shots, method, dataset, level, metric)
        and backbone in ("", cell.backbone)
    ]
    assert len(found) == 1
    return found[0]


def test_every_table_is_complete():
    assert Counter(cell.table for cell in load_published()) == {
        "zero_shot": 6 * (6 * 3 + 3 * 3),
        "few_shot": 4 * 7 * (6 * 3 + 3 * 3),
        "seeds": 4 * 7 * 9,
        "components": 4 * 4,
        "conditioning": 5 * 8,
        "backbones": 4 * 2 * 2,
        "efficiency": 10 * 3,
    }


def test_no_number_stands_twice():
    places = Counter(
        (c.table, c.shots, c.method, c.backbone, c.dataset, c.level, c.metric)
        for c in load_published()
    )
    assert set(places.values()) == {1}


def test_numbers_and_names_are_plausible():
    for cell in load_published():
        if cell.table == "efficiency":
            assert cell.value > 0
            continue
        assert 0 < cell.value <= 100
        assert cell.dataset in DATASETS
        assert cell.level == "image" or cell.dataset in MASKED
        assert (cell.std is not None) == (cell.table == "seeds")
        if cell.table in ("zero_shot", "few_shot", "seeds"):
            assert cell.method in METHODS


@pytest.mark.parametrize(
    ("place", "printed"),
    [
        (("zero_shot", 0, "ReCAP", "Chest", "image", "f1_max"), 96.92),
        (("few_shot", 2, "DRA", "HIS", "image", "ap"), 73.20),
        (("few_shot", 16, "ReCAP", "BrainMRI", "image", "auroc"), 97.59),
        (("seeds", 8, "MVFA", "LiverCT", "pixel", "auroc"), 94.72),
        (("components", 4, "w/o CCM", "LiverCT", "image", "auroc"), 85.96),
        (("conditioning", 4, "Static prototypes", "LiverCT", "image", "auroc"), 80.71),
        (("backbones", 2, "ReCAP", "LiverCT", "image", "auroc", "DINOv2 ViT-B/14"), 87.46),
        (("efficiency", 0, "VisualAD", "", "", "latency_ms"), 66.1),
        (("efficiency", 4, "MadCLIP", "", "", "added_params_m"), 92.3),
    ],
)
def test_values_read_off_the_paper(place, printed):
    assert value(*place) == printed


@pytest.mark.parametrize(
    ("dataset", "total"),
    [
        ("BrainMRI", 3715),
        ("LiverCT", 1493),
        ("RESC", 1805),
        ("OCT17", 968),
        ("Chest", 17194),
        ("HIS", 2000),
    ],
)
def test_splits_add_up_to_the_papers_test_images(dataset, total):
    split = load_splits()[dataset]
    assert split.abnormal + split.normal == total
    assert split.source


def test_the_caveats_say_what_the_data_says():
    text = {caveat.key: caveat.text for caveat in CAVEATS}
    assert len(text) == len(CAVEATS)
    broken = find_violations(load_published())
    marks = Counter(violation.mark for violation in broken)
    entries = {
        (c.shots, c.method, c.dataset)
        for c in load_published()
        if c.table in ("zero_shot", "few_shot") and c.metric in ("f1_max", "ap")
    }
    target = text["auroc-is-the-target"]
    assert target.startswith(f"{len(broken)} of the paper's {len(entries)} image-level entries")
    assert f"{marks['†']} are below the floor of F1-max or above the ceiling of AP (†)" in target
    assert f"{marks['‡']} more below the floor of F1-max given the AUROC (‡)" in target
    assert f"Two of the {len(broken)} are ReCAP's own" in target
    own = [
        (v.cell.shots, v.cell.dataset, v.cell.metric) for v in broken if v.cell.method == "ReCAP"
    ]
    assert own == [(0, "Chest", "f1_max"), (16, "BrainMRI", "ap")]
    for printed in ("85.96", "80.71"):
        assert printed in text["one-model-two-numbers"]


def keys(*args, **kwargs):
    return [note.key for note in caveats_for(*args, **kwargs)]


def test_caveats_find_their_place():
    assert keys("few_shot", "dataset", "BrainMRI", shots=4) == ["shared-patients", "same-files"]
    assert keys("few_shot", "dataset", "RESC", shots=4) == ["shared-patients"]
    assert keys("few_shot", "dataset", "HIS", shots=4) == []
    assert keys("conditioning", "dataset", "RESC", shots=0) == []
    assert keys("zero_shot", "dataset", "RESC", shots=0) == []
    assert keys("zero_shot", "table") == ["auroc-is-the-target"]
    assert keys("components", "row", "w/o CCM") == ["one-model-two-numbers"]
    assert keys("efficiency", "row", "VisualAD") == ["visualad-input-size"]
    assert keys("few_shot", "row", "VisualAD") == []


def test_a_test_split_of_another_size_is_said():
    paper = TestSplit("HIS", 1000, 1000, "half of each class")
    assert split_note("HIS", [(1000, 1000)], paper) == ()
    assert split_note("HIS", [], paper) == ()
    assert split_note("Other", [(3, 4)], None) == ()
    (note,) = split_note("HIS", [(60, 40), (60, 40), (1000, 1000)], paper)
    assert note.key == "own-split-HIS"
    assert "60 abnormal and 40 normal" in note.text
    assert "1000 and 1000 (half of each class). They describe" in note.text


def test_counts_that_are_inferred_are_said_to_be():
    inferred = {"Chest": "inferred", "HIS": "taken as half of each class"}
    assert all(words in load_splits()[name].source for name, words in inferred.items())
    (bounds,) = [caveat for caveat in CAVEATS if caveat.key == "auroc-is-the-target"]
    assert "The class counts of Chest and HIS, on which the bounds depend, are inferred" in (
        bounds.text
    )
