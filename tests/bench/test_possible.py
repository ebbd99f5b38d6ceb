"""Bounds against every ranking of small test splits, and the paper's cells that break them."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.bench.possible import (
    ap_ceiling,
    f1_ceiling_given_auroc,
    f1_floor,
    f1_floor_given_auroc,
    find_violations,
)
from recap.bench.published import PublishedCell, TestSplit, load_published
from recap.metrics import auroc, average_precision, f1_max

SIZES = [(1, 1), (1, 4), (4, 1), (2, 3), (3, 2), (3, 3)]
SLACK = 1e-12


def weak_orders(positives, negatives):
    """All rankings with ties, as lists of (positives, negatives) per level, best level first."""
    if positives == negatives == 0:
        yield []
    for hits in range(positives + 1):
        for tied in range(negatives + 1):
            if hits + tied:
                for rest in weak_orders(positives - hits, negatives - tied):
                    yield [(hits, tied), *rest]


@cache
def rankings(positives, negatives):
    """(AUROC, AP, F1-max) of every ranking."""
    rows = []
    for levels in weak_orders(positives, negatives):
        scores = [-i for i, (p, n) in enumerate(levels) for _ in range(p + n)]
        labels = [z for p, n in levels for z in [1] * p + [0] * n]
        rows.append([f(scores, labels) for f in (auroc, average_precision, f1_max)])
    return rows


def close_in_print(rows, area):
    """The rankings whose AUROC prints alike with two decimals of a per cent."""
    return [row for row in rows if abs(row[0] - area) <= 5e-5]


@pytest.mark.parametrize(("P", "N"), SIZES)
def test_no_ranking_breaks_a_bound(P, N):
    for area, ap, f1 in rankings(P, N):
        assert ap <= ap_ceiling(area, P, N) + SLACK
        assert f1 >= f1_floor_given_auroc(area, P, N) - SLACK
        assert f1 <= f1_ceiling_given_auroc(area, P, N) + SLACK


@pytest.mark.parametrize(("P", "N"), SIZES)
def test_the_floor_is_the_lowest_f1_of_all_rankings(P, N):
    assert min(f1 for _, _, f1 in rankings(P, N)) == pytest.approx(f1_floor(P, N))


@pytest.mark.parametrize(("P", "N"), SIZES)
def test_the_ap_ceiling_is_reached(P, N):
    for on_top in range(P + 1):
        area = on_top / P
        highest = max(row[1] for row in close_in_print(rankings(P, N), area))
        assert highest == pytest.approx(ap_ceiling(area, P, N))


def test_the_f1_ceiling_is_reached():
    area = 2 / 3
    highest = max(row[2] for row in close_in_print(rankings(3, 3), area))
    assert highest == pytest.approx(f1_ceiling_given_auroc(area, 3, 3))


def test_the_f1_floor_given_auroc_is_nearly_reached():
    # k follows c(P + f) as closely as whole images allow: F1 is even along the whole ranking.
    P, N, c = 2000, 400, 0.9
    above = np.minimum(P, np.floor(c * (P + np.arange(N)))).astype(int)
    steps = np.diff(above, prepend=0)
    labels = np.concatenate([[1] * step + [0] for step in steps] + [[1] * (P - above[-1])])
    scores = -np.arange(labels.size)
    floor = f1_floor_given_auroc(auroc(scores, labels), P, N)
    assert floor > f1_floor(P, N) + 0.01
    assert floor <= f1_max(scores, labels) <= floor + 1e-3


def test_without_ties_the_ap_ceiling_is_close_for_many_images():
    P, N = 3075, 640
    labels = [1] * 3001 + [0] * N + [1] * 74
    scores = -np.arange(P + N)
    area = auroc(scores, labels)
    highest = average_precision(scores, labels)
    assert area == pytest.approx(0.9759, abs=5e-5)
    assert highest <= ap_ceiling(area, P, N) <= highest + 1e-4
    assert ap_ceiling(area, P, N) == pytest.approx(0.9958, abs=1e-4)


counts = st.integers(1, 12)


@given(st.data(), counts, counts)
def test_no_random_ranking_breaks_a_bound(data, P, N):
    scores = data.draw(st.lists(st.integers(0, 6), min_size=P + N, max_size=P + N))
    labels = [1] * P + [0] * N
    area = auroc(scores, labels)
    assert average_precision(scores, labels) <= ap_ceiling(area, P, N) + SLACK
    low, high = f1_floor_given_auroc(area, P, N), f1_ceiling_given_auroc(area, P, N)
    assert low - SLACK <= f1_max(scores, labels) <= high + SLACK


@given(st.floats(0, 1), st.floats(0, 1), counts, counts)
def test_bounds_rise_with_auroc(one, other, P, N):
    low, high = sorted((one, other))
    for bound in (ap_ceiling, f1_floor_given_auroc, f1_ceiling_given_auroc):
        assert bound(low, P, N) <= bound(high, P, N) + SLACK
    assert f1_floor_given_auroc(low, P, N) <= f1_ceiling_given_auroc(low, P, N) + SLACK


def test_38_cells_of_the_paper_break_the_f1_floor_or_the_ap_ceiling():
    marked = [v for v in find_violations(load_published()) if v.mark == "†"]
    places = {(v.cell.shots, v.cell.dataset, v.cell.method) for v in marked}
    assert len(marked) == len(places) == 38
    assert Counter(v.cell.method for v in marked) == {
        "APRIL-GAN": 10, "DRA": 8, "MediCLIP": 8, "VisualAD": 5, "MadCLIP": 4, "ReCAP": 2, "MVFA": 1
    }  # fmt: skip
    assert Counter(v.kind for v in marked) == {"f1_floor": 37, "ap_ceiling": 1}


def test_recaps_own_impossible_cells():
    own = [v for v in find_violations(load_published()) if v.cell.method == "ReCAP"]
    found = [(v.cell.shots, v.cell.dataset, v.cell.metric, v.cell.value) for v in own]
    assert found == [(0, "Chest", "f1_max", 96.92), (16, "BrainMRI", "ap", 99.97)]
    assert own[0].bound == pytest.approx(97.68, abs=0.005)
    assert "97.68" in own[0].reason
    assert "16413" in own[0].reason
    assert "97.59" in own[1].reason
    assert "99.97 is printed" in own[1].reason


def test_four_more_cells_have_an_f1_too_low_for_their_auroc():
    more = [v for v in find_violations(load_published()) if v.mark == "‡"]
    assert {(v.cell.shots, v.cell.dataset, v.cell.method) for v in more} == {
        (2, "OCT17", "APRIL-GAN"),
        (16, "OCT17", "APRIL-GAN"),
        (16, "BrainMRI", "VisualAD"),
        (16, "RESC", "VisualAD"),
    }


def trio(area, f1, ap):
    printed = {"auroc": area, "f1_max": f1, "ap": ap}
    return [
        PublishedCell("zero_shot", 0, "m", "", "d", "image", metric, value)
        for metric, value in printed.items()
    ]


SPLIT = {"d": TestSplit("d", 100, 100, "made up")}  # F1 floor 66.67


@pytest.mark.parametrize(
    ("printed", "kinds"),
    [
        ((50.0, 66.67, 50.0), []),
        ((50.0, 66.66, 50.0), ["f1_floor"]),
        ((50.0, 70.0, 75.0), []),
        ((50.0, 70.0, 75.01), ["ap_ceiling"]),  # 75.0025 is the most for an AUROC of 50.005
        ((50.0, 80.0, 60.0), []),
        ((50.0, 80.01, 60.0), ["f1_ceiling_given_auroc"]),  # at most 80.0016
        ((99.99, 99.5, 100.0), []),  # 99.9975 prints as 100.00
        ((99.0, 80.0, 99.0), ["f1_floor_given_auroc"]),
        ((100.0, 100.0, 100.0), []),
        ((50.0, 60.0, 90.0), ["f1_floor", "ap_ceiling"]),
    ],
)
def test_rounding_is_allowed_for(printed, kinds):
    assert [v.kind for v in find_violations(trio(*printed), SPLIT)] == kinds


def test_unknown_splits_and_pixel_values_are_left_alone():
    assert find_violations(trio(50.0, 1.0, 99.0), {}) == []
    pixel = [PublishedCell("zero_shot", 0, "m", "", "d", "pixel", "f1_max", 1.0)]
    assert find_violations(pixel, SPLIT) == []
