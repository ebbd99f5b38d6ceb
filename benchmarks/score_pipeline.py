"""What `recap score` takes for a folder of images, as a ratio to the encoder alone.

    python benchmarks/score_pipeline.py DATA [--count 1000] [--workers N] [--batch N]
                                        [--encoder dinov2-small] [--shots 4]

DATA is searched for pictures; `count` of them are scored as PNG files and, made from the same
pixels, as `count` single DICOM slices. Scoring takes turns with the encoder alone over the same
prepared images, as many at a time, a hundred by a hundred, so that a slow minute hits both alike.
Heads and memory are random, which does not change the time, and calibrated on a few of the images,
so that decisions and regions are made too. Peak memory is taken in processes of their own, for
half of the images and for all of them in one run.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Annotated, Any

import torch
import typer
from read_speed import ct_slice

from recap._process import keep_freed_memory
from recap.bench.timed import timed_model
from recap.config import ReadingSettings
from recap.data.cases import Found, find_cases
from recap.encoders.load import load_encoder
from recap.io import read_image
from recap.methods.registry import resolve_settings
from recap.pipeline import side_by_side
from recap.report.writers import OldDicom, Overlays
from recap.results.folder import score_cases
from recap.scoring.calibrate import calibrate
from recap.scoring.detector import Detector
from recap.scoring.fit import assemble
from recap.scoring.predict import fitting_batch, one_core_each

Wanted = dict[str, int | None]
ALLOWED = {"png": 1.15, "dicom": 1.25}
AT_A_TURN = 100
CALIBRATED_ON, FPR = 10, 0.2


def main(
    data: Path,
    count: int = 1000,
    workers: int | None = None,
    batch: int | None = None,
    encoder: str = "dinov2-small",
    shots: int = 4,
    only: Annotated[str, typer.Option(hidden=True)] = "",
    peak: Annotated[bool, typer.Option("--peak", hidden=True)] = False,
) -> None:
    """Print a table; exit with 1 if a ratio is above what is allowed."""
    if only:
        detector, wanted = detector_for(encoder, shots), {"workers": workers, "batch": batch}
        measured = peak_mb if peak else take_turns
        print(json.dumps(measured(data, only, count, wanted, detector)))
        return
    options = [f"--encoder={encoder}", f"--shots={shots}"]
    options += [f"--workers={workers}"] * (workers is not None)
    options += [f"--batch={batch}"] * (batch is not None)
    print(f"{encoder}, {shots}-shot, {count} images, {torch.get_num_threads()} threads; seconds")
    print(
        f"{'':<8}{'score':>9}{'encoder':>9}{'ratio':>8}{'quartiles':>15}{'MB, half':>10}"
        f"{'MB, all':>9}   stages, summed over threads"
    )
    slow = False
    for kind in ALLOWED:
        half, whole = (
            in_a_process(data, kind, n, [*options, "--peak"]) for n in (count // 2, count)
        )
        found = in_a_process(data, kind, count, options)
        score, alone = sum(found["score"]), sum(found["encoder"])
        parts = [own / other for own, other in zip(found["score"], found["encoder"], strict=True)]
        low, _, high = quantiles(parts, n=4) if len(parts) > 1 else (parts[0],) * 3
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found["stages"].items())
        print(
            f"{kind:<8}{score:>9.1f}{alone:>9.1f}{score / alone:>8.3f}"
            f"{f'{low:.2f}–{high:.2f}':>15}{half:>10.0f}{whole:>9.0f}   {stages}",
            flush=True,
        )
        slow |= score / alone > ALLOWED[kind]
    if slow:
        raise typer.Exit(1)


def in_a_process(data: Path, kind: str, count: int, options: Sequence[str]) -> Any:
    """Measure in a process of its own: the peak of its memory is that of the run."""
    command = [sys.executable, __file__, str(data), f"--count={count}", f"--only={kind}", *options]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def peak_mb(data: Path, kind: str, count: int, wanted: Wanted, detector: Detector) -> float:
    """The highest memory of one run over all images."""
    with tempfile.TemporaryDirectory() as folder:
        cases = write_cases(data, kind, count, Path(folder) / "in")
        score(calibrated(detector, cases), cases, Path(folder), wanted)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def take_turns(
    data: Path, kind: str, count: int, wanted: Wanted, detector: Detector
) -> dict[str, Any]:
    """Seconds of scoring and of the encoder alone, for a part of the images after the other."""
    found: dict[str, list[float]] = {"score": [], "encoder": []}
    stages: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        cases = write_cases(data, kind, count, Path(folder) / "in")
        detector = calibrated(detector, cases)
        together = fitting_batch(detector, wanted["batch"])
        for number, start in enumerate(range(0, count, AT_A_TURN)):
            part, root = cases[start : start + AT_A_TURN], Path(folder) / str(number)
            began = time.perf_counter()
            manifest = score(detector, part, root, wanted)
            found["score"].append(time.perf_counter() - began)
            found["encoder"].append(encoder_seconds(detector, part, together))
            stages.update(manifest["stages"])
            shutil.rmtree(root)
    return {**found, "stages": stages}


def score(detector: Detector, cases: Sequence[Found], root: Path, wanted: Wanted) -> dict[str, Any]:
    """What `recap score` does once detector and files are found; returns the manifest."""
    out = root / "out"
    score_cases(detector, cases, out, [Overlays(detector, out), OldDicom(out)], **wanted)
    manifest = json.loads((root / "out" / "manifest.json").read_text())
    if manifest["cases"]["error"]:
        raise RuntimeError(manifest["errors"])
    return manifest


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
    mode = "few-shot" if shots else "zero-shot"
    return assemble(model, mode, settings, [], {}, (0.0, 1.0), "Timed.", model.regime)


def calibrated(detector: Detector, cases: Sequence[Found]) -> Detector:
    files = [case.files[0] for case in cases[:CALIBRATED_ON]]
    return calibrate(detector, files, fpr=FPR).detector


def encoder_seconds(detector: Detector, cases: Sequence[Found], batch: int) -> float:
    """The encoder alone over the same images, prepared beforehand; only it is on the clock."""
    opened = [case.open(ReadingSettings()).images[0] for case in cases]
    as_one = batch if detector.on_gpu else 1
    pixels = torch.stack([detector.preprocess(image) for image in opened]).split(as_one)

    @torch.inference_mode()
    def encode(images: torch.Tensor) -> None:
        encoder = detector.model.encoder
        encoder.compute(images.to(detector.model.device), encoder.layers)

    with one_core_each(detector):
        encode(pixels[0])
        began = time.perf_counter()
        for _ in side_by_side(encode, pixels, 1 if detector.on_gpu else batch):
            pass
        return time.perf_counter() - began


if __name__ == "__main__":
    keep_freed_memory()  # as every command does
    typer.run(main)
