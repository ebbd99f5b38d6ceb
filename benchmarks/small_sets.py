"""Few-shot results on small real sets in the benchmark's layout, one JSON file per cell.

    python benchmarks/small_sets.py run DATA OUT --shots 4,16 --seeds 0,1,2 --variants full,static
    python benchmarks/small_sets.py table OUT

A cell is domain × shots × seed × variant; seed s takes support draw s. Finished cells are skipped.
Test images are encoded once per domain and shared by all variants that leave the encoder alone.
"""

import json
import sys
import time
from pathlib import Path
from statistics import mean, pstdev

import numpy as np
import torch
import typer

from recap.config import Settings, resolve_settings
from recap.data import Domain, draw_support, find_domains
from recap.encoders.load import load_encoder
from recap.io import read_image, read_mask
from recap.io.resize import SquareResize
from recap.metrics import auroc
from recap.scoring.detector import Detector
from recap.training.fewshot import fit_few_shot
from recap.training.support import load_support

VARIANTS = {
    "full": [],
    "static": ["model.conditioning=static"],
    "write-back": ["preset=paper"],
    "corners": ["model.upsample=corners"],
    "nearest": [],  # fitted on the normal images alone: the encoder's own tokens
}
app = typer.Typer(add_completion=False)


@app.command()
def run(
    data: Path,
    out: Path,
    shots: str = "4,16",
    seeds: str = "0,1,2",
    variants: str = "nearest,full,static",
    domains: str = "",
    override: list[str] = typer.Option([], "--set"),
) -> None:
    """Fit and evaluate every missing cell."""
    out.mkdir(parents=True, exist_ok=True)
    chosen = [d for d in find_domains(data) if not domains or d.name in domains.split(",")]
    for variant in variants.split(","):
        for k in map(int, shots.split(",")):
            for domain in chosen:
                for seed in map(int, seeds.split(",")):
                    file = out / f"{domain.name}-{k}-{seed}-{variant}.json"
                    if not file.exists():
                        cell = run_cell(domain, k, seed, variant, override, out)
                        file.write_text(json.dumps(cell, indent=2) + "\n")
                        print(file.stem, cell["image"], cell.get("pixel", ""), file=sys.stderr)


def run_cell(
    domain: Domain, shots: int, seed: int, variant: str, override: list[str], out: Path
) -> dict:
    """Fit one detector and measure its branches on the domain's test split."""
    overrides = [*VARIANTS[variant], *override, f"seed={seed}"]
    settings = resolve_settings(overrides=overrides)
    support = draw_support(domain, shots, draw=seed)
    samples = support.normal if variant == "nearest" else (*support.normal, *support.abnormal)
    start = time.monotonic()
    detector = fit_few_shot(load_support(samples), settings, device="cpu")
    fitted = time.monotonic()
    result = evaluate(detector, domain, settings, out)
    result["seconds"] = {"fit": fitted - start, "score": time.monotonic() - fitted}
    result["losses"] = detector.card.losses
    return result


@torch.inference_mode()
def evaluate(detector: Detector, domain: Domain, settings: Settings, out: Path) -> dict:
    """Image AUROC of each branch, and pixel AUROC where there are masks."""
    samples = domain.test()
    model = detector.model
    taps = None if model.writes_back else test_taps(domain, settings, out)
    scores: dict[str, list[float]] = {"fused": [], "prototype": [], "memory": []}
    maps: dict[str, list[np.ndarray]] = {"fused": [], "prototype": [], "memory": []}
    drifts = []
    has_masks = any(sample.mask for sample in samples)
    for index, sample in enumerate(samples):
        if taps is None:
            output = detector.raw_output([read_image(sample.path)])
        else:
            prefix = torch.from_numpy(np.array(taps[index : index + 1]))
            output = model.score_tokens(model.adapt(prefix))
        branches = {"fused": output, "prototype": output.prototype, "memory": output.memory}
        for name, branch in branches.items():
            if branch is not None:
                scores[name].append(float(branch.score[0]))
                if has_masks:
                    maps[name].append(branch.map[0].numpy())
        if output.drift is not None:
            drifts.append(output.drift[0].mean().item())
    labels = np.array([sample.abnormal for sample in samples])
    result = {"image": {n: auroc(np.array(s), labels) for n, s in scores.items() if s}}
    if has_masks:
        masks = np.stack([square_mask(s.mask, settings.encoder.input_px) for s in samples])
        result["pixel"] = {n: auroc(np.stack(m), masks) for n, m in maps.items() if m}
    if drifts:
        moved = np.array(drifts)
        result["drift"] = {"normal": moved[~labels].mean(), "abnormal": moved[labels].mean()}
    return result


def test_taps(domain: Domain, settings: Settings, out: Path) -> np.ndarray:
    """The frozen tokens of a domain's test images, encoded once."""
    path = out / f"{domain.name}-{settings.encoder.name.replace('/', '--')}.npy"
    if not path.exists():
        encoder = load_encoder(settings.encoder)
        size = settings.encoder.input_px
        taps = []
        for sample in domain.test():
            image = read_image(sample.path)
            pixels = SquareResize(image.size_hw, size).apply(image.pixels)
            taps.append(encoder.taps(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0].numpy())
        np.save(path.with_suffix(".tmp.npy"), np.stack(taps))
        path.with_suffix(".tmp.npy").rename(path)
    return np.load(path, mmap_mode="r")


def square_mask(path: Path | None, size_px: int) -> np.ndarray:
    """A mask at the metric's size; normal images have an empty one."""
    if path is None:
        return np.zeros((size_px, size_px), bool)
    mask = read_mask(path)
    return SquareResize(mask.shape, size_px).apply_mask(mask)


COLUMNS = {
    "nearest neighbour": ("nearest", "fused"),
    "full": ("full", "fused"),
    "its prototypes": ("full", "prototype"),
    "its memory": ("full", "memory"),
    "static": ("static", "fused"),
    "write-back": ("write-back", "fused"),
}


@app.command()
def table(out: Path) -> None:
    """Print mean ± std over seeds as Markdown, and how many seeds where they are not all."""
    cells: dict[tuple, list[dict]] = {}
    for file in sorted(out.glob("*.json")):
        domain, shots, _, variant = file.stem.split("-", 3)
        cells.setdefault((domain, int(shots), variant), []).append(json.loads(file.read_text()))
    print("| | K | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (2 + len(COLUMNS)))
    for level in ("image", "pixel"):
        for domain, shots in sorted({key[:2] for key in cells}):
            values = [
                [run[level][branch] for run in cells.get((domain, shots, variant), [])]
                for variant, branch in COLUMNS.values()
                if level == "image" or domain_has_masks(cells, domain)
            ]
            if values:
                row = " | ".join(spread(v) for v in values)
                print(f"| {domain}, {level} | {shots} | {row} |")


def domain_has_masks(cells: dict[tuple, list[dict]], domain: str) -> bool:
    return any("pixel" in run for key, runs in cells.items() if key[0] == domain for run in runs)


def spread(values: list[float]) -> str:
    """Mean ± population standard deviation, in per cent."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{100 * values[0]:.1f} (1 seed)"
    few = f" ({len(values)} seeds)" if len(values) < 3 else ""
    return f"{100 * mean(values):.1f} ± {100 * pstdev(values):.1f}{few}"


if __name__ == "__main__":
    app()
