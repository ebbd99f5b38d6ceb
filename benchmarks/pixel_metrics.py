"""All pixel metrics of a whole test split in one pass, and PRO against its literal loop.

    OMP_NUM_THREADS=1 python benchmarks/pixel_metrics.py [--images 3715] [--compared 300]

Maps and masks are drawn image by image, 240×240: `smooth` maps are a 17×17 grid of scores, noisy
and higher in the lesions, enlarged like those of a detector; `saturated` ones the same at a
softmax so steep that most pixels are 0 or 1; in `noise` every pixel has a value of its own, which
is the worst for memory. Each part runs in a process of its own, so that its peak memory is its own.

The literal loop is the one that papers of this family use: 200 thresholds, and at each of them
the regions of all masks are looked for anew. It is run whole, on the same maps; time is compared
as CPU seconds of one process.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import typer
from scipy import ndimage
from scipy.special import expit
from sklearn.metrics import auc, roc_auc_score

from recap.metrics import PixelMetrics, aupro, auroc, average_precision, f1_max, pro

SIZE_PX = 240
GRID = 17
ABNORMAL_SHARE = 3075 / 3715
MEMORY_LIMIT_GB = 3.0
LEAST_RATIO = 50.0
KINDS = {"smooth": 2.0, "saturated": 60.0, "noise": 0.0}

Image = tuple[np.ndarray, np.ndarray]


def main(images: int = 3715, compared: int = 300) -> None:
    """Print the figures; exit with 1 if one of them is not as it must be."""
    good = True
    for kind in KINDS:
        good &= apart(stream, kind, images)
    for kind in ("smooth", "saturated"):
        good &= apart(compare, kind, compared)
    if not good:
        raise typer.Exit(1)


def apart(part: Callable[[str, int], bool], kind: str, images: int) -> bool:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(part, (kind, images))


def stream(kind: str, images: int) -> bool:
    """One pass over all images, none of which is kept."""
    metrics = PixelMetrics()
    drawing = updating = 0.0
    source = draw(kind, images)
    while True:
        (pair, drawn) = timed(lambda: next(source, None))
        drawing += drawn
        if pair is None:
            break
        updating += timed(lambda pair=pair: metrics.update(*pair))[1]
    result, computing = timed(metrics.compute)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"\n{kind}: {images} images, {images * SIZE_PX**2 / 1e6:.0f} M pixels")
    print("  " + ", ".join(f"{name} {value}" for name, value in shown(result).items()))
    print(f"  error at most {metrics.error_bound:.1e}; peak memory {peak_gb:.2f} GiB")
    ratio = (updating + computing) / drawing
    print(
        f"  CPU: update {updating:.0f} s, compute {computing:.0f} s; {ratio:.1f} × drawing",
        flush=True,
    )
    return peak_gb < MEMORY_LIMIT_GB and metrics.error_bound <= 1e-5


def compare(kind: str, images: int) -> bool:
    """The quick forms beside the literal loop and scikit-learn, on maps held in memory."""
    pairs = list(draw(kind, images))
    maps, masks = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
    literal, slow = timed(lambda: literal_pro(maps, masks))
    quick, fast = min((timed(lambda: pro(maps, masks)) for _ in range(3)), key=lambda run: run[1])
    metrics = PixelMetrics()
    _, streaming = timed(lambda: metrics.update(maps, masks))
    streamed, computing = timed(metrics.compute)
    exact = {
        "auroc": auroc(maps, masks),
        "f1_max": f1_max(maps, masks),
        "ap": average_precision(maps, masks),
        "pro": quick,
        "aupro_0.3": aupro(maps, masks),
    }
    worst = max(abs(streamed[name] - value) for name, value in exact.items())
    area = partial_area(maps, masks)
    print(f"\n{kind}: PRO of {images} images, {masks_regions(masks)} regions")
    print(f"  literal loop {literal:.12f}, pro {quick:.12f}: {abs(literal - quick):.0e} apart")
    print(f"  aupro {exact['aupro_0.3']:.12f}, scikit-learn's partial area {area:.12f}")
    print(f"  streaming and pure functions at most {worst:.0e} apart")
    print(f"  CPU: literal {slow:.1f} s, pro {fast:.2f} s: {slow / fast:.0f} times as fast")
    every = streaming + computing
    print(f"  all five metrics, streaming: {every:.2f} s, {slow / every:.0f} times", flush=True)
    close = max(abs(literal - quick), abs(area - exact["aupro_0.3"]), worst) < 1e-9
    return close and slow / fast >= LEAST_RATIO


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return run(), time.process_time() - start


def shown(result: dict[str, float | None]) -> dict[str, str]:
    return {k: "undefined" if v is None else f"{v:.6f}" for k, v in result.items()}


def draw(kind: str, images: int) -> Iterator[Image]:
    for number in range(images):
        rng = np.random.default_rng([images, number])
        mask = draw_mask(rng) if rng.random() < ABNORMAL_SHARE else np.zeros((SIZE_PX,) * 2, bool)
        yield draw_map(rng, mask, KINDS[kind]), mask


def draw_mask(rng: np.random.Generator) -> np.ndarray:
    """One to four ellipses of 3 to 25 pixels radius."""
    rows, columns = np.ogrid[:SIZE_PX, :SIZE_PX]
    mask = np.zeros((SIZE_PX, SIZE_PX), bool)
    for _ in range(rng.integers(1, 5)):
        (row, column), (a, b) = rng.uniform(30, SIZE_PX - 30, 2), rng.uniform(3, 25, 2)
        mask |= ((rows - row) / a) ** 2 + ((columns - column) / b) ** 2 <= 1
    return mask


def draw_map(rng: np.random.Generator, mask: np.ndarray, steepness: float) -> np.ndarray:
    if not steepness:
        return (rng.normal(size=mask.shape) + 2 * mask).astype(np.float32)
    lesion = ndimage.zoom(mask.astype(np.float32), GRID / SIZE_PX, order=1)
    grid = rng.normal(size=(GRID, GRID)) + 3 * lesion - 1.5
    logits = ndimage.zoom(grid.astype(np.float32), SIZE_PX / GRID, order=1)
    return expit(steepness * logits).astype(np.float32)


def literal_pro(maps: np.ndarray, masks: np.ndarray) -> float:
    low, high = maps.min(), maps.max()
    overlaps, fprs = [], []
    for threshold in np.arange(low, high, (high - low) / 200):
        called = maps > threshold
        found = []
        for binary, mask in zip(called, masks, strict=True):
            labels, _ = ndimage.label(mask, structure=np.ones((3, 3)))
            for number, window in enumerate(ndimage.find_objects(labels), start=1):
                region = labels[window] == number
                found.append(binary[window][region].sum() / region.sum())
        overlaps.append(np.mean(found))
        fprs.append(np.logical_and(~masks, called).sum() / (~masks).sum())
    kept = np.array(fprs) < 0.3
    x = np.array(fprs)[kept]
    return auc((x - x.min()) / (x.max() - x.min()), np.array(overlaps)[kept])


def partial_area(maps: np.ndarray, masks: np.ndarray, limit: float = 0.3) -> float:
    """`aupro` as scikit-learn's partial ROC area, pixels weighing one over their region's area."""
    weights = np.ones(masks.shape)
    for weight, mask in zip(weights, masks, strict=True):
        labels, _ = ndimage.label(mask, structure=np.ones((3, 3)))
        weight[mask] = 1 / np.bincount(labels.ravel())[labels[mask]]
    arrays = masks.ravel(), maps.ravel()
    standardised = roc_auc_score(*arrays, sample_weight=weights.ravel(), max_fpr=limit)
    least = limit**2 / 2
    return (least + (2 * standardised - 1) * (limit - least)) / limit


def masks_regions(masks: np.ndarray) -> int:
    return sum(ndimage.label(mask, structure=np.ones((3, 3)))[1] for mask in masks)


if __name__ == "__main__":
    typer.run(main)
