"""The paper's table of parameters and latencies, with our timings beside it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from recap.benchmark.caveats import caveats_for
from recap.benchmark.published import PublishedCell, load_published
from recap.benchmark.table_cells import ResultCell, under_paper_names
from recap.benchmark.table_model import (
    Cell,
    Column,
    Label,
    Number,
    Row,
    Table,
    rank_down,
)

PAPER_INPUT_PX = 240
COLUMNS = (
    Column(Label("Encoder (M)"), decimals=1, better=""),
    Column(Label("Added (M)"), decimals=1, better=""),
    Column(Label("Latency (ms)"), decimals=1, better="low"),
    Column(Label("Latency / encoder"), better="low"),
)
METRICS = ("encoder_params_m", "added_params_m", "latency_ms", "ratio_to_encoder")
STUBS = ("Shots", "Method", "Encoder", "Input (px)")


class _Place(NamedTuple):
    shots: int
    method: str
    backbone: str
    input_px: int


def efficiency_table(results: Iterable[ResultCell] = ()) -> Table:
    """Parameters in millions and latency; ours stands beside the paper's for the same encoder.

    Metrics of our results: input_px, params (what the method adds), latency_ms_mean,
    latency_ms_std, ratio_to_encoder and, where known, encoder_params.
    """
    published = _published()
    ours = _ours(results, published)
    rows: list[Row] = []
    for shots in sorted({place.shots for place in (*published, *ours)}):
        places = [place for place in {**published, **ours} if place.shots == shots]
        block = [_row(place, ours.get(place, {}), published.get(place, {})) for place in places]
        rows += rank_down(block, COLUMNS)
    title = Label("Parameters and inference time", caveats_for("efficiency", "table"))
    return Table("efficiency", title, STUBS, COLUMNS, tuple(rows))


def _published() -> dict[_Place, dict[str, Number]]:
    found: dict[_Place, dict[str, Number]] = {}
    for cell in load_published():
        if cell.table == "efficiency":
            found.setdefault(_place(cell), {})[cell.metric] = Number(cell.value, cell.std)
    return found


def _place(cell: PublishedCell) -> _Place:
    return _Place(cell.shots, cell.method, cell.backbone, PAPER_INPUT_PX)


def _ours(
    results: Iterable[ResultCell], published: Iterable[_Place]
) -> dict[_Place, dict[str, Number]]:
    theirs = {(place.shots, place.method): place.backbone for place in published}
    found = {}
    for result in under_paper_names("efficiency", results):
        # A result that does not name its encoder is taken to use the paper's.
        backbone = result.backbone or theirs.get((result.shots, result.method), "")
        input_px = int(result.metrics.get("input_px") or PAPER_INPUT_PX)
        found[_Place(result.shots, result.method, backbone, input_px)] = _numbers(result.metrics)
    return found


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, Number]:
    encoder, added = metrics.get("encoder_params"), metrics.get("params")
    values = {
        "encoder_params_m": None if encoder is None else encoder / 1e6,
        "added_params_m": None if added is None else added / 1e6,
        "latency_ms": metrics.get("latency_ms_mean"),
        "ratio_to_encoder": metrics.get("ratio_to_encoder"),
    }
    spread = {"latency_ms": metrics.get("latency_ms_std")}
    return {
        name: Number(value, spread.get(name)) for name, value in values.items() if value is not None
    }


def _row(place: _Place, ours: Mapping[str, Number], published: Mapping[str, Number]) -> Row:
    labels = (
        Label(str(place.shots)),
        Label(place.method, caveats_for("efficiency", "row", place.method)),
        Label(place.backbone),
        Label(str(place.input_px)),
    )
    return Row(labels, tuple(Cell(ours.get(name), published.get(name)) for name in METRICS))
