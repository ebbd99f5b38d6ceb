"""Narrow and wide windows: no page is wider than its window, and numbers stay on one line."""

import numpy as np
import pytest
from playwright.sync_api import expect
from test_viewer_score import score

from volume_files import affine, write_nifti

WIDER = """() => [...document.querySelectorAll('body *')].filter((e) =>
  !e.closest('.scroll > *') && !e.closest('.unseen') && e.getClientRects().length &&
  e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 80))"""


NAME = "a-name-that-is-longer-than-narrow-windows-are-wide_0123456789.nii.gz"
# Something on each page that comes with its data.
PAGES = {"score": "table.jobs", "results": "table.jobs", "fit": ".fit-form", "bundles": ".card"}


def volume(folder, slices):
    stored = np.random.default_rng(1).normal(300, 30, (20, 18, slices)).astype(np.int16)
    return write_nifti(folder / NAME, stored, affine(np.eye(3)))


def assert_fits(page):
    page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    size = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1], page.evaluate(WIDER)
    assert page.evaluate(WIDER) == []


def test_no_page_is_wider_than_a_narrow_window(page, tmp_path):
    page.set_viewport_size({"width": 400, "height": 800})
    score(page, volume(tmp_path, 3))
    assert_fits(page)
    for place, content in PAGES.items():
        page.goto(f"/#/{place}")
        page.locator(content).first.wait_for()
        assert_fits(page)


def test_a_narrow_list_is_scrolled_to_its_end(page, tmp_path):
    score(page, volume(tmp_path, 3))
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto("/#/results")
    row = page.get_by_role("row").nth(1)
    assert row.get_by_role("rowheader").bounding_box()["width"] >= 140  # not a few letters
    delete = row.get_by_role("button")
    delete.scroll_into_view_if_needed()
    expect(delete).to_be_in_viewport(ratio=1)
    assert_fits(page)


@pytest.mark.parametrize("width", [1400, 400])
def test_the_number_and_score_of_a_slice_stand_on_one_line(page, tmp_path, width):
    page.set_viewport_size({"width": width, "height": 900})
    score(page, volume(tmp_path, 100))
    shown = page.locator(".slice-number")
    page.locator(".pane canvas").press("End")
    expect(shown).to_contain_text("Slice 100 of 100 · score")
    page.locator(".pane canvas").press("ArrowUp")
    expect(shown).to_contain_text("Slice 99 of 100 · score")
    assert shown.bounding_box()["height"] < 30
    slider = page.get_by_label("Slice", exact=True).bounding_box()
    assert slider["width"] > 200
