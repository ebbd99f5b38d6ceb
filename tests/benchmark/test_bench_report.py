import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from made_runs import made_cell, summary_row, write_cell, write_experiment, write_summary_rows
from recap.benchmark import report as module
from recap.benchmark.figures.runs import read_runs
from recap.benchmark.report import render_report, write_report
from recap.benchmark.report_facts import summary_table

pytest.importorskip("matplotlib")

STRANGE = "<img src=x onerror=alert(1)>&'\""
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Collects ids, links and sources, and checks that tags are closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.sources, self.alerts = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        self.sources += [given["src"]] if "src" in given else []
        self.alerts += [key for key in given if key.startswith("on")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    grid = {m: [made_cell(m, "Brain", 4, s) for s in (0, 1)] for m in ("recap", "nearest")}
    grid["recap"].append(made_cell("recap", "Brain", 16, 0))
    for cell in (cell for own in grid.values() for cell in own):
        write_cell(folder, cell, maps=cell.shots == 4)
    write_experiment(folder, "grid", grid)
    rows = [
        summary_row("recap", "image_auroc", experiment="components"),
        summary_row(STRANGE, "image_auroc", experiment="components", delta=0.01),
    ]
    write_summary_rows(folder, "components", rows)
    return folder


@pytest.fixture(scope="module")
def text(out):
    module.SCREEN_DPI, kept = 40, module.SCREEN_DPI
    yield render_report(out)
    module.SCREEN_DPI = kept


@pytest.fixture(scope="module")
def page(text):
    parsed = Page()
    parsed.feed(text)
    assert parsed.open == []
    return parsed


def test_the_page_stands_alone(text, page):
    assert "default-src 'none'; img-src data:" in text
    assert page.sources
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"url\(|@import|<script|<link", text)


def test_the_contents_lead_to_what_is_there(page):
    assert len(page.ids) == len(set(page.ids))
    targets = [link.removeprefix("#") for link in page.links]
    assert set(targets) <= set(page.ids)
    for key in ("summary", "what-was-run", "caveats", "few-shot-4", "scores-recap", "published"):
        assert key in targets


def test_names_cannot_become_markup(text, page):
    assert STRANGE not in text
    assert page.alerts == []
    assert "&lt;img src=x" in text


def test_it_says_what_was_run(text):
    for words in ("recap-ad 0.1.0", "torch 2.13.0", "dinov2-small", "training.epochs", "0, 1"):
        assert words in text, words
    assert "Research software, not a medical device" in text
    assert "BrainMRI: In the published support lists, 8 of the 24 abnormal files" in text


def test_the_summary_says_which_results_are_on_other_images(tmp_path):
    grid = {m: [made_cell(m, "Brain", 4, 0)] for m in ("recap", "nearest")}
    for method, images in (("recap", 40), ("nearest", 30)):
        write_cell(tmp_path, grid[method][0], images, maps=False)
    write_experiment(tmp_path, "grid", grid)
    told = [note.text for note in summary_table(read_runs(tmp_path)).title.notes]
    said = (
        "BrainMRI K = 4 (ReCAP on 20 abnormal and 20 normal; nearest on 15 abnormal and 15 normal)"
    )
    assert any(said in text for text in told)


def test_the_summary_is_the_mean_over_seeds(out):
    runs = read_runs(out)
    table = summary_table(runs)
    told = [note.text for note in table.title.notes]
    assert told[0] == "Ours: encoder dinov2-small at 240 px, preset recap."
    assert told[1].startswith("BrainMRI: In the published benchmark, supports and test images")
    assert [[label.text for label in row.labels] for row in table.rows] == [
        ["K = 4", "ReCAP"],
        ["K = 4", "nearest"],
        ["K = 16", "ReCAP"],
    ]
    own = [r.metrics["image_auroc"] for r in runs if (r.method, r.shots) == ("recap", 4)]
    cell = table.rows[0].cells[0].ours
    assert cell.value == pytest.approx(50 * sum(own))
    assert cell.seeds == 2
    assert table.rows[2].cells[0].ours.std is None


def test_results_on_pools_are_no_study_and_no_test_images(tmp_path, monkeypatch):
    grid = made_cell("recap", "Brain", 4, 0)
    pool, swept = (replace(grid, on="pool", dataset=name) for name in ("Knee", "Brain"))
    for cell, images in ((grid, 40), (pool, 20), (swept, 20)):
        write_cell(tmp_path, cell, images, maps=False)
    for name, cell in (("grid", grid), ("pool", pool), ("sweep-eta", swept)):
        write_experiment(tmp_path, name, {"recap": [cell]})
    monkeypatch.setattr(module, "_figures", lambda *_: [])
    text = render_report(tmp_path)
    assert "sweep-eta (1 variants)" in text
    assert "pool (1 variants)" not in text
    assert "<th scope='row'>BrainMRI</th><td>20</td><td>20</td>" in text
    assert "Knee" not in text


def test_a_study_alone_has_a_page(tmp_path):
    cell = made_cell("recap", "Brain", 4, 0)
    write_cell(tmp_path, cell, maps=False)
    write_experiment(tmp_path, "sweep-eta", {"0.05": [cell]})
    steps = []
    write_report(tmp_path, tmp_path / "report.html", lambda *step: steps.append(step))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "sweep-eta (1 variants)" in text
    assert "Score distributions: no finished cells." in text
    assert steps == []
