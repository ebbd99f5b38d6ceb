"""The page of a scored folder in a real browser: sorting, filtering, fading, keys, no errors."""

import pytest

from recap.report.page import write_score_page
from scored_folders import failed, region, row, write_folder, write_preview, write_regions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory, browser):
    folder = tmp_path_factory.mktemp("scored")
    rows = [failed("bad.png")]
    for name, score in (("b10.png", 0.9), ("b9.png", 0.2), ("a.png", 0.6)):
        write_preview(folder, name)
        columns = write_regions(folder, name, [region()]) if score > 0.5 else {}
        rows.append(row(name, score, **columns))
    write_preview(folder, "series-3", image=17, images=40)
    columns = write_regions(folder, "series-3", [region(17, 123456.7), region(18, 1078.25)])
    rows.append(row("series-3", 0.1, kind="volume", images="40", **columns))
    path = write_score_page(write_folder(folder, rows))
    opened = browser.new_page(viewport={"width": 1100, "height": 800})
    opened.problems = []
    opened.on("console", lambda message: opened.problems.append(message.text))
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on(
        "request",
        lambda r: None if r.url.startswith(("data:", "file:")) else opened.problems.append(r.url),
    )
    opened.goto(path.as_uri())
    return opened


@pytest.fixture(autouse=True)
def fresh(page):
    page.reload()
    yield
    assert page.problems == []


def names(page):
    return page.locator("#table tbody tr:visible th").all_inner_texts()


def cards(page):
    return page.locator(".case:visible h3").all_text_contents()


def test_a_click_on_a_heading_sorts_table_and_cards(page):
    assert names(page) == ["bad.png", "b10.png", "a.png", "b9.png", "series-3"]
    page.get_by_role("button", name="Case").click()
    assert names(page) == ["a.png", "b9.png", "b10.png", "bad.png", "series-3"]
    assert cards(page) == ["a.png", "b9.png", "b10.png", "series-3"]
    score = page.get_by_role("button", name="Score")
    score.focus()
    page.keyboard.press("Enter")
    assert names(page) == ["b10.png", "a.png", "b9.png", "series-3", "bad.png"]
    page.keyboard.press("Enter")
    assert names(page) == [
        "series-3",
        "b9.png",
        "a.png",
        "b10.png",
        "bad.png",
    ]  # what has none comes last
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Score")


def test_filters_work_together(page):
    page.get_by_label("Name").fill("B")
    assert names(page) == ["bad.png", "b10.png", "b9.png"]
    assert page.locator("#count").inner_text() == "3 of 5"
    page.get_by_label("Result").select_option("normal")
    assert names(page) == cards(page) == ["b9.png"]
    page.get_by_label("Result").select_option("")
    page.get_by_label("With regions only").check()
    assert names(page) == ["b10.png"]


def opacity(page):
    return float(page.locator(".map").first.evaluate("e => getComputedStyle(e).opacity"))


def test_the_map_fades(page):
    assert opacity(page) == pytest.approx(0.8)
    slider = page.get_by_label("Map", exact=True)
    slider.focus()
    page.keyboard.press("Home")
    assert opacity(page) == 0
    page.keyboard.press("m")
    assert opacity(page) == pytest.approx(0.8)
    page.keyboard.press("ArrowLeft")
    assert opacity(page) == pytest.approx(0.79)
    page.keyboard.press("m")
    assert opacity(page) == 0
    page.keyboard.press("m")
    assert opacity(page) == pytest.approx(0.79)


def test_map_and_marks_lie_over_the_picture(page):
    boxes = [
        page.locator(f".case figure {part}").first.bounding_box()
        for part in ("img:not(.map)", "img.map", "svg")
    ]
    for box in boxes[1:]:
        assert box == pytest.approx(boxes[0], abs=0.6)
    page.get_by_label("Regions and peak").uncheck()
    assert not page.locator(".case figure svg").first.is_visible()


def test_keys_step_through_the_cases(page):
    seen = []
    for key in "jjjk":
        page.keyboard.press(key)
        seen.append(page.evaluate("document.activeElement.querySelector('h3').textContent"))
    assert seen == ["b10.png", "a.png", "b9.png", "a.png"]
    page.get_by_label("Name").fill("j")  # typing is typing
    assert page.evaluate("document.activeElement.id") == "find"


def test_a_region_lights_up(page):
    page.locator("tr[data-region='1']").first.hover()
    assert "lit" in page.locator(".case .region").first.get_attribute("class")


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_nothing_sticks_out(width, page):
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [360, 800, 1200, 1600])
def test_regions_of_a_volume_do_not_run_into_the_explanation(width, page):
    page.set_viewport_size({"width": width, "height": 800})
    card = page.locator(".case", has_text="series-3")
    card.scroll_into_view_if_needed()
    table = card.locator("table", has_text="Centre x, y").bounding_box()
    why = card.locator(".says", has_text="Why here").bounding_box()
    whole = card.bounding_box()
    beside = table["x"] >= why["x"] + why["width"] or why["x"] >= table["x"] + table["width"]
    below = table["y"] >= why["y"] + why["height"] or why["y"] >= table["y"] + table["height"]
    assert beside or below
    assert table["x"] + table["width"] <= whole["x"] + whole["width"]
