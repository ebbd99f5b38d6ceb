"""What `recap score` takes for a folder of images, as a ratio to the encoder alone.

    python benchmarks/score_pipeline.py DATA [--count 1000] [--workers N] [--batch N]
                                        [--encoder dinov2-small] [--shots 4]

DATA is searched for pictures; `count` of them are scored as PNG files and, made from the same
pixels, as `count` single DICOM slices. Encoder-only time is that of the encoder over the same
prepared images, as many at a time, in the same process right after. Heads and memory are random,
which does not change the time, and calibrated on a few of the images, so that decisions and
regions are made too. Peak memory is taken in a process of its own for half of the images and for
all of them.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from read_speed import ct_slice

from recap.allocator import keep_freed_memory
from recap.benchmark.timed import timed_model
from recap.cli.score_run import Wanted, score_with
from recap.config import ReadingSettings, resolve_settings
from recap.data.cases import Found, find_cases
from recap.encoders.load import load_encoder
from recap.io import read_image
from recap.scoring.calibrate import calibrate
from recap.scoring.detector import Detector
from recap.scoring.pipeline import ahead
from recap.scoring.prepared import fitting_batch, one_core_each
from recap.training.assemble import assemble

ALLOWED = {"png": 1.15, "dicom": 1.25}
WARM_UP = 3
PREPARED_BEFOREHAND = 100
CALIBRATED_ON, FPR = 10, 0.2


def main(
    data: Path,
    count: int = 1000,
    workers: int | None = None,
    batch: int | None = None,
    encoder: str = "dinov2-small",
    shots: int = 4,
    only: Annotated[str, typer.Option(hidden=True)] = "",
    half: Annotated[bool, typer.Option("--half", hidden=True)] = False,
) -> None:
    """Print a table; exit with 1 if a ratio is above what is allowed."""
    if only:
        wanted = Wanted(workers=workers, batch=batch)
        print(
            json.dumps(measure(data, only, count, wanted, detector_for(encoder, shots), not half))
        )
        return
    options = [f"--encoder={encoder}", f"--shots={shots}"]
    options += [f"--workers={workers}"] * (workers is not None)
    options += [f"--batch={batch}"] * (batch is not None)
    print(f"{encoder}, {shots}-shot, {count} images, {torch.get_num_threads()} threads; seconds")
    print(f"{'':<8}{'score':>9}{'encoder':>9}{'ratio':>8}{'MB, half':>10}{'MB, all':>9}   stages")
    slow = False
    for kind in ALLOWED:
        part = in_a_process(data, kind, count // 2, [*options, "--half"])
        found = in_a_process(data, kind, count, options)
        ratio = found["score"] / found["encoder"]
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found["stages"].items())
        print(
            f"{kind:<8}{found['score']:>9.2f}{found['encoder']:>9.2f}{ratio:>8.3f}"
            f"{part['peak_mb']:>10.0f}{found['peak_mb']:>9.0f}   {stages}",
            flush=True,
        )
        slow |= ratio > ALLOWED[kind]
    if slow:
        raise typer.Exit(1)


def in_a_process(data: Path, kind: str, count: int, options: Sequence[str]) -> dict[str, Any]:
    """Measure in a process of its own: the peak of its memory is that of the run."""
    command = [sys.executable, __file__, str(data), f"--count={count}", f"--only={kind}", *options]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def measure(
    data: Path, kind: str, count: int, wanted: Wanted, detector: Detector, encode: bool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cases = write_cases(data, kind, count, root / "in")
        detector = calibrated(detector, cases)
        started = time.perf_counter()
        score_with(detector, root, cases, root / "out", wanted, lambda *step: None)
        score = time.perf_counter() - started
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        manifest = json.loads((root / "out" / "manifest.json").read_text())
        if manifest["cases"]["error"]:
            raise RuntimeError(manifest["errors"])
        together = fitting_batch(detector, wanted.batch)
        seconds = encoder_seconds(detector, cases, together) if encode else 0.0
    return {"score": score, "encoder": seconds, "peak_mb": peak_mb, "stages": manifest["stages"]}


def write_cases(data: Path, kind: str, count: int, folder: Path) -> tuple[Found, ...]:
    """Copies of the first pictures, or DICOM slices with their pixels."""
    # Masks are pictures too, but not what anybody scores.
    found = (f for f in sorted(data.rglob("*.png")) if "mask" not in f.parent.name)
    files = [file for file, _ in zip(found, range(count), strict=False)]
    if len(files) < count:
        raise typer.BadParameter(f"{data} has {len(files)} pictures, not {count}.")
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        if kind == "png":
            shutil.copy(file, folder / f"{number:05d}.png")
        else:
            write_slice(file, folder / f"{number:05d}.dcm")
    return find_cases([folder], folder).cases


def write_slice(picture: Path, path: Path) -> None:
    pixels = read_image(picture).pixels
    grey = pixels if pixels.ndim == 2 else pixels.mean(axis=2)
    ct_slice((grey * 2500).round().astype("<u2")).save_as(path, enforce_file_format=True)


def detector_for(encoder: str, shots: int) -> Detector:
    settings = resolve_settings(encoder={"name": encoder, "random_weights": True})
    model = timed_model("recap", load_encoder(settings.encoder), settings, shots)
    return assemble(model, "few-shot" if shots else "zero-shot", settings, [], {}, (0.0, 1.0))


def calibrated(detector: Detector, cases: Sequence[Found]) -> Detector:
    files = [case.files[0] for case in cases[:CALIBRATED_ON]]
    return calibrate(detector, files, fpr=FPR).detector


def encoder_seconds(detector: Detector, cases: Sequence[Found], batch: int) -> float:
    """The encoder alone over the same images, prepared beforehand; only it is on the clock."""
    reading, seconds = ReadingSettings(), 0.0
    as_one = batch if detector.on_gpu else 1
    side_by_side = 0 if detector.on_gpu or batch == 1 else batch

    @torch.inference_mode()
    def encode(pixels: torch.Tensor) -> None:
        detector.model.encoder.compute_taps(pixels.to(detector.model.device))

    with one_core_each(detector):
        for start in range(0, len(cases), PREPARED_BEFOREHAND):
            opened = [c.open(reading).images[0] for c in cases[start : start + PREPARED_BEFOREHAND]]
            pixels = torch.stack([detector.preprocess(image) for image in opened]).split(as_one)
            for one in pixels[: WARM_UP if start == 0 else 0]:
                encode(one)
            began = time.perf_counter()
            for _ in ahead(encode, pixels, side_by_side, batch + 1):
                pass
            seconds += time.perf_counter() - began
    return seconds


if __name__ == "__main__":
    keep_freed_memory()  # as every command does
    typer.run(main)
