"""What the browser computes is what the library computes."""

import io

import numpy as np
import pytest
from PIL import Image as Pillow

from recap.report.overlay import overlay
from recap.scoring.conformal import p_value
from recap.scoring.regions import find_regions
from recap.types import Image


def values(map):
    return {"data": np.asarray(map, np.float32).ravel().tolist(), "shape": list(map.shape)}


@pytest.mark.parametrize("seed", range(5))
def test_regions_are_those_of_the_library(page, seed):
    rng = np.random.default_rng(seed)
    map = rng.random((23, 31)).astype(np.float32)
    if seed == 3:
        map[:9, :9] = np.nan
    level = float(np.sort(map[np.isfinite(map)])[-150])  # a value that occurs: reached counts
    if seed == 4:
        level = float(np.nextafter(level, 1.0))  # as calibrations set it: that value no longer does
    found = page.evaluate(
        """async ([{data, shape}, level]) => {
        const { byPeak, findRegions } = await import('/static/regions.js');
        const floats = Float32Array.from(data.map(v => v === null ? NaN : v));
        const map = { data: floats, height: shape[0], width: shape[1] };
        return byPeak(findRegions(map, level, { mm2PerPx: 0.5 }).regions) }""",
        [{**values(map), "data": [None if np.isnan(v) else float(v) for v in map.ravel()]}, level],
    )
    expected = find_regions(map, level, spacing_mm=(0.5, 1.0))
    assert len(found) == len(expected) > 3
    for mine, other in zip(found, expected, strict=True):
        assert tuple(mine["box_xyxy_px"]) == other.box_xyxy_px
        assert mine["area_px"] == other.area_px
        assert mine["area_mm2"] == pytest.approx(other.area_mm2)
        assert tuple(mine["peak_xy_px"]) == other.peak_xy_px
        assert mine["centroid_xy_px"] == pytest.approx(list(other.centroid_xy_px))
        assert mine["mean"] == pytest.approx(other.mean)


def test_small_regions_are_left_out(page):
    map = np.zeros((6, 6), np.float32)
    map[0, 0] = map[3, 3] = map[4, 4] = 1
    found = page.evaluate(
        """async ({data, shape}) => {
        const { findRegions, outlines } = await import('/static/regions.js');
        const map = { data: Float32Array.from(data), height: shape[0], width: shape[1] };
        const { regions, labels } = findRegions(map, 0.5, { minArea: 2 });
        return [regions.length, outlines(labels, 6, 6)] }""",
        values(map),
    )
    assert found[0] == 1
    edges = {tuple(found[1][i : i + 4]) for i in range(0, len(found[1]), 4)}
    # Straight runs are one piece, across the corner where the two pixels touch.
    across = {(3, 3, 4, 3), (3, 4, 5, 4), (4, 5, 5, 5)}
    down = {(3, 3, 3, 4), (4, 3, 4, 5), (5, 4, 5, 5)}
    assert edges == across | down


def test_p_values_are_those_of_the_library(page):
    scores = sorted([0.1, 0.2, 0.2, 0.3, 0.7])
    asked = [0.0, 0.1, 0.2, 0.25, 0.7, 0.8]
    found = page.evaluate(
        """async ([scores, asked]) => {
        const { pValue } = await import('/static/threshold.js');
        return asked.map(score => pValue(scores, score)) }""",
        [scores, asked],
    )
    assert found == [p_value(scores, score) for score in asked]


def test_an_explanation_shows_the_slice_that_was_asked_about(page):
    """Whoever scrolls on meanwhile must not see the place in another picture."""
    stream = io.BytesIO()
    Pillow.fromarray(np.zeros((8, 8), np.uint8)).save(stream, "PNG")
    answer = {"index": 0, "support": "a.png", "distance": 1.0, "x": 1, "y": 1, "size_hw": [8, 8]}
    page.route("**/asked/nearest?image=3&*", lambda route: route.fulfill(json=answer))
    page.route(
        "**/support/0.png",
        lambda route: route.fulfill(body=stream.getvalue(), content_type="image/png"),
    )
    asked = page.evaluate(
        """async (png) => {
        const { nearestPanel } = await import('/static/nearest.js');
        const bitmap = await createImageBitmap(new Blob([Uint8Array.from(png)]));
        const [asked, view] = [[], { slice: 3 }];
        const study = { bundle: { name: 'brain', support_pictures: true },
          at: (name) => `/asked/${name}`,
          slice: async (n) => { asked.push(n); return [bitmap, null]; } };
        const panel = nearestPanel(study, view);
        const answer = panel.ask(null, 2, 2);
        view.slice = 5;
        await answer;
        return [asked, panel.element.querySelectorAll('figure').length] }""",
        list(stream.getvalue()),
    )
    assert asked == [[3], 2]


def test_overlays_are_those_of_the_reports(page):
    rng = np.random.default_rng(5)
    pixels = rng.integers(0, 256, (20, 30)).astype(np.uint8)
    map = rng.uniform(-0.2, 1.4, (20, 30)).astype(np.float32)
    scale = (0.1, 1.1)
    stream = io.BytesIO()
    Pillow.fromarray(pixels).save(stream, "PNG")
    found = page.evaluate(
        """async ([png, {data, shape}, scale]) => {
        const { mapPicture, pixelsOf, windowed } = await import('/static/colours.js');
        const bitmap = await createImageBitmap(new Blob([Uint8Array.from(png)]));
        const canvas = new OffscreenCanvas(shape[1], shape[0]);
        const context = canvas.getContext('2d');
        context.drawImage(windowed(pixelsOf(bitmap), 0.5, 1), 0, 0);
        const map = { data: Float32Array.from(data), height: shape[0], width: shape[1] };
        context.drawImage(mapPicture(map, scale), 0, 0);
        return Array.from(context.getImageData(0, 0, shape[1], shape[0]).data) }""",
        [list(stream.getvalue()), values(map), scale],
    )
    drawn = np.array(found).reshape(20, 30, 4)[..., :3]
    expected = np.asarray(overlay(Image(pixels.astype(np.float32) / 255, "x"), map, scale))
    # A canvas keeps colours multiplied by their opacity, in 8 bits.
    assert np.abs(drawn - expected).max() <= 4
    assert np.abs(drawn - expected).mean() < 1


def test_the_window_is_linear_between_its_ends(page):
    grey = np.arange(256, dtype=np.uint8)[None]
    stream = io.BytesIO()
    Pillow.fromarray(grey).save(stream, "PNG")
    found = page.evaluate(
        """async (png) => {
        const { pixelsOf, windowed } = await import('/static/colours.js');
        const bitmap = await createImageBitmap(new Blob([Uint8Array.from(png)]));
        const shown = windowed(pixelsOf(bitmap), 0.4, 0.5);
        return Array.from(shown.getContext('2d').getImageData(0, 0, 256, 1).data) }""",
        list(stream.getvalue()),
    )
    expected = np.clip((np.arange(256) / 255 - 0.15) / 0.5, 0, 1) * 255
    assert np.abs(np.array(found).reshape(256, 4)[:, 0] - expected).max() <= 0.51
