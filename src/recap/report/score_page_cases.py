"""The cards of a scored folder's page: picture, map, regions, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from recap.errors import counted
from recap.report.document import png_source
from recap.report.score_page_table import aligned, chip, number
from recap.report.score_page_why import why_block
from recap.report.scored_folder import Preview, RegionRow
from recap.results.table import Row

LISTED_REGIONS = 12


@dataclass(frozen=True)
class Shown:
    """A case with a picture."""

    row: Row
    preview: Preview
    regions: Sequence[RegionRow]


def cards(shown: Sequence[Shown], numbers: Mapping[str, int]) -> str:
    """All cards, in the order given."""
    return "\n".join(_card(item, numbers[item.row.case]) for item in shown)


def _card(item: Shown, index: int) -> str:
    row = item.row
    facts = [f"score <strong>{number(row.score)}</strong>"]
    facts += [f"p-value {aligned(row.p_value, 3)}"] if row.p_value else []
    facts += [f"probability {number(row.probability, 3)}"] if row.probability else []
    return (
        f"<article class='card case' id='case-{index}' data-case='{index}' tabindex='-1'>"
        f"<div class='top'><h3><bdi>{escape(row.case)}</bdi></h3>{chip(row)}</div>"
        f"<p class='numbers'>{' · '.join(facts)}</p>"
        f"<div class='halves'><div class='says'>{_picture(item)}</div>"
        f"<div class='says'>{why_block(item.preview)}</div>"
        f"{_regions(item)}</div></article>"
    )


def _picture(item: Shown) -> str:
    preview, name = item.preview, escape(item.row.case)
    if preview.map is None:
        return (
            f'<figure class=\'stack\'><img loading="lazy" src="{png_source(preview.picture)}" '
            f'alt="Overlay of {name}"><figcaption>Overlay as drawn when scored: made without '
            "--report, so its map cannot be faded.</figcaption></figure>"
        )
    return (
        "<figure class='stack'><div>"
        f'<img loading="lazy" src="{png_source(preview.picture)}" alt="Picture of {name}">'
        f'<img loading="lazy" class="map" src="{png_source(preview.map)}" alt="Map of {name}">'
        f"{_marks(item)}</div>{_caption(item)}</figure>"
    )


def _caption(item: Shown) -> str:
    images, kind = item.preview.why.get("images", 1), item.row.kind
    if kind == "slide":
        return f"<figcaption>The whole slide, {counted(images, 'tile')}</figcaption>"
    if images == 1:
        return ""
    noun = "Slice" if kind == "volume" else "Frame"
    shown = item.preview.why["image"] + 1
    return f"<figcaption>{noun} {shown} of {images}: the highest score</figcaption>"


def _marks(item: Shown) -> str:
    """Boxes of the regions on this image, and a ring around the peak, in the image's pixels."""
    why = item.preview.why
    try:
        height, width = (int(side) for side in why["shown_hw"])
        x, y = (float(value) for value in why["xy_px"])
    except (KeyError, TypeError, ValueError):
        return ""
    side = max(width, height)
    boxes = []
    for region in _listed(item):
        if not _is_here(item, region):
            continue
        left, top, right, bottom = (
            int(region[f"{edge}_px"]) for edge in ("left", "top", "right", "bottom")
        )
        label = int(region["region"])
        boxes.append(
            f"<g class='region' data-region='{label}'><rect x='{left}' y='{top}' "
            f"width='{right - left}' height='{bottom - top}'/>"
            f"<text x='{left}' y='{max(top - side / 90, side / 26):.1f}' "
            f"font-size='{side / 26:.1f}'>{label}</text></g>"
        )
    ring = f"<circle class='peak' cx='{x + 0.5}' cy='{y + 0.5}' r='{side / 40:.1f}'/>"
    return (
        f"<svg class='marks' viewBox='0 0 {width} {height}' aria-hidden='true'>"
        f"{''.join(boxes)}{ring}</svg>"
    )


def _is_here(item: Shown, region: RegionRow) -> bool:
    """Whether a region is on the image that is shown; a slide is shown whole."""
    return item.row.kind == "slide" or int(region["image"]) == item.preview.why.get("image", 0)


def _listed(item: Shown) -> Sequence[RegionRow]:
    return item.regions[:LISTED_REGIONS]


def _regions(item: Shown) -> str:
    if not item.row.regions:  # not calibrated: what a region is has not been said
        return ""
    if not item.regions:
        return (
            "<div class='says regions'><h4>Regions</h4>"
            "<p class='quiet'>None reaches the calibrated level.</p></div>"
        )
    several = item.row.kind in ("volume", "frames")
    in_mm = any(region["area_mm2"] for region in item.regions)
    heads = ["", *(["Image"] if several else []), f"Area, {'mm²' if in_mm else 'px'}"]
    heads += ["Centre x, y", "Peak", "Mean"]
    body = "".join(_region_row(region, several, in_mm) for region in _listed(item))
    more = len(item.regions) - len(_listed(item))
    rest = f"<p class='quiet'>and {more} more in {escape(item.row.regions_table)}</p>"
    head = "".join(f"<th scope='col'>{text}</th>" for text in heads)
    return (
        "<div class='says regions'>"
        f"<h4>Regions <span class='count'>{len(item.regions)}</span></h4>"
        f"<table class='small'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{rest if more else ''}</div>"
    )


def _region_row(region: RegionRow, several: bool, in_mm: bool) -> str:
    area = _area(region["area_mm2"] if in_mm else region["area_px"])
    centre = f"{float(region['centroid_x_px']):.0f}, {float(region['centroid_y_px']):.0f}"
    cells: list[Any] = [*([int(region["image"]) + 1] if several else []), area, centre]
    cells += [number(region["peak"], 3), number(region["mean"], 3)]
    label = int(region["region"])
    row = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    return f"<tr data-region='{label}'><th scope='row'>{label}</th>{row}</tr>"


def _area(text: str) -> str:
    """Three digits at least, and never as a power of ten: 12.3, 999, 1,078."""
    large = bool(text) and float(text) >= 999.5
    return f"{float(text):,.0f}" if large else number(text, 3)
