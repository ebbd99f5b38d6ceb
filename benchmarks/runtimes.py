"""The whole detector through every runtime, as ratios to torch eager in the same run.

    python benchmarks/runtimes.py [--encoder NAME] [--shots 4] [--preset recap] [--int8]
                                  [--threads N] [--runs 20] [--plain-memory]

Every runtime takes one image on all cores, as `recap.load` and the service do, and one image on
each core, as `recap score` does; times are per image. Runtimes take turns, so that a slow moment
hits all alike. What is timed turns pixels at the input size into score, map and all else. Weights
and memories are random, which does not change the time. The change of int8's scores is that of a
random detector; measure a real one with `recap export --int8` and `recap evaluate`.
`--plain-memory` leaves the C library's allocator as it is, for torch as it comes: commands keep
freed memory, which makes torch itself faster.
"""

import time
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer

from recap._process import keep_freed_memory
from recap.bench.speed import time_rounds
from recap.bench.timed import timed_model
from recap.data import write_phantoms
from recap.encoders.load import load_encoder
from recap.methods.registry import resolve_settings
from recap.runtime.choose import choose_runtime
from recap.runtime.engines import machine_facts
from recap.runtime.export import export_bundle
from recap.scoring.arrays import Runtime
from recap.scoring.detector import Detector
from recap.scoring.fit import assemble
from recap.scoring.predict import one_core_each
from recap.types import FloatArray


def main(
    encoder: str = "dinov2-small",
    shots: int = 4,
    preset: str = "recap",
    int8: bool = False,
    threads: int | None = None,
    runs: int = 20,
    warmup: int = 3,
    plain_memory: Annotated[bool, typer.Option("--plain-memory")] = False,
) -> None:
    """Print a table."""
    if not plain_memory:
        keep_freed_memory()  # as every command does
    settings = resolve_settings(preset, encoder={"name": encoder, "random_weights": True})
    model = timed_model("recap", load_encoder(settings.encoder), settings, shots)
    mode = "few-shot" if shots else "zero-shot"
    detector = assemble(model, mode, settings, [], {}, (0.0, 1.0), "Timed.", model.regime)
    size = settings.encoder.input_px
    with TemporaryDirectory(prefix="recap-") as scratch:
        runtimes = make_runtimes(detector, Path(scratch), int8, threads)
        pixels = np.random.default_rng(0).random((1, 3, size, size), np.float32)
        with ThreadPoolExecutor() as pool:
            calls = {
                name: partial(run, runtime, pixels, pool, detector)
                for name, runtime in runtimes.items()
            }
            laps = time_rounds(calls, runs, warmup)
    print(", ".join(f"{name} {value}" for name, value in machine_facts().items()))
    print(
        f"{encoder}, {size} px, {preset}, {shots}-shot, threads {threads or 'all'}, {runs} rounds"
    )
    print(f"{'':<30}{'ms (best)':>12}{'× torch (median)':>20}{'× torch (best)':>18}")
    times = {name: [lap.wall_ms / runtimes[name].lanes for lap in laps[name]] for name in laps}
    for name, own in times.items():
        middle = median(ms / torch for ms, torch in zip(own, times["torch"], strict=True))
        fastest = min(own) / min(times["torch"])
        print(f"{name:<30}{min(own):>12.1f}{middle:>20.2f}{fastest:>18.2f}")


def run(runtime: Runtime, pixels: FloatArray, pool: Executor, detector: Detector) -> None:
    """One image, or one for each of its lanes."""
    if runtime.lanes == 1:
        runtime.run(pixels)
        return
    with one_core_each(detector):
        list(pool.map(runtime.run, [pixels] * runtime.lanes))


def make_runtimes(
    detector: Detector, scratch: Path, int8: bool, threads: int | None
) -> dict[str, Runtime]:
    """torch and every graph, made in a bundle for the while."""
    bundle, images = scratch / "timed.recap", None
    detector.save(bundle)
    if int8:
        (domain,) = write_phantoms(scratch / "images", pool=8, test=1, domains=["Brain"])
        images = domain.root / "valid" / "good"
    runtimes: dict[str, Runtime] = {}

    def add(name: str) -> None:
        runtimes[name] = choose_runtime(detector, name, bundle, threads)
        together = choose_runtime(detector, name, bundle, threads, side_by_side=True)
        if together.lanes > 1:
            runtimes[f"{name}, one per core"] = together

    add("torch")
    for name in ("onnx", "openvino", *(["openvino-int8"] if int8 else [])):
        start = time.perf_counter()
        calibration = images if name.endswith("int8") else None
        record = export_bundle(detector, bundle, name.partition("-")[0], calibration)
        seconds = time.perf_counter() - start
        differs = f"largest difference of a score {record.largest_difference['score']:.1e}"
        print(f"{name}: exported in {seconds:.0f} s, {differs}")
        add(name)
    return runtimes


if __name__ == "__main__":
    typer.run(main)
