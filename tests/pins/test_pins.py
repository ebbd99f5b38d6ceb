"""Detectors of every kind say what they have always said, on every kind of file.

Recorded are scores, maps (their blocks and range), regions, tables and cards. They are the same to
about 4e-6 with and without AVX2 and AVX-512; whether two trees give the same bits on one machine,
`compare.py` says. A difference that is meant is recorded by `record.py`.
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compare import differences
from pin_inputs import write_inputs
from pin_run import make, run
from record import TOPICS, portable, recorded

import recap

TOLERANCE = 2e-5
MADE = "made"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pins")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def notes(work: Path) -> dict[str, Any]:
    return portable(make(work, MADE))


@pytest.mark.parametrize("topic", TOPICS)
def test_all_is_as_recorded(notes: dict[str, Any], topic: str) -> None:
    found = list(differences(recorded()[topic], notes[topic], TOLERANCE))
    shown = [f"{'/'.join(place)}: {then} -> {now}" for place, then, now, _ in found]
    assert not found, "\n".join([f"{len(found)} values differ", *shown[:20]])


def test_scores_differ_between_kinds_and_cases(notes: dict[str, Any]) -> None:
    """Were many 0 or 1, pins would hold little."""
    scores = {
        (kind, name): float(case["score"])
        for kind, cases in notes["scores"].items()
        for name, case in cases.items()
        if kind != "calibrated"
    }
    assert len({round(score, 5) for score in scores.values()}) > 0.98 * len(scores)
    assert {case["kind"] for case in notes["scores"]["masks"].values()} == {
        *("image", "frames", "volume", "slide")
    }


@pytest.mark.usefixtures("notes")
@pytest.mark.parametrize("kind", ["masks", "labels", "others", "paper", "mvfa"])
def test_functions_give_the_bits_of_commands_on_one_and_two_threads(
    work: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    out = Path(MADE, "results", kind)
    with (out / "scores.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    detector = recap.load(Path(MADE, "bundles", kind))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for name in ("colour.png", "lesion.png"):
                said = detector.score(Path("cases", name))
                assert f"{said.score:.8g}" == rows[name]["score"]
                assert said.map.tobytes() == np.load(out / rows[name]["map"]).tobytes()
    finally:
        torch.set_num_threads(before)
    frames = detector.score_case("cases/frames.dcm")
    assert f"{frames.score:.8g}" == rows["frames.dcm"]["score"]
    assert frames.map.tobytes() == np.load(out / rows["frames.dcm"]["map"]).tobytes()


@pytest.mark.usefixtures("notes")
def test_one_detector_alone_gives_the_bits_of_many_whatever_runs_side_by_side(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    for side_by_side in ("1", "3"):
        out = f"alone-{side_by_side}"
        how = ("--batch", side_by_side, "--workers", side_by_side)
        run("score", f"{MADE}/bundles/labels", "cases", "--out", out, *how)
        for made in sorted(Path(out, "maps").rglob("*.npy")):
            among_many = Path(MADE, "results", "labels", made.relative_to(out))
            assert made.read_bytes() == among_many.read_bytes()
        table = Path(out, "scores.csv").read_bytes()
        assert table == Path(MADE, "results", "labels", "scores.csv").read_bytes()
