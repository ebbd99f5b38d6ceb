import base64
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from recap.report import Report, ReportRow, as_picture, encode_png, legend, write_report
from recap.types import Image

PNG = encode_png(as_picture(Image(np.zeros((2, 2), np.float32), "x")))
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&.png"
VOID = {"meta", "img"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and fails on tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def row(name="a.png", label="abnormal", score=0.25, truth=PNG, details=None):
    return ReportRow(name, label, score, PNG, PNG, truth, details or {})


def report(rows, **changes):
    values = {
        "title": "Brain MRI",
        "summary": [("Encoder", "tiny")],
        "table": [["Domain", "AUROC"], ["Brain", "0.934"]],
        "notes": ["One note."],
        "rows": rows,
        "legend_png": encode_png(legend((0.0, 1.0))),
    }
    return Report(**(values | changes))


@pytest.fixture
def written(tmp_path):
    def write(rows, **changes):
        path = tmp_path / "out" / "report.html"
        write_report(report(rows, **changes), path)
        assert [p.name for p in path.parent.iterdir()] == ["report.html"]
        return path.read_text(encoding="utf-8")

    return write


def test_the_page_stands_alone(written):
    text = written([row()])
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object"})
    assert not re.search(r"https?:|@import|url\(", text)
    assert all(attrs["src"].startswith("data:image/png;base64,") for attrs in page.all("img"))
    assert base64.b64encode(PNG).decode() in text


def test_the_page_is_accessible(written):
    page = Page(written([row(), row("b.png", truth=None)]))
    assert page.all("html") == [{"lang": "en"}]
    alts = [attrs["alt"] for attrs in page.all("img")]
    assert "Anomaly map of a.png" in alts
    assert len(alts) == len(set(alts)) == 1 + 3 + 2
    assert [attrs["scope"] for attrs in page.all("th")] == ["col", "col", "row"]
    assert len(page.all("h1")) == 1


def test_the_page_says_what_it_is(written):
    text = written([row()])
    assert "Research software, not a medical device." in text
    assert "fixed scale" in text
    for given in ("Brain MRI", "Encoder", "tiny", "0.934", "One note."):
        assert given in text


def test_rows_stay_in_the_given_order(written):
    text = written([row("b.png", score=0.1), row("c.png", score=0.9), row("a.png", score=0.5)])
    assert re.findall(r"<bdi>(.*?)</bdi>", text) == ["b.png", "c.png", "a.png"]


def test_hostile_text_stays_text(written):
    text = written(
        [row(HOSTILE, HOSTILE, details={HOSTILE: HOSTILE})],
        title=HOSTILE,
        summary=[(HOSTILE, HOSTILE)],
        table=[[HOSTILE, HOSTILE], [HOSTILE, HOSTILE]],
        notes=[HOSTILE],
    )
    page = Page(text)
    assert page.all("script") == []
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    assert len(page.all("img")) == 1 + 3
    assert f"Input of {HOSTILE}" in [attrs["alt"] for attrs in page.all("img")]
    places_as_text = 2 + 2 + 4 + 1 + 4
    assert "".join(page.texts).count(HOSTILE) == places_as_text


def test_a_name_that_is_not_valid_text_can_be_written(written):
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    assert "caf?.png" in written([row(name)])


@pytest.mark.parametrize(
    ("score", "number", "width"),
    [(0.25, "0.250", "25.0"), (-0.5, "-0.500", "0.0"), (1.7, "1.700", "100.0")],
)
def test_score_as_number_and_bar(written, score, number, width):
    text = written([row(score=score)])
    assert f"<strong>{number}</strong>" in text
    assert f"width:{width}%" in text


def test_a_missing_score_has_no_bar(written):
    text = written([row(score=float("nan"))])
    assert "not available" in text
    assert "<span class='bar'" not in text


def test_the_reference_label_is_shown_only_if_known(written):
    assert "<span class='chip normal'>Reference: normal</span>" in written([row(label="normal")])
    assert "Reference:" not in written([row(label=None)])


def test_empty_parts_leave_no_headings(written):
    page = Page(written([], summary=[], table=None, notes=[]))
    assert page.all("h2") == page.all("section") == []


def test_pictures_have_one_size_on_a_page(written):
    assert "cards columns-3" in written([row(), row(truth=None)])
    assert "cards columns-2" in written([row(truth=None)])


def channel(value):
    share = int(value, 16) / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def contrast(one, two):
    def luminance(colour):
        r, g, b = (channel(colour[i : i + 2]) for i in (1, 3, 5))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_has_enough_contrast(written, theme):
    style = re.search(r"<style>(.*?)</style>", written([row()]), re.DOTALL).group(1)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", style.split(":root")[1 + theme]))
    for text, ground in [
        ("text", "page"),
        ("text", "sheet"),
        ("text", "notice"),
        ("quiet", "page"),
        ("quiet", "sheet"),
        ("normal-text", "normal"),
        ("abnormal-text", "abnormal"),
    ]:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
