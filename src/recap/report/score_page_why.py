"""Why the map has its peak there: the nearest normal patch, and what each layer adds."""

from collections.abc import Sequence
from html import escape
from typing import Any

from recap.report.document import png_source
from recap.report.scored_folder import Preview

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
