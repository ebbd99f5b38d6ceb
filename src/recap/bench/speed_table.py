"""Rows of `recap bench speed`: for the screen, and in the paper's table of latencies."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypedDict

from recap.bench.published import caveats_for, load_published
from recap.bench.table_cells import ResultCell, under_paper_names
from recap.bench.table_model import (
    Cell,
    Column,
    Label,
    Number,
    Row,
    Table,
    rank_down,
)

METRICS = (
    "input_px",
    "params",
    "encoder_params",
    "latency_ms_mean",
    "latency_ms_std",
    "ratio_to_encoder",
)
HEADS = (
    "method",
    "shots",
    "px",
    "added (M)",
    "mean ± std (ms)",
    "median",
    "/ encoder",
    "quartiles",
    "cpu / encoder",
)


class Circumstances(TypedDict):
    """Facts that all rows of one input size share."""

    input_px: int
    encoder: str
    encoder_params: int
    encoder_ms_mean: float
    encoder_ms_std: float
    encoder_ms_median: float
    device: str
    threads: int
    torch_version: str
    runs: int
    warmup: int
    settings: dict[str, Any]


class SpeedRow(Circumstances):
    """One method at one number of shots and one input size, image by image (batch 1)."""

    method: str
    shots: int
    params: int
    """Trainable parameters that the method adds."""
    latency_ms_mean: float
    latency_ms_std: float
    latency_ms_median: float
    ratio_to_encoder: float
    """Median over the rounds of this method's time by the bare encoder's in the same round."""
    ratio_quartiles: tuple[float, float]
    """Half of the rounds lie between these."""
    cpu_ratio_to_encoder: float | None
    """The same ratio of processor time, which other work on the machine lengthens far less; None
    on a GPU, whose work the processor only waits for."""


def speed_cells(rows: Iterable[SpeedRow]) -> list[ResultCell]:
    """The rows as results for `efficiency_table`."""
    return [
        ResultCell(
            method=row["method"],
            dataset="",
            shots=row["shots"],
            seed=0,
            metrics={name: row[name] for name in METRICS},  # type: ignore[literal-required]
            backbone=row["encoder"],
        )
        for row in rows
    ]


def speed_text(rows: Sequence[SpeedRow]) -> str:
    """The rows in aligned columns, the bare encoder above the methods of its size."""
    first = rows[0]
    lines = [list(HEADS)]
    for _, group in groupby(rows, key=lambda row: row["input_px"]):
        same_size = list(group)
        bare = same_size[0]
        spread = f"{bare['encoder_ms_mean']:.1f} ± {bare['encoder_ms_std']:.1f}"
        times = [spread, f"{bare['encoder_ms_median']:.1f}", "1.000", "", ""]
        lines.append(["bare encoder", "", str(bare["input_px"]), "", *times])
        lines += map(_line, same_size)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    random = " (random weights)" if first["settings"]["encoder"]["random_weights"] else ""
    about = (
        f"{first['encoder']}{random}, {first['device']}, threads: {first['threads']}, "
        f"torch {first['torch_version']}, preset {first['settings']['preset']}, batch 1, "
        f"{first['runs']} rounds after {first['warmup']}"
    )
    return "\n".join([about, *(_aligned(line, widths) for line in lines)])


def _line(row: SpeedRow) -> list[str]:
    (low, high), cpu = row["ratio_quartiles"], row["cpu_ratio_to_encoder"]
    return [
        row["method"],
        str(row["shots"]),
        str(row["input_px"]),
        f"{row['params'] / 1e6:.2f}",
        f"{row['latency_ms_mean']:.1f} ± {row['latency_ms_std']:.1f}",
        f"{row['latency_ms_median']:.1f}",
        f"{row['ratio_to_encoder']:.3f}",
        f"{low:.3f}–{high:.3f}",
        "–" if cpu is None else f"{cpu:.3f}",
    ]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = line
    cells = [name.ljust(widths[0])]
    cells += [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
    return "  ".join(cells).rstrip()


PAPER_INPUT_PX = 240
COLUMNS = (
    Column(Label("Encoder (M)"), decimals=1, better=""),
    Column(Label("Added (M)"), decimals=1, better=""),
    Column(Label("Latency (ms)"), decimals=1, better="low"),
    Column(Label("Latency / encoder"), better="low"),
)
SHOWN_METRICS = ("encoder_params_m", "added_params_m", "latency_ms", "ratio_to_encoder")
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
    published: dict[_Place, dict[str, Number]] = {}
    for cell in load_published():
        if cell.table == "efficiency":
            place = _Place(cell.shots, cell.method, cell.backbone, PAPER_INPUT_PX)
            published.setdefault(place, {})[cell.metric] = Number(cell.value, cell.std)
    ours = _ours(results, published)
    rows: list[Row] = []
    for shots in sorted({place.shots for place in (*published, *ours)}):
        places = [place for place in {**published, **ours} if place.shots == shots]
        block = []
        for place in places:
            method = Label(place.method, caveats_for("efficiency", "row", place.method))
            rest = (Label(place.backbone), Label(str(place.input_px)))
            own, theirs = ours.get(place, {}), published.get(place, {})
            cells = tuple(Cell(own.get(name), theirs.get(name)) for name in SHOWN_METRICS)
            block.append(Row((Label(str(shots)), method, *rest), cells))
        rows += rank_down(block, COLUMNS)
    title = Label("Parameters and inference time", caveats_for("efficiency", "table"))
    return Table("efficiency", title, STUBS, COLUMNS, tuple(rows))


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
