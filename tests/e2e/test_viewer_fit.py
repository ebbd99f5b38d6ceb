"""Fitting in a real browser: images, painted and uploaded masks, progress, calibration, use."""

import io
import re
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image as Pillow
from playwright.sync_api import expect


def open_fit(page, pictures):
    page.get_by_role("link", name="Fit", exact=True).click()
    page.get_by_label("Drop normal images", exact=True).set_input_files(
        pictures["valid-normal"][:3]
    )
    page.get_by_label("Drop abnormal images", exact=True).set_input_files(
        pictures["valid-abnormal"][:2]
    )
    expect(
        page.get_by_role("list", name="Normal images", exact=True).get_by_role("listitem")
    ).to_have_count(3)


def fit(page, name):
    """Start the fit and wait for its card."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Epochs").fill("1")
    page.get_by_role("button", name="Fit", exact=True).click()
    card = page.get_by_role("article", name=name)
    card.wait_for()
    return card


def test_fit_with_a_painted_mask_calibrate_and_use(page, service, pictures, domain):
    open_fit(page, pictures)
    first, second = pictures["valid-abnormal"][:2]
    page.get_by_role("button", name=f"Paint the mask of {first.name}").click()
    desk = page.locator(".desk")
    box = desk.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=5)
    page.mouse.up()
    page.get_by_role("button", name="Keep mask").click()
    expect(page.get_by_text("mask painted")).to_be_visible()
    mask = next((domain.root / "valid" / "Ungood" / "anomaly_mask").glob(f"{second.stem}.*"))
    page.get_by_label("Drop masks", exact=True).set_input_files(mask)
    expect(page.get_by_text(f"mask: {mask.name}")).to_be_visible()
    card = fit(page, "from-browser")
    expect(card).to_contain_text("3 normal, 2 abnormal")
    labels = page.evaluate("window.labels")
    assert any(label.startswith(("Encoding", "Training")) for label in labels), labels
    (fitted,) = [found for found in service.get("bundles") if found["name"] == "from-browser"]
    assert fitted["support"] == {"normal": 3, "abnormal": 2}

    with page.expect_download() as download:
        card.get_by_role("link", name="Download").click()
    names = zipfile.ZipFile(download.value.path()).namelist()
    assert any(name.endswith("head.safetensors") for name in names)

    card.get_by_role("button", name=re.compile("Calibrate")).click()
    card.get_by_label("Drop normal images", exact=True).set_input_files(
        pictures["valid-normal"][3:]
    )
    card.get_by_label("False positives allowed, %").fill("20")
    card.get_by_role("button", name="Calibrate", exact=True).click()
    expect(card.get_by_text("Calibrated.")).to_be_visible()
    expect(card).to_contain_text("5 normal images, held-out")

    use(page, card, "from-browser", pictures["test-abnormal"][0])


def test_long_names_widen_no_card(page, pictures, tmp_path):
    page.get_by_role("link", name="Fit", exact=True).click()
    name = f"{'a_very_long_name_' * 5}.png"
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
        shutil.copy(pictures["valid-abnormal"][0], tmp_path / folder / name)
    page.get_by_label("Drop abnormal images", exact=True).set_input_files(
        [tmp_path / "images" / name, pictures["valid-abnormal"][1]]
    )
    page.get_by_label("Drop masks", exact=True).set_input_files(tmp_path / "masks" / name)
    expect(page.get_by_text(f"mask: {name}")).to_be_visible()
    cards = page.get_by_role("list", name="Abnormal images", exact=True).get_by_role("listitem")
    outside = cards.nth(0).evaluate(
        """card => [...card.querySelectorAll("*")].map(
            part => part.getBoundingClientRect().right - card.getBoundingClientRect().right)"""
    )
    assert max(outside) <= 0, outside
    widths = [cards.nth(i).bounding_box()["width"] for i in range(2)]
    assert widths[0] == pytest.approx(widths[1]), widths


def use(page, card, name, file):
    """Score a file with a bundle at once."""
    card.get_by_role("button", name="Use it now").click()
    expect(page.get_by_label("Bundle")).to_have_value(name)
    page.get_by_label("Drop an image, a volume or a study", exact=True).set_input_files(file)
    expect(page.locator(".pane-caption")).to_contain_text(name)


def test_the_nearest_normal_patch_is_shown(page, pictures):
    open_fit(page, pictures)
    page.get_by_label("Keep small pictures").check()
    use(page, fit(page, "with-pictures"), "with-pictures", pictures["test-abnormal"][1])
    canvas = page.locator(".pane canvas")
    page.get_by_text("Explain", exact=True).click()
    canvas.press("ArrowRight")
    canvas.press("Enter")
    nearest = page.locator(".nearest")
    expect(nearest).to_contain_text("distance")
    expect(nearest.locator("canvas")).to_have_count(2)
    expect(nearest.get_by_role("row").first).to_contain_text("Layer")


def test_a_taken_name_is_refused_in_words(page, pictures, expected_errors):
    expected_errors += ["409", "/api/v1/fits"]
    open_fit(page, pictures)
    page.get_by_label("Name").fill("brain")
    page.get_by_role("button", name="Fit", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("called so already")


def test_masks_without_an_image_are_told(page, pictures, tmp_path):
    open_fit(page, pictures)
    stray = tmp_path / "stray.png"
    Pillow.fromarray(np.zeros((96, 96), np.uint8)).save(stray)
    page.get_by_label("Drop masks", exact=True).set_input_files(stray)
    expect(page.get_by_text("No abnormal image is named like stray.png")).to_be_visible()


def test_strokes_erasing_and_undoing(page):
    png = page.evaluate(
        """async () => {
        const { Mask } = await import('/static/paint.js');
        const mask = new Mask(40, 30);
        mask.strokes.push({ erase: false, size: 10, points: [[5, 15], [35, 15]] });
        mask.strokes.push({ erase: true, size: 8, points: [[20, 15]] });
        mask.strokes.push({ erase: false, size: 30, points: [[20, 15]] });
        mask.strokes.pop();
        return Array.from(new Uint8Array(await (await mask.png()).arrayBuffer())) }"""
    )
    picture = Pillow.open(io.BytesIO(bytes(png))).convert("L")
    pixels = np.asarray(picture)
    assert pixels.shape == (30, 40)
    assert set(np.unique(pixels)) == {0, 255}
    assert (pixels[15, 8], pixels[15, 20], pixels[15, 32], pixels[3, 20]) == (255, 0, 255, 0)
    rows = np.nonzero(pixels[:, 10])[0]
    assert (rows.min(), rows.max()) == (10, 19)


def test_painting_by_keys(page, pictures):
    open_fit(page, pictures)
    first = pictures["valid-abnormal"][0]
    page.get_by_role("button", name=f"Paint the mask of {first.name}").click()
    desk = page.locator(".desk")
    desk.press("Shift+ArrowRight")
    desk.press(" ")
    desk.press("Control+z")
    page.get_by_role("button", name="Keep mask").click()
    expect(page.get_by_text("mask painted")).to_be_visible()
    page.get_by_role("button", name=f"Paint the mask of {first.name}").click()
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Keep mask").click()
    expect(page.get_by_text("mask painted")).to_have_count(0)
