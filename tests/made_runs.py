"""Finished cells, kept maps and summaries, written by hand: a benchmark's folder in no time."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from recap.bench.cells import Cell
from recap.bench.examples import keep_maps
from recap.bench.kept import write_result
from recap.methods.registry import resolve_settings
from recap.metrics import auroc

SIZE = 24


def made_cell(
    method: str, dataset: str, shots: int, seed: int, preset: str | None = None, **model: Any
) -> Cell:
    settings = resolve_settings(preset, method=method, seed=seed, model=model)
    return Cell(method, dataset, shots, settings)


def write_cell(out: Path, cell: Cell, images: int = 40, maps: bool = True) -> None:
    """A result with scores drawn by lot; the prototypes of `recap` move a little."""
    rng = np.random.default_rng(sum(map(ord, cell.name)))
    labels = np.arange(images) % 2 == 1
    scale = 0.3 if cell.method == "nearest" else 1.0
    scores = scale / (1 + np.exp(-rng.normal(2.5 * labels - 1.5, 1.2)))
    moves = cell.method == "recap"
    reach = {"unbounded": 1.2, "bounded": 0.08, "static": 0.0}.get(
        cell.settings.model.conditioning, 0.03
    )
    limit = {"unbounded": 2.0, "bounded": 0.9, "static": 0.0}.get(
        cell.settings.model.conditioning, 0.45
    )
    drift = reach * rng.uniform(0.8, 1.2, (images, 2, 2)) * (1 + 0.1 * labels[:, None, None])
    rows = [
        {
            "file": f"image-{i}.png",
            "abnormal": bool(labels[i]),
            "patient": None,
            "score": float(scores[i]),
            "score_prototype": None,
            "score_memory": None,
            "drift": drift[i].tolist() if moves else None,
        }
        for i in range(images)
    ]
    layers = {
        "normal": np.full((2, 4, 2), reach).tolist() if moves else None,
        "abnormal": np.full((2, 4, 2), 1.1 * reach).tolist() if moves else None,
        "bound": np.full((2, 4, 2), limit).tolist() if moves else None,
    }
    value = auroc(scores, labels)
    if maps:
        _write_pictures(out, cell, rng, scale)
    write_result(
        out,
        cell,
        {
            "metrics": {"image_auroc": value, "pixel_auroc": 0.5 + value / 2},
            "counts": {"normal": int((~labels).sum()), "abnormal": int(labels.sum())},
            "images": rows,
            "drift": layers,
            "seconds": {"fit": 61.0, "score": 9.5},
            "versions": {"recap-ad": "0.1.0", "torch": "2.13.0"},
            "losses": {"loss": 0.1},
            "fingerprint": "0" * 64,
        },
    )


def _write_pictures(out: Path, cell: Cell, rng: np.random.Generator, scale: float) -> None:
    names = ["abnormal/image-1.png", "abnormal/image-3.png", "normal/image-0.png"]
    pictures = rng.integers(0, 255, (3, SIZE, SIZE, 3), np.uint8)
    masks = np.zeros((3, SIZE, SIZE), bool)
    masks[0, 5:12, 6:15] = True  # the second abnormal image has no mask
    (out / "examples").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        out / "examples" / f"{cell.dataset}-0123abcd.npz",
        names=np.array(names),
        pictures=pictures,
        masks=masks,
    )
    maps = rng.uniform(0, 0.3, (3, SIZE, SIZE)) + 0.6 * masks
    keep_maps(out, cell, dict(zip(names, (scale * maps).astype(np.float32), strict=True)))


def write_experiment(out: Path, name: str, variants: dict[str, list[Cell]]) -> None:
    content = {
        "experiment": name,
        "variants": {label: [cell.name for cell in cells] for label, cells in variants.items()},
    }
    folder = out / "experiments"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


def summary_row(variant: str, metric: str, dataset: str = "Brain", **more: Any) -> dict[str, Any]:
    return {
        "experiment": "made",
        "reference": "recap",
        "variant": variant,
        "value": None,
        "dataset": dataset,
        "shots": 4,
        "metric": metric,
        "mean": 0.9,
        "std": 0.01,
        "seeds": 3,
        "delta": None,
        "delta_std": None,
        "delta_low": None,
        "delta_high": None,
        **more,
    }


def write_summary_rows(out: Path, name: str, rows: list[dict[str, Any]]) -> None:
    folder = out / "experiments"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-summary.json").write_text(json.dumps(rows))
