"""Scoring in a real browser: upload, progress, overlay, threshold, regions, slices, comparison."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image as Pillow
from playwright.sync_api import Page, expect

from dicom_files import save_series
from recap.scoring.conformal import p_value
from recap.scoring.regions import find_regions
from volume_files import affine, write_nifti


def score(page: Page, files, bundle="brain"):
    """Upload on the first page and wait for the result; returns the job's id."""
    page.get_by_role("link", name="Score", exact=True).click()
    page.get_by_label("Bundle").select_option(bundle)
    page.get_by_label("Drop an image, a volume or a study", exact=True).set_input_files(files)
    page.wait_for_url(re.compile("#/job/[0-9a-f]{32}"))
    page.locator(".banner h2").wait_for()
    return page.url.rpartition("/")[2]


def drawn(page: Page, pane: int = 0) -> np.ndarray:
    """What is on a pane's canvas, once it has been drawn."""
    page.wait_for_function(
        """n => { const c = document.querySelectorAll('.pane canvas')[n];
        return c && c.width > 1 && c.getContext('2d').getImageData(0, 0, c.width, c.height)
        .data.some(v => v) }""",
        arg=pane,
    )
    page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    url = page.evaluate("n => document.querySelectorAll('.pane canvas')[n].toDataURL()", pane)
    picture = Pillow.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return np.asarray(picture.convert("RGBA"), int)


def drag_slider(page: Page, label: str, key: str) -> float:
    slider = page.get_by_label(label)
    slider.press(key)
    return float(slider.input_value())


def test_upload_progress_decision_and_overlay(page, service, mixed_picture):
    job = score(page, mixed_picture)
    labels = page.evaluate("window.labels")
    assert labels[0] == "Uploading…"
    assert len(labels) > 1
    (case,) = service.get(f"jobs/{job}/cases")
    # A name is text, whatever it looks like.
    expect(page.locator("h1.case-name")).to_have_text(case["name"])
    decision = case["decision"]
    verdict = page.locator(".banner")
    word = "Abnormal" if decision["abnormal"] else "Normal"
    expect(verdict.get_by_role("heading")).to_have_text(
        word if decision["in_domain"] else "Outside the fitted domain"
    )
    expect(verdict).to_contain_text(decision["rule"])
    expect(verdict).to_contain_text(f"{decision['p_value']:.3g}")
    with_map = drawn(page)
    page.get_by_label("Map opacity").press("Home")
    page.get_by_label("Outlines").uncheck()
    plain = drawn(page)
    # Without its map the picture is grey; with it there is colour.
    assert np.ptp(plain[..., :3], axis=-1).max() == 0
    assert (np.ptp(with_map[..., :3], axis=-1) > 20).mean() > 0.01
    assert plain[..., :3].max() > 150


def test_a_page_that_is_open_is_not_built_anew(page):
    # The answer about the session comes after a click, as it may on a busy machine.
    page.add_init_script("""
        const real = fetch;
        window.fetch = (url, ...rest) => String(url).endsWith("/session")
          ? new Promise((done) => { window.release = () => done(real(url, ...rest)); })
          : real(url, ...rest);""")
    page.reload()
    page.get_by_role("link", name="Score", exact=True).click()
    page.locator(".page.start").evaluate("page => page.id = 'first'")
    with page.expect_response(re.compile("/session$")) as answer:
        page.evaluate("release()")
    answer.value.finished()
    page.wait_for_timeout(200)
    expect(page.locator("#first")).to_be_visible()


def test_window_zoom_and_pan_by_mouse_and_keys(page, mixed_picture):
    score(page, mixed_picture)
    page.get_by_label("Map opacity").press("Home")
    page.get_by_label("Outlines").uncheck()
    before = drawn(page)
    canvas = page.locator(".pane canvas")
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] - 200, middle[1], steps=4)
    page.mouse.up()
    narrow = float(page.get_by_label("Window width").input_value())
    assert narrow < 1
    assert drawn(page).std() > before.std()
    canvas.press("]")
    assert float(page.get_by_label("Window width").input_value()) > narrow
    page.get_by_role("button", name="Reset window").click()
    np.testing.assert_array_equal(drawn(page), before)
    page.mouse.move(*middle)
    page.mouse.wheel(0, -300)
    expect(page.locator(".readout")).not_to_contain_text("Zoom 100 %")
    assert (drawn(page) != before).any()
    canvas.press("0")
    np.testing.assert_array_equal(drawn(page), before)
    canvas.press("+")
    canvas.press("Shift+ArrowRight")
    assert (drawn(page) != before).any()


def test_threshold_decides_anew_and_tells_its_p_value(page, service, pictures):
    job = score(page, pictures["test-abnormal"][0])
    (case,) = service.get(f"jobs/{job}/cases")
    (brain,) = [found for found in service.get("bundles") if found["name"] == "brain"]
    normal = brain["calibration"]["normal_scores"]
    heading = page.locator(".banner h2")
    for key, word in (("Home", "Abnormal"), ("End", "Normal")):
        threshold = drag_slider(page, "Abnormal from score", key)
        if case["domain"]["in_domain"]:
            expect(heading).to_have_text(word)
        expect(page.locator(".banner")).to_contain_text("your threshold")
        assert (case["score"] >= threshold) == (word == "Abnormal")
        expect(page.get_by_text(f"p = {p_value(normal, threshold):.3g}")).to_be_visible()
    page.get_by_role("button", name="Back to calibrated values").click()
    expect(page.locator(".banner")).to_contain_text(f"Rule: {case['decision']['rule']}")


def test_a_bundle_calibrated_anew_does_not_overrule_a_stored_decision(page, service, pictures):
    job = score(page, pictures["test-abnormal"][0])
    cases, bundles = service.get(f"jobs/{job}/cases"), service.get("bundles")
    (brain,) = [found for found in bundles if found["name"] == "brain"]
    assert cases[0]["calibration_digest"] == brain["calibration_digest"] != ""
    heading, control = page.locator(".banner h2"), page.get_by_label("Abnormal from score")
    for abnormal, word in ((True, "Abnormal"), (False, "Normal")):
        cases[0]["decision"] |= {"abnormal": abnormal, "in_domain": True}
        cases[0]["domain"] |= {"in_domain": True}
        # The threshold of now says the opposite; of the same calibration it cannot, but for the
        # last digits of a score that was worked out elsewhere.
        side = 1 if abnormal else -1
        brain["calibration"]["threshold"] = cases[0]["score"] + side * 0.1
        for digest, sliders in ((cases[0]["calibration_digest"], 1), ("another", 0)):
            brain["calibration_digest"] = digest
            page.route("**/api/v1/bundles", lambda route: route.fulfill(json=bundles))
            page.route(f"**/jobs/{job}/cases", lambda route: route.fulfill(json=cases))
            page.reload()
            expect(heading).to_have_text(word)
            expect(control).to_have_count(sliders)
            expect(page.locator(".banner")).not_to_contain_text("your threshold")
    expect(page.get_by_text("not calibrated as it was when this was scored")).to_be_visible()


def test_regions_follow_the_level_and_a_click_goes_to_one(page, service, pictures):
    job = score(page, pictures["test-abnormal"][1])
    (case,) = service.get(f"jobs/{job}/cases")
    count = page.locator("h3 .count")
    expect(count).to_have_text(str(len(case["regions"])))
    slider = page.get_by_label("Outline from map value")
    slider.press("Home")
    found = service.map(job, 0, 0, case["size_hw"])
    while float(slider.input_value()) < 0.8 * found.max():
        slider.press("ArrowRight")
    level = float(slider.input_value())
    expected = find_regions(found, level)
    assert expected
    expect(page.locator(".regions")).to_have_attribute("aria-busy", "false")
    expect(count).to_have_text(str(len(expected)))
    before = drawn(page)
    first = page.locator(".regions button").first
    first.press("Enter")
    expect(first).to_have_attribute("aria-current", "true")
    expect(first).to_contain_text(f"peak {expected[0].peak:.3g}")
    # The white box of the highlight is new; a busy machine draws it a little later.
    white = (before[..., :3] == 255).all(-1).sum()
    for _ in range(50):
        if (drawn(page)[..., :3] == 255).all(-1).sum() > white + 50:
            return
        page.wait_for_timeout(100)
    pytest.fail("nothing was highlighted")


@pytest.fixture
def volume(tmp_path):
    """Six slices, of which one has a bright square."""
    stored = np.random.default_rng(2).normal(300, 30, (48, 40, 6))
    stored[10:24, 12:26, 4] += 500
    return write_nifti(tmp_path / "head.nii.gz", stored.astype(np.int16), affine(np.eye(3)))


def test_a_volume_is_scrolled_through(page, service, volume):
    job = score(page, volume)
    (case,) = service.get(f"jobs/{job}/cases")
    assert case["images"] == 6
    shown = page.locator(".slice-number")
    expect(shown).to_contain_text(f"Slice {case['highest'] + 1} of 6")
    canvas = page.locator(".pane canvas")
    canvas.press("Home")
    expect(shown).to_contain_text("Slice 1 of 6")
    page.wait_for_function("() => document.querySelector('.pane-busy').textContent === ''")
    page.wait_for_timeout(100)
    first = drawn(page)
    canvas.press("ArrowDown")
    expect(shown).to_contain_text("Slice 2 of 6")
    page.wait_for_function("() => document.querySelector('.pane-busy').textContent === ''")
    canvas.hover()
    page.mouse.wheel(0, 50)
    expect(shown).to_contain_text("Slice 3 of 6")
    page.get_by_label("Slice", exact=True).press("End")
    expect(shown).to_contain_text("Slice 6 of 6")
    score_of_last = f"score {case['image_scores'][5]:.3g}"
    expect(shown).to_contain_text(score_of_last)
    strip = page.locator(".strip").bounding_box()
    page.mouse.click(strip["x"] + strip["width"] * 4.5 / 6, strip["y"] + 10)
    expect(shown).to_contain_text("Slice 5 of 6")
    expect(page.get_by_role("link", name="Map of the volume (NIfTI)")).to_be_visible()
    page.wait_for_timeout(100)
    assert (drawn(page) != first).any()


def test_pixels_are_as_high_and_wide_as_in_the_patient(page, tmp_path):
    stored = np.random.default_rng(3).normal(300, 30, (48, 16, 4)).astype(np.int16)
    place = affine(np.eye(3), spacing=(1.0, 3.0, 5.0))
    score(page, write_nifti(tmp_path / "flat.nii.gz", stored, place))
    rows, columns = np.nonzero(drawn(page)[..., 3])
    assert np.ptp(rows) / np.ptp(columns) == pytest.approx(16 * 3.0 / (48 * 1.0), rel=0.02)
    # The place under the pointer is still told in the picture's own pixels.
    box = page.locator(".pane canvas").bounding_box()
    scale = page.evaluate("devicePixelRatio")
    right, bottom = columns.max() / scale - 2, rows.max() / scale - 2
    page.mouse.move(box["x"] + right, box["y"] + bottom)
    expect(page.locator(".readout")).to_contain_text("x 47  y 15")


def test_a_region_of_a_volume_is_gone_to(page, volume):
    score(page, volume)
    slider = page.get_by_label("Outline from map value")
    slider.press("Home")
    for _ in range(30):
        slider.press("ArrowRight")
    rows = page.locator(".regions button")
    expect(page.locator(".regions")).to_have_attribute("aria-busy", "false")
    expect(rows.first).to_be_visible()
    last = rows.last
    place = re.search(r"Slice (\d+)", last.inner_text())[1]
    last.click()
    expect(page.locator(".slice-number")).to_contain_text(f"Slice {place} of 6")


def test_a_map_that_cannot_be_fetched_is_told_and_the_next_level_tries_again(
    page, volume, expected_errors
):
    expected_errors += ["ERR_FAILED", ".f32"]
    score(page, volume)
    regions = page.locator(".regions")
    slider = page.get_by_label("Outline from map value")
    page.route("**/map/*.f32", lambda route: route.abort())
    slider.press("Home")
    expect(regions.get_by_role("alert")).to_contain_text("Regions could not be looked for")
    expect(regions).to_have_attribute("aria-busy", "false")
    page.unroute("**/map/*.f32")
    slider.press("ArrowRight")
    expect(regions.get_by_role("alert")).to_have_count(0)
    expect(regions.get_by_role("button").first).to_be_visible()


def test_a_dicom_series_and_its_downloads(page, service, tmp_path):
    stack = np.random.default_rng(3).integers(0, 900, (3, 40, 36)).astype(np.int16)
    files = save_series(tmp_path / "series", stack)
    job = score(page, files)
    (case,) = service.get(f"jobs/{job}/cases")
    assert (case["kind"], case["images"], case["dicom"]) == ("volume", 3, True)
    for name, kind in (("All files (zip)", ".zip"), ("Scores, decisions, regions (JSON)", ".json")):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        assert download.value.path().stat().st_size > 100
        assert download.value.suggested_filename.endswith(kind)
    with page.expect_download() as download:
        page.get_by_role("link", name="DICOM results (zip)").click()
    assert download.value.path().stat().st_size > 100


def test_two_bundles_side_by_side_stay_in_step(page, mixed_picture):
    score(page, mixed_picture)
    page.get_by_label("Compare with").select_option("bundle:normals")
    expect(page.locator(".pane")).to_have_count(2)
    expect(page.locator(".pane-caption").nth(0)).to_contain_text("brain")
    expect(page.locator(".pane-caption").nth(1)).to_contain_text("normals")
    before = drawn(page, 1)
    page.locator(".pane canvas").nth(0).press("+")
    assert (drawn(page, 1) != before).any()
    page.get_by_label("Compare with").select_option("")
    expect(page.locator(".pane")).to_have_count(1)


def test_only_the_last_choice_of_what_to_compare_with_is_shown(page, mixed_picture):
    other = score(page, mixed_picture, "normals")
    score(page, mixed_picture)
    page.locator(f"option[value='job:{other}']").wait_for(state="attached")
    held = []
    page.route(f"**/jobs/{other}/cases", lambda route: held.append(route))
    compare = page.get_by_label("Compare with")
    for choice in (f"job:{other}", "", f"job:{other}"):
        compare.select_option(choice)
    while len(held) < 2:
        page.wait_for_timeout(50)
    for route in held:
        route.continue_()
    expect(page.locator(".pane")).to_have_count(2)
    page.wait_for_timeout(500)
    assert page.locator(".pane").count() == 2
    compare.select_option("")
    expect(page.locator(".pane")).to_have_count(1)


def test_a_refused_file_is_explained(page, tmp_path, expected_errors):
    expected_errors += ["Failed to load resource", "/api/v1/jobs"]
    bad = tmp_path / "letter.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    page.get_by_label("Drop an image, a volume or a study", exact=True).set_input_files(bad)
    expect(page.get_by_role("alert")).to_contain_text("letter.png")


def test_earlier_results_are_listed_and_open_again(page, mixed_picture):
    score(page, mixed_picture)
    page.get_by_role("link", name="Results").click()
    page.get_by_role("row").nth(1).get_by_role("link").click()
    page.locator(".banner h2").wait_for()
    drawn(page)


def test_a_case_outside_the_domain_is_marked_also_where_nothing_was_decided(
    page, service, mixed_picture
):
    job = score(page, mixed_picture)
    cases = service.get(f"jobs/{job}/cases")
    cases[0] |= {"decision": None, "undecided": "no decision: of another kind"}
    cases[0]["domain"] |= {"in_domain": False}
    page.route(f"**/jobs/{job}/cases", lambda route: route.fulfill(json=cases))
    page.reload()
    expect(page.locator(".banner h2")).to_have_text("Outside the fitted domain")
    expect(page.locator(".banner .warning")).to_be_visible()
    expect(page.locator(".banner")).to_contain_text("of another kind")


def test_the_list_does_not_call_a_case_outside_the_domain_abnormal(page, service, mixed_picture):
    job = service.get(f"jobs/{score(page, mixed_picture)}")
    (short,) = job["result"]["cases"]
    short |= {"abnormal": True, "in_domain": False}
    page.route("**/api/v1/jobs?limit=*", lambda route: route.fulfill(json=[job]))
    page.get_by_role("link", name="Results").click()
    outcome = f"{short['score']:.3g}, outside the fitted domain"
    expect(page.locator("td.outcome")).to_have_text(outcome)


def test_dark_theme_and_names_for_every_control(page, mixed_picture):
    def background() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    page.get_by_role("button", name="Dark").click()
    assert background() != light
    page.reload()
    page.get_by_role("heading", name="Score").wait_for()
    assert background() != light
    score(page, mixed_picture)
    for place in ("#/score", "#/results", "#/fit", "#/bundles"):
        _assert_named(page)
        page.goto(f"/{place}")
        page.get_by_role("heading", level=1).wait_for()
    _assert_named(page)
    expect(page.get_by_text("Research use only.")).to_be_visible()


def _assert_named(page):
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('main input, main select, main button, main canvas')]
        .filter(e => !e.ariaLabel && !e.labels?.length && !e.textContent && !e.closest('[hidden]')
          && e.ariaHidden !== 'true' && e.type !== 'file').map(e => e.outerHTML)"""
    )
    assert not nameless
