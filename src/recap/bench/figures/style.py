"""The look of every figure: for print, for colour-blind readers, and for a grey printer."""

import io
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from recap.bench.published import DATASETS, load_published
from recap.bench.table_cells import paper_name
from recap.errors import counted, require
from recap.report.overlay import colourise
from recap.types import FloatArray

WIDTH_IN = 7.0  # the text width of most journals and of A4
PRINT_DPI = 300
MARGIN_IN = 0.07
LETTERS_PER_IN = 18  # of the notes' 7 pt type, on average
# Okabe and Ito's colours; yellow is left out because it fades on white paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
# Normal and abnormal: colours of nearly one grey, so that each has its own hatch, line and marker.
CLASS_COLOURS = COLOURS[:2]
CLASS_HATCHES = ("", "//////")
CLASS_LINES = ("-", (0, (4, 1.2)))
CLASS_MARKERS = ("o", "^")

_STYLE = {
    "svg.hashsalt": "recap",  # or ids in the file would be drawn by lot
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "figure.titlesize": 9,
    "figure.titleweight": "bold",
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "mathtext.default": "regular",
}
# What says when, and by which release, a file was made: the same results give the same bytes.
_NO_DATES = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn when it is wanted: its file name, what it shows, how to read it."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Any]
    notes: tuple[str, ...] = ()
    """What must be known about its numbers; they are in the picture, which travels alone."""


def render(figure: Figure, *forms: str, dpi: int = PRINT_DPI) -> list[bytes]:
    """Draw the figure once and give it in each form, "png" or "svg"."""
    files = []
    with _house_style():
        drawn = figure.draw()
        drawn.draw_without_rendering()
        drawn.set_layout_engine("none")  # found once: both forms look alike, in half the time
        area = _write_below(drawn, figure.notes) if figure.notes else None
        for form in forms:
            buffer = io.BytesIO()
            drawn.savefig(buffer, format=form, dpi=dpi, bbox_inches=area, metadata=_NO_DATES[form])
            files.append(buffer.getvalue())
    return files


def _write_below(drawn: Any, notes: Sequence[str]) -> Any:
    """Write notes under a finished figure; gives the area of both in inches."""
    width, height = drawn.get_size_inches()
    letters = int(LETTERS_PER_IN * (width - 2 * MARGIN_IN))
    lines = [line for note in notes for line in textwrap.wrap(note, letters)]
    place = (MARGIN_IN / width, -MARGIN_IN / height)
    # A name with two dollar signs is no formula.
    text = drawn.text(*place, "\n".join(lines), va="top", color="#404040", parse_math=False)
    bottom = text.get_window_extent().y0 / drawn.dpi - MARGIN_IN
    for legend in drawn.legends:  # else they go down with the picture's lower edge
        legend.set_bbox_to_anchor((0, 0, 1, 1), drawn.transFigure)
    bounds = require("matplotlib.transforms", "figures").Bbox
    return bounds.from_extents(0, bottom, width, height)


@contextmanager
def _house_style() -> Iterator[None]:
    """Matplotlib's defaults and ours on top, whatever the reader's own settings say."""
    style = require("matplotlib.style", "figures")
    with style.context(["default", _STYLE]):
        yield


def new_figure(height_in: float, width_in: float = WIDTH_IN, layout: str = "constrained") -> Any:
    """An empty figure; no window, no backend and no global list of figures come into play."""
    figures = require("matplotlib.figure", "figures")
    drawn = figures.Figure(figsize=(width_in, height_in), layout=layout)
    drawn.get_layout_engine().set(w_pad=0.05, h_pad=0.05)
    return drawn


def legend_below(drawn: Any, handles: Mapping[str, Any], columns: int | None = None) -> None:
    """One legend for the whole figure, out of the data's way."""
    several = require("matplotlib.legend_handler", "figures").HandlerTuple(ndivide=None)
    drawn.legend(
        list(handles.values()),
        list(handles),
        handler_map={tuple: several},
        loc="outside lower center",
        ncols=columns or len(handles),
    )


def class_patch(label: bool) -> Any:
    """A legend entry in a class's colour, hatch and line."""
    patch = require("matplotlib.patches", "figures").Patch
    face = require("matplotlib.colors", "figures").to_rgba(CLASS_COLOURS[label], 0.3)
    return patch(facecolor=face, edgecolor=CLASS_COLOURS[label], hatch=CLASS_HATCHES[label])


@cache
def heat_colours() -> Any:
    """The colours of the project's maps, equal steps of lightness from black to yellow."""
    import numpy as np

    ramp: FloatArray = np.linspace(0, 1, 256, dtype=np.float32)[None]
    listed = require("matplotlib.colors", "figures").ListedColormap
    return listed(colourise(ramp)[0] / 255.0, name="recap")


def with_minus(number: str) -> str:
    """A number as type is set: with a minus sign, not a hyphen."""
    return number.replace("-", "−")


def setting_name(shots: int) -> str:
    """Zero-shot, or the number of support images per class."""
    return f"K = {shots}" if shots else "zero-shot"


def seeds_name(seeds: Collection[int]) -> str:
    """Say how many seeds a panel shows."""
    return counted(len(set(seeds)), "seed")


def dataset_name(folder: str) -> str:
    """The paper's name of a data set, as in the tables."""
    return paper_name(folder.removesuffix("_AD"), DATASETS)


def figure_name(*parts: str) -> str:
    """Name a figure for files and links: "recap (fast)" becomes recap-fast."""
    return re.sub(r"[^\w.-]+", "-", "-".join(parts).replace(")", ""))


@cache
def method_name(method: str) -> str:
    """The paper's name of a method, as in the tables."""
    cells = (cell for cell in load_published() if cell.table in ("zero_shot", "few_shot"))
    return paper_name(method, frozenset(cell.method for cell in cells))
