"""One self-contained page of a scored folder: table, histogram, pictures, regions, and why.

It is made from the folder alone, so that it can be made again at any time. Nothing is loaded from
elsewhere, and the page's own policy lets the browser run its one script and no other.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from recap._files import write_atomic
from recap.errors import counted
from recap.report.overlay import encode_png, legend, png_source
from recap.report.page_cases import Shown, cards
from recap.report.page_table import DECISIONS, STATES, case_table, histogram, state_of
from recap.report.previews import ScoredFolder

PAGE = "report.html"
STYLE, SCRIPT = "page.css", "page.js"
"""Files beside this one, which every page holds."""
MAX_PICTURE_BYTES = 48 * 2**20
"""What all pictures of a page may take together; browsers are slow with more."""
DISCLAIMER = (
    "<strong>Research software, not a medical device.</strong> Scores and maps point at image "
    "regions that differ from what the model has learned as normal. They are not findings and "
    "must not guide diagnosis or treatment."
)
SCALE_NOTE = (
    "Every map uses this one fixed scale, so colours compare between images. The upper band shows "
    "the colours, the lower band how they look over mid-grey tissue: opacity grows with the value, "
    "and values up to the left end leave the image as it is."
)
LEGEND_ALT = "Colour bar of the fixed scale, from dark (low) to yellow (high)"


def write_score_page(folder: Path) -> Path:
    """Write report.html into a scored folder."""
    path = folder / PAGE
    # File names need not be valid text.
    write_atomic(path, render_score_page(ScoredFolder(folder)).encode("utf-8", errors="replace"))
    return path


def render_score_page(scored: ScoredFolder) -> str:
    """The page as text."""
    shown, missing = _choose(scored)
    numbers = {row.case: number for number, row in enumerate(scored.rows)}
    title = scored.known.title or f"Scores of {counted(len(scored.rows), 'case')}"
    parts = [
        f"<header><h1>{escape(title)}</h1><p class='notice'>{DISCLAIMER}</p>",
        f"{_status(scored)}</header>",
        "<main>",
        _facts(scored),
        _notes(scored.known.notes),
        histogram(scored.rows, scored.decisions.get("threshold")),
        case_table(scored.rows, numbers, {item.row.case for item in shown}, scored.known.labels),
        _pictures(scored, shown, numbers, missing),
        _provenance(scored.manifest),
        "</main>",
    ]
    return _page(title, "\n".join(part for part in parts if part))


def _page(title: str, body: str) -> str:
    """Wrap a body with style, script and the policy: even if escaping failed somewhere, the
    browser would load and run nothing else."""
    in_page, script = f"\n{_packaged(STYLE)}", f"\n{_packaged(SCRIPT)}"  # all between the tags
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(in_page)}; "
        f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    return (
        "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>{in_page}</style>\n</head>\n"
        f"<body>\n{body}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _packaged(name: str) -> str:
    """Read a style sheet or script that comes with this package."""
    return files("recap.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _choose(scored: ScoredFolder) -> tuple[list[Shown], int]:
    """The cases with pictures, and how many have none though they were scored."""
    shown: list[Shown] = []
    used = 0
    for row in scored.shown():
        preview = scored.preview(row)
        if preview is None:
            continue
        used += preview.size
        if used > MAX_PICTURE_BYTES:
            break
        label = scored.known.labels.get(row.case, "")
        shown.append(Shown(row, preview, scored.regions(row), label))
    return shown, sum(row.status == "ok" for row in scored.rows) - len(shown)


def _status(scored: ScoredFolder) -> str:
    """Say above everything else that a run is not over, or that files failed."""
    notes = []
    if scored.manifest.get("status") != "complete":
        notes.append("The run is not over, or was interrupted: more cases may follow.")
    failed = sum(row.status != "ok" for row in scored.rows)
    if failed:
        notes.append(f"{counted(failed, 'case')} could not be scored; the table says why.")
    return "".join(f"<p class='notice warning'>{escape(note)}</p>" for note in notes)


def _facts(scored: ScoredFolder) -> str:
    manifest, bundle, decided = scored.manifest, scored.manifest["bundle"], scored.decisions
    settings, encoder = bundle.get("settings", {}), bundle.get("encoder", {})
    name = settings.get("method", f"{bundle.get('mode')}, preset {settings.get('preset')}")
    counts = Counter(state_of(row) for row in scored.rows)
    short = [
        ("Cases", ", ".join(f"{counts[s]} {STATES[s]}" for s in DECISIONS if counts[s]) or "none"),
        ("Detector", f"{name}; fit {str(bundle['fingerprint'])[:12]}"),
        ("Encoder", f"{Path(str(encoder.get('name'))).name}"),
        ("Last run", _when(manifest)),
        *scored.known.measures.items(),
    ]
    long = [
        ("Consists of", bundle.get("statement", "")),
        ("Rule", decided.get("rule", "none: not calibrated, see `recap calibrate`")),
    ]
    if "guarantee" in decided:
        long.append(("What that promises", decided["guarantee"]))
    return (
        f"<section aria-label='Key facts'>{_definitions('facts', short)}"
        f"{_definitions('facts long', long)}</section>"
    )


def _definitions(kind: str, pairs: Iterable[tuple[str, str]]) -> str:
    """List names and values; `kind` is the CSS class of the list."""
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(str(v))}</dd></div>" for k, v in pairs)
    return f"<dl class='{kind}'>{cells}</dl>"


def _notes(notes: list[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section><h2>Notes</h2><ul class='notes'>{items}</ul></section>"


def _when(manifest: dict[str, Any]) -> str:
    try:
        started = datetime.fromtimestamp(float(manifest["started_unix"]), UTC)
        return f"{started:%Y-%m-%d %H:%M} UTC, in {float(manifest['seconds']):.1f} s"
    except (KeyError, TypeError, ValueError, OverflowError):
        return "not known"


def _pictures(
    scored: ScoredFolder, shown: list[Shown], numbers: dict[str, int], missing: int
) -> str:
    if not shown:
        return ""
    note = ""
    if missing:
        note = (
            f"<p class='quiet'>The {len(shown)} highest scores are shown; the table has "
            f"{counted(missing, 'more case')}.</p>"
        )
    bar = png_source(encode_png(legend(scored.scale)))
    outlines = ""
    if any(item.preview.reference for item in shown):
        outlines = (
            "<label><input id='references' type='checkbox' checked> Reference outline</label>"
        )
    return (
        f"<section id='pictures'><h2>Pictures <span class='count'>{len(shown)}</span></h2>{note}"
        f"<div class='legend'><img src=\"{bar}\" alt='{LEGEND_ALT}'><p>{SCALE_NOTE}</p></div>"
        "<div class='tools' role='group' aria-label='Pictures'>"
        "<label>Map <input id='opacity' type='range' min='0' max='100' value='80' "
        "aria-describedby='keys'></label><output id='opacity-value' for='opacity'>80 %</output>"
        f"<label><input id='marks' type='checkbox' checked> Regions and peak</label>{outlines}"
        "<span id='keys' class='keys'><kbd>M</kbd> map on and off, <kbd>J</kbd> <kbd>K</kbd> next "
        "and previous case</span></div>"
        f"<div id='cards'>\n{cards(shown, numbers)}\n</div></section>"
    )


def _provenance(manifest: dict[str, Any]) -> str:
    text = escape(json.dumps(manifest, indent=2, ensure_ascii=False))
    return (
        "<section><h2>Settings, versions, provenance</h2><details><summary>manifest.json</summary>"
        f"<pre tabindex='0'>{text}</pre></details></section>"
    )
