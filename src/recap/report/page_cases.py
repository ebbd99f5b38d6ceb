"""The cards of a scored folder's page: picture, map, regions, and why the map peaks there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from recap.errors import counted
from recap.report.overlay import png_source
from recap.report.page_table import aligned, chip, number, reference_chip
from recap.report.previews import Preview, RegionRow
from recap.results.table import Row

LISTED_REGIONS = 12


@dataclass(frozen=True)
class Shown:
    """A case with a picture."""

    row: Row
    preview: Preview
    regions: Sequence[RegionRow]
    label: str = ""
    """What the case is known to be, from elsewhere."""


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
        f"<div class='top'><h3><bdi>{escape(row.case)}</bdi></h3>"
        f"<span class='chips'>{reference_chip(item.label)}{chip(row)}</span></div>"
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
        f"{_reference(item)}{_marks(item)}</div>{_caption(item)}</figure>"
    )


def _reference(item: Shown) -> str:
    png = item.preview.reference
    if png is None:
        return ""
    alt = f"Reference outline of {escape(item.row.case)}"
    return f'<img loading="lazy" class="reference" src="{png_source(png)}" alt="{alt}">'


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
        if item.row.kind != "slide" and int(region["image"]) != why.get("image", 0):
            continue  # it is on another image than the one that is shown
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
    area = region["area_mm2"] if in_mm else region["area_px"]
    if area:  # three digits at least, and never as a power of ten: 12.3, 999, 1,078
        area = f"{float(area):,.0f}" if float(area) >= 999.5 else number(area, 3)
    centre = f"{float(region['centroid_x_px']):.0f}, {float(region['centroid_y_px']):.0f}"
    cells: list[Any] = [*([int(region["image"]) + 1] if several else []), area, centre]
    cells += [number(region["peak"], 3), number(region["mean"], 3)]
    label = int(region["region"])
    row = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    return f"<tr data-region='{label}'><th scope='row'>{label}</th>{row}</tr>"


SOURCES = {"prototype": "Prototypes", "memory": "Memory", "appearance": "Image as a whole"}


def why_block(preview: Preview) -> str:
    """The explanation of a case's peak; empty where there is none, or a damaged one."""
    if "map_value" not in preview.why:
        return ""
    try:
        return _block(preview)
    except (KeyError, TypeError, ValueError, AttributeError):
        return "<p class='quiet'>The explanation of this case is damaged. Score it again.</p>"


def _block(preview: Preview) -> str:
    why = preview.why
    x, y = why["xy_px"]
    parts = [
        "<h4>Why here</h4>",
        f"<p>The map's peak, {float(why['map_value']):.3g}, is at x {int(x)}, y {int(y)}.</p>",
        _nearest(why, preview.support),
    ]
    if why.get("note"):
        parts.append(f"<p class='quiet'>{escape(str(why['note']))}</p>")
    if why.get("map_parts"):
        parts.append(_bar("Value at the peak", why["map_parts"]))
        # A slice's or tile's own: a case's score is made of several.
        label = "Score" if why.get("images", 1) == 1 else "Score of this image"
        parts.append(_bar(label, why["score_parts"]))
        parts.append(_details(why))
    return "".join(parts)


def _nearest(why: dict[str, Any], support: bytes | None) -> str:
    nearest = why.get("nearest")
    if not nearest:
        return ""
    origin = nearest.get("origin")
    distance = f"distance {float(nearest['distance']):.3g} in layer {int(nearest['layer'])}"
    if not origin:
        return f"<p>Nearest normal patch: {distance}.</p>"
    place = ""
    if origin.get("xy_px"):
        x, y = (round(value) for value in origin["xy_px"])
        place = f" at x {x}, y {y}"
    text = (
        f"<p>Nearest normal patch: <bdi class='name'>{escape(str(origin['name']))}</bdi>{place}"
        f"; {distance}.</p>"
    )
    if support is None:
        return text
    return f"<div class='nearest'>{_support(support, origin)}{text}</div>"


def _support(png: bytes, origin: dict[str, Any]) -> str:
    ring = ""
    if origin.get("xy_px") and origin.get("size_hw"):
        (x, y), (height, width) = origin["xy_px"], origin["size_hw"]
        ring = (
            f"<svg class='marks' viewBox='0 0 {int(width)} {int(height)}' aria-hidden='true'>"
            f"<circle class='peak' cx='{x + 0.5:.1f}' cy='{y + 0.5:.1f}' "
            f"r='{max(height, width) / 16:.1f}'/></svg>"
        )
    name = escape(str(origin["name"]))
    return (
        f'<div class="stack"><img src="{png_source(png)}" alt="Support image {name}">{ring}</div>'
    )


def _bar(label: str, parts: Sequence[dict[str, Any]]) -> str:
    """One bar whose pieces are the contributions, as shares of their sum."""
    total = sum(float(part["amount"]) for part in parts)
    if not total > 0:
        return ""
    pieces, start, shares = [], 0.0, {}
    for source, title in SOURCES.items():
        chosen = [part for part in parts if part["source"] == source]
        if chosen:
            share = sum(float(part["amount"]) for part in chosen) / total
            shares[source] = f"{title.lower()} {100 * share:.0f} %"
        for step, part in enumerate(chosen):
            width = 100 * float(part["amount"]) / total
            text = f"{_named(part)}: {float(part['amount']):.3g}"
            pieces.append(
                f"<rect class='{source} step-{step % 4}' x='{start:.2f}' y='0' "
                f"width='{width:.2f}' height='10'><title>{text}</title></rect>"
            )
            start += width
    said = f"{label} {total:.3g}: {', '.join(shares.values())}"
    legend = ", ".join(
        f"<span class='key-text'><i class='swatch {source}'></i>{text}</span>"
        for source, text in shares.items()
    )
    return (
        f"<p class='bar-label'>{label} {total:.3g}: {legend}</p>"
        "<svg class='parts' viewBox='0 0 100 10' preserveAspectRatio='none' role='img' "
        f"aria-label='{said}'>{''.join(pieces)}</svg>"
    )


def _named(part: dict[str, Any]) -> str:
    """A contribution's name; layer 0 is the image as a whole, seen in all of them."""
    layer = int(part["layer"])
    return SOURCES[part["source"]] + (f", layer {layer}" if layer else "")


def _details(why: dict[str, Any]) -> str:
    """All contributions as numbers."""
    to_map = {(part["source"], part["layer"]): part for part in why["map_parts"]}
    body = ""
    for part in why["score_parts"]:
        mapped = to_map.get((part["source"], part["layer"]))
        figures = "".join(
            "<td>–</td>"
            if one is None
            else f"<td title='{float(one['weight']):.3f} × {float(one['evidence']):.3g}'>"
            f"{float(one['amount']):.3g}</td>"
            for one in (mapped, part)
        )
        body += f"<tr><th scope='row'>{_named(part)}</th>{figures}</tr>"
    return (
        "<details><summary>Every layer</summary><table class='small'><thead><tr><th></th>"
        "<th scope='col'>Adds to map</th><th scope='col'>Adds to score</th></tr></thead>"
        f"<tbody>{body}</tbody></table><p class='quiet'>Each is weight × evidence; point at a "
        "number to see both.</p></details>"
    )
