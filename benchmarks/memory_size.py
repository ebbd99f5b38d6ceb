"""What a smaller memory costs in accuracy: AUROC of a fitted detector against its memory's rows.

    python benchmarks/memory_size.py DATASET BUNDLE... [--rows 64,128,256,512] [--taps FOLDER]

Greedy k-centre chooses the rows (`memory.coreset`); its choices are nested, so the largest is made
once and the smaller ones are its beginnings. Nothing is fitted again. Several bundles (seeds) give
mean and spread.
"""

from pathlib import Path
from statistics import fmean, pstdev
from tempfile import TemporaryDirectory

import torch
import typer
from torch import Tensor

import recap
from recap.bench.cells import parse_numbers
from recap.data.benchmark import read_domain
from recap.encoders.memo import Memo
from recap.methods.recap.memory import k_centre
from recap.scoring.detector import Detector
from recap.scoring.evaluate import measure
from recap.types import Sample


def main(
    dataset: Path,
    bundles: list[Path],
    rows: str = "64,128,256,512,1024",
    taps: Path | None = None,
) -> None:
    """Print one line per size; `taps` is a folder for encoded images, such as a benchmark's own."""
    samples = read_domain(dataset).test()
    found: dict[int, list[dict[str, float]]] = {}
    with TemporaryDirectory(prefix="recap-") as scratch:
        for bundle in bundles:
            detector = recap.load(bundle)
            detector.model.encoder.memo = Memo(taps or Path(scratch))  # encoded once for all sizes
            for count, metrics in metrics_by_size(detector, samples, parse_numbers(rows)).items():
                found.setdefault(count, []).append(metrics)
    print(f"{dataset.name}, {len(bundles)} detectors")
    for count, several in sorted(found.items()):
        columns = [
            f"{name} {100 * fmean(m[name] for m in several):.1f}"
            f" ± {100 * pstdev([m[name] for m in several]):.1f}"
            for name in several[0]
        ]
        print(f"{count:>7} rows   " + "   ".join(columns))


def metrics_by_size(
    detector: Detector, samples: list[Sample], sizes: list[int]
) -> dict[int, dict[str, float]]:
    """Metrics with each number of rows that is smaller than the memory, and with all."""
    whole: Tensor = detector.model.memory
    smaller = [size for size in sizes if size < whole.shape[2]]
    order = [[k_centre(rows, max(smaller, default=1)) for rows in layer] for layer in whole]
    found = {whole.shape[2]: metrics_of(detector, samples)}
    for size in smaller:
        chosen = [
            torch.stack([rows[first[:size]] for rows, first in zip(layer, orders, strict=True)])
            for layer, orders in zip(whole, order, strict=True)
        ]
        detector.model.memory = torch.stack(chosen)
        found[size] = metrics_of(detector, samples)
    return found


def metrics_of(detector: Detector, samples: list[Sample]) -> dict[str, float]:
    """The fused detector, and its memory branch alone."""
    from recap.metrics import auroc

    measured = measure(detector, samples)
    labels = [sample.abnormal for sample in samples]
    alone = [float(output.memory.score[0]) for output in measured.outputs]
    metrics = {"image": measured.image["auroc"], "memory alone": auroc(alone, labels)}
    return metrics | ({"pixel": measured.pixel["auroc"]} if measured.pixel else {})


if __name__ == "__main__":
    typer.run(main)
