import re
from functools import partial

import pytest

from recap import demo
from recap.data import write_phantoms
from recap.errors import InputError
from recap.methods.registry import resolve_settings
from recap.scoring.bundle import read_card
from scored_folders import scores_by_case


@pytest.fixture
def quick(tiny_folder, monkeypatch):
    """The demo on the tiny encoder, one epoch, nothing to fetch."""
    settings = resolve_settings(
        encoder={"name": str(tiny_folder), "input_px": 70},
        training={"epochs": 1, "augment": False},
    )
    monkeypatch.setattr(demo, "resolve_settings", lambda *args: settings)
    monkeypatch.setattr(demo, "write_phantoms", partial(write_phantoms, size_px=70))
    monkeypatch.setattr(demo, "pull", lambda name, say: say("weights", 0, 0, f"{name} is here"))


@pytest.mark.usefixtures("quick")
def test_demo_on_phantoms(command, tmp_path):
    result = command("demo", "--phantoms", "--out", tmp_path)
    assert result.code == 0
    results = tmp_path / "results" / "phantoms-1"
    assert f"Open {results}/report.html in a browser." in result.out
    assert "pixel AUROC" in result.out
    page = (results / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert not re.findall(r"https?://", page)
    assert demo.NOTES_PHANTOM[0][:40] in page
    assert demo.NOTES_REAL[0][:40] not in page
    assert "fitted on 8 phantoms, scored on others" in page
    assert "patient" not in result.err
    told = [line.split() for line in result.out.splitlines() if line.startswith("test_")]
    scores = [float(score) for *_, score in told]
    assert scores == sorted(scores, reverse=True)
    rows = scores_by_case(results)  # those of `recap score`, with what is known beside them
    assert {case.split("/")[0] for case in rows} == {"normal", "abnormal"}
    assert len(rows) == len(told) == 12
    assert sorted(f"{float(row['score']):.3f}" for row in rows.values()) == sorted(
        score for *_, score in told
    )
    assert page.count("known: abnormal") == page.count("known: normal") == 6
    assert page.count('alt="Reference outline of') == 12
    card = read_card(tmp_path / "demo.recap")
    assert [r["label"] for r in card.support] == ["normal"] * 5 + ["abnormal"] * 3


@pytest.mark.usefixtures("quick")
def test_without_a_network_the_demo_falls_back_and_says_so(command, tmp_path, monkeypatch):
    def fail(*args):
        raise InputError("no network here.")

    monkeypatch.setattr(demo, "pull_tumours", fail)
    result = command("demo", "--out", tmp_path)
    assert result.code == 0
    assert "no network here" in result.err
    assert "Falling back to phantoms" in result.err
    page = tmp_path / "results" / "phantoms-1" / "report.html"
    assert demo.NOTES_PHANTOM[0][:40] in page.read_text(encoding="utf-8")
