import base64
import hashlib
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from recap.errors import InputError
from recap.report import overlay, page
from recap.report.overlay import MAX_OPACITY, map_layer
from recap.report.page import write_score_page
from recap.report.page_table import aligned, bin_edges, histogram, ticks
from recap.report.previews import ScoredFolder
from recap.results.table import read_rows
from recap.types import Image
from scored_folders import (
    MANIFEST,
    Page,
    failed,
    picture_png,
    region,
    row,
    write_folder,
    write_preview,
    write_regions,
)

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&.png"


@pytest.fixture
def folder(tmp_path):
    """Three cases: one with everything, one with an overlay only, one that failed."""
    path = tmp_path / "out"
    write_preview(path, "a.png")
    columns = write_regions(path, "a.png", [region(), region()])
    (path / "overlays").mkdir()
    (path / "overlays/b.png.png").write_bytes(picture_png(0.1))
    rows = [
        row("a.png", 0.9, **columns),
        row("b.png", 0.2, overlay="overlays/b.png.png"),
        failed("c.png", "c.png: not an image"),
    ]
    return write_folder(path, rows)


def render(folder):
    return write_score_page(folder).read_text(encoding="utf-8")


def test_the_page_stands_alone(folder):
    text = render(folder)
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "form", "base"})
    assert not re.search(r"https?:|@import|url\(", text)
    assert all(attrs["src"].startswith("data:image/png;base64,") for attrs in page.all("img"))
    assert not any(key == "style" or key.startswith("on") for _, a in page.tags for key in a)


def test_the_policy_allows_this_script_and_style_alone(folder):
    text = render(folder)
    policy = next(a["content"] for a in Page(text).all("meta") if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_page_says_what_was_found(folder):
    text = render(folder)
    for said in (
        "Scores of 3 cases",
        "Research software, not a medical device.",
        "1 abnormal, 1 normal, 1 failed",
        "1 case could not be scored",
        "c.png: not an image",
        "abnormal from 0.5 up",
        "At most 5 %.",
        "2027-01-15 08:00 UTC",
        "abcdef012345",
    ):
        assert said in text, said
    assert "&quot;fingerprint&quot;: &quot;abcdef0123456789&quot;" in text


def test_the_explanation_is_told(folder):
    text = render(folder)
    assert "peak, 0.5, is at x 7, y 5" in text
    assert "normal-3.png</bdi> at x 4, y 2" in text
    assert "distance 0.8 in layer 2" in text
    # (0.9 + 0.5) of (0.9 + 0.5 + 0.2 + 0.4)
    assert "Value at the peak 0.5: prototypes 70 %, memory 30 %" in text
    bars = re.findall(r"<svg class='parts'.*?</svg>", text)
    widths = [sum(map(float, re.findall(r"width='([\d.]+)'", bar))) for bar in bars]
    assert widths == pytest.approx([100, 100], abs=0.05)


def test_regions_are_listed_and_drawn(folder):
    text = render(folder)
    assert text.count("<g class='region'") == 2
    assert "<rect x='2' y='3' width='3' height='2'/>" in text
    assert "<td>3, 4</td>" in text  # the centre


def test_regions_of_other_slices_are_listed_but_not_drawn(tmp_path):
    write_preview(tmp_path, "v.nii", image=4, images=9)
    columns = write_regions(tmp_path, "v.nii", [region(image=4, area_mm2=12.5), region(image=7)])
    cases = [row("v.nii", kind="volume", images="9", **columns)]
    text = render(write_folder(tmp_path, cases))
    assert "Slice 5 of 9: the highest score" in text
    assert "<td>5</td><td>12.5</td>" in text
    assert "<td>8</td>" in text
    assert text.count("<g class='region'") == 1
    assert "Score of this image" in text


@pytest.mark.parametrize(
    ("area_mm2", "shown"),
    [(0.5, "0.5"), (12.34, "12.3"), (999.4, "999"), (999.7, "1,000"), (1078.25, "1,078")],
)
def test_areas_are_written_out(area_mm2, shown, tmp_path):
    write_preview(tmp_path, "a.png")
    columns = write_regions(tmp_path, "a.png", [region(area_mm2=area_mm2)])
    assert f"<td>{shown}</td>" in render(write_folder(tmp_path, [row("a.png", **columns)]))


def test_an_overlay_serves_where_there_is_no_preview(folder):
    text = render(folder)
    assert base64.b64encode(picture_png(0.1)).decode() in text
    assert "cannot be faded" in text


def test_a_preview_of_another_file_is_not_shown(folder):
    why = folder / "why/a.png.json"
    why.write_text(json.dumps({**json.loads(why.read_text()), "sha256": "of another file"}))
    assert "Why here" not in render(folder)


@pytest.mark.parametrize("change", [{"map_parts": 7}, {"nearest": [1]}, {"xy_px": "no"}])
def test_a_damaged_explanation_is_told(change, folder):
    why = folder / "why/a.png.json"
    why.write_text(json.dumps({**json.loads(why.read_text()), **change}))
    assert "explanation of this case is damaged" in render(folder)


def test_damaged_regions_are_left_out(folder):
    with (folder / "regions/a.png.csv").open("a") as file:
        file.write("3,what,is,this\n")
    assert render(folder).count("<g class='region'") == 2


def test_every_picture_says_what_it_is(folder):
    alts = [attrs["alt"] for attrs in Page(render(folder)).all("img")]
    assert "Picture of a.png" in alts
    assert "Map of a.png" in alts
    assert "Overlay of b.png" in alts
    assert len(set(alts)) == len(alts)


def test_hostile_text_stays_text(tmp_path):
    name = HOSTILE.replace("/", "∕")
    write_preview(tmp_path, name, note=HOSTILE)
    rows = [row(name), failed("x", HOSTILE), row("y", decision="", rule=HOSTILE)]
    bundle = {**MANIFEST["bundle"], "statement": HOSTILE}
    decided = {**MANIFEST["decisions"], "rule": HOSTILE, "guarantee": HOSTILE}
    page = Page(render(write_folder(tmp_path, rows, bundle=bundle, decisions=decided)))
    assert len(page.all("script")) == 1
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    assert "".join(page.texts).count(HOSTILE) >= 6


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_names_that_a_spreadsheet_would_run_are_kept_from_it(start, tmp_path):
    name = f"{start}cmd.png"
    folder = write_folder(tmp_path, [row(name), row("=b.png")])
    assert f"<bdi>&#x27;{name}</bdi>" in render(folder)
    assert read_rows(folder / "scores.csv")[0].case == name  # where files are found by it


def test_a_name_that_is_not_valid_text_can_be_written(tmp_path):
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    assert "caf?.png" in render(write_folder(tmp_path, [row(name)]))


def test_failures_come_first_then_the_highest_scores(tmp_path):
    rows = [row("low", 0.1), failed("bad"), row("high", 0.9), row("middle", 0.5)]
    text = render(write_folder(tmp_path, rows))
    assert re.findall(r"<th scope='row'><bdi>(.*?)</bdi>", text) == ["bad", "high", "middle", "low"]


def test_pictures_are_bounded(tmp_path, monkeypatch):
    for name in "abc":
        write_preview(tmp_path, name)
    folder = write_folder(tmp_path, [row("a", 0.3), row("b", 0.9), row("c", 0.6)])
    scored = ScoredFolder(folder)
    one = scored.preview(scored.rows[0]).size
    monkeypatch.setattr(page, "MAX_PICTURE_BYTES", 2 * one)
    text = render(folder)
    assert "The 2 highest scores are shown; the table has 1 more case." in text
    assert re.findall(r"<h3><bdi>(.*?)</bdi>", text) == ["b", "c"]


def test_files_elsewhere_are_not_shown(tmp_path):
    (tmp_path / "secret.png").write_bytes(picture_png(0.9))
    folder = write_folder(tmp_path / "out", [row("a", overlay="../secret.png")])
    assert base64.b64encode(picture_png(0.9)).decode() not in render(folder)


def test_an_interrupted_run_says_so(tmp_path):
    assert "interrupted" in render(write_folder(tmp_path, [row("a")], status="running"))


def test_a_detector_without_calibration(tmp_path):
    folder = write_folder(
        tmp_path, [row("a", decision="", p_value="", rule="no decision: x")], decisions=None
    )
    text = render(folder)
    assert "no decision: x" in text
    assert "1 not decided" in text
    assert "class='threshold'" not in text


def test_no_cases_at_all(tmp_path):
    Page(render(write_folder(tmp_path, [])))


@pytest.mark.parametrize("missing", ["scores.csv", "manifest.json"])
def test_a_folder_without_results_is_an_error(missing, folder):
    (folder / missing).unlink()
    with pytest.raises(InputError, match="holds no results"):
        write_score_page(folder)


def test_damage_is_an_error(folder):
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        write_score_page(folder)
    write_folder(folder, [row("a", p_value="lots")])
    with pytest.raises(InputError, match="row of 'a' is damaged"):
        write_score_page(folder)


values = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60)


@given(values, st.one_of(st.none(), st.floats(0, 1, width=32)))
def test_bins_hold_all_scores_and_respect_the_threshold(scores, threshold):
    edges = np.array(bin_edges(scores, threshold))
    assert edges[0] <= min(scores) + 1e-12
    assert edges[-1] > max(scores) - 1e-9
    assert np.allclose(np.diff(edges), edges[1] - edges[0])
    if threshold is not None and min(scores) < threshold <= max(scores):
        assert np.abs(edges - threshold).min() <= 1e-6 * (edges[1] - edges[0]) + 1e-12


def test_bars_count_the_cases():
    rng = np.random.default_rng(0)
    scores = rng.random(200)
    text = histogram([row(f"{i}", s) for i, s in enumerate(scores)], 0.5)
    bars = re.findall(r"<title>([\d.e-]+) to ([\d.e-]+): (\d+) (\w+)</title>", text)
    for word, above in (("abnormal", True), ("normal", False)):
        chosen = [bar for bar in bars if bar[3] == word]
        assert sum(int(count) for *_, count, _ in chosen) == np.sum((scores >= 0.5) == above)
        for low, high, count, _ in chosen:
            inside = np.histogram(scores, [float(low), float(high)])[0][0]
            assert abs(int(count) - inside) <= 2  # the titles are rounded
    assert "200 scores" in text


def test_one_score_has_a_histogram():
    assert "<rect" in histogram([row("a", 0.0)], None)
    assert histogram([failed("a")], 0.5) == ""


@given(st.floats(-100, 100), st.floats(0.001, 100))
def test_ticks_are_round_and_inside(low, span):
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 16
    assert all(low - 1e-6 * span <= tick <= low + span + 1e-6 * span for tick in found)


def test_the_map_over_its_picture_is_the_overlay():
    rng = np.random.default_rng(1)
    image = Image(rng.random((20, 30)).astype(np.float32), "x")
    map = rng.random((20, 30)).astype(np.float32)
    expected = np.asarray(overlay(image, map, (0.2, 0.7)), np.float64)
    layer = np.asarray(map_layer(map, (0.2, 0.7)).convert("RGBA"), np.float64)
    opacity = MAX_OPACITY * layer[..., 3:] / 255
    grey = (image.pixels * 255).round()[..., None]
    assert np.abs((1 - opacity) * grey + opacity * layer[..., :3] - expected).max() <= 1.5


def test_a_large_map_is_shrunk():
    picture = map_layer(np.zeros((900, 450), np.float32), (0, 1), 300)
    assert picture.size == (150, 300)
    assert isinstance(picture, Pillow.Image)


def test_numbers_of_a_column_have_as_many_digits():
    shown = [aligned(text, 3) for text in ("0.81", "0.047619", "1", "12", "0.00001", "")]
    assert shown == ["0.810", "0.0476", "1", "12", "1e-05", "–"]


def test_a_remark_does_not_repeat_the_rule(tmp_path):
    rule = "OUT OF DOMAIN, the score means little: unlike all; otherwise abnormal from 0.5 up"
    rows = [row("a.png", 0.9, decision="out-of-domain", in_domain="no", rule=rule)]
    text = render(write_folder(tmp_path / "out", rows))
    table = text[text.index("<table") : text.index("</table>")]
    assert "OUT OF DOMAIN, the score means little: unlike all<" in table
    assert "otherwise" not in table


KNOWN = {
    "title": "Two of them",
    "measures": {"AUROC": "0.9"},
    "notes": ["A note."],
    "labels": {"a.png": "abnormal", "b.png": "normal"},
}


def test_what_is_known_stands_beside_what_the_detector_says(folder):
    (folder / "references").mkdir()
    (folder / "references/a.png.png").write_bytes(picture_png(0.7))
    write_folder(folder, read_rows(folder / "scores.csv"), known=KNOWN)
    text = render(folder)
    page = Page(text)
    for said in ("<h1>Two of them</h1>", "0.9", "A note.", "known: abnormal", "known: normal"):
        assert said in text, said
    assert "Reference outline of a.png" in [attrs["alt"] for attrs in page.all("img")]
    assert "references" in [attrs.get("id") for attrs in page.all("input")]
    table = text[text.index("<tbody>") : text.index("</tbody>")]
    assert re.findall(r"<td class='text'>(.*?)</td>", table) == ["–", "abnormal", "normal"]


def test_without_anything_known_there_is_no_word_of_it(folder):
    text = render(folder)
    body = text[text.index("<body>") : text.index("<script>")]
    assert "nown" not in body.replace("not known", "")
    assert "id='references'" not in body


def test_what_is_known_is_text_and_may_be_damaged(folder):
    known = {
        "title": HOSTILE,
        "measures": {HOSTILE: HOSTILE},
        "notes": [HOSTILE],
        "labels": {"a.png": HOSTILE},
    }
    page = Page(render(write_folder(folder, [row("a.png")], known=known)))
    assert len(page.all("script")) == 1
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    write_folder(folder, [row("a.png")], known={"what": 1})
    with pytest.raises(InputError, match="damaged"):
        render(folder)


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
def test_text_has_enough_contrast(folder, theme):
    style = re.search(r"<style>(.*?)</style>", render(folder), re.DOTALL).group(1)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", style.split(":root")[1 + theme]))
    pairs = [(text, ground) for text in ("text", "quiet") for ground in ("page", "sheet")]
    pairs += [(f"{kind}-text", kind) for kind in ("normal", "abnormal", "out", "error")]
    for text, ground in [*pairs, ("text", "notice")]:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
