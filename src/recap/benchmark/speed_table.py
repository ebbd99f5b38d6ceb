"""Rows of `recap bench speed`: what one holds, for the screen, and for the paper's table."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, TypedDict

from recap.benchmark.table_cells import ResultCell

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
    """What all rows of one input size share."""

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
        lines += [_encoder_line(same_size[0]), *map(_line, same_size)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    about = (
        f"{first['encoder']}{_random(first)}, {first['device']}, threads: {first['threads']}, "
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


def _encoder_line(row: SpeedRow) -> list[str]:
    spread = f"{row['encoder_ms_mean']:.1f} ± {row['encoder_ms_std']:.1f}"
    median = f"{row['encoder_ms_median']:.1f}"
    return ["bare encoder", "", str(row["input_px"]), "", spread, median, "1.000", "", ""]


def _random(row: SpeedRow) -> str:
    return " (random weights)" if row["settings"]["encoder"]["random_weights"] else ""


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = line
    cells = [name.ljust(widths[0])]
    cells += [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
    return "  ".join(cells).rstrip()
