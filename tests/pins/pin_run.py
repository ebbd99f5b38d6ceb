"""Fits, scores and calibrates detectors of every kind, and notes all that came of it.

    python tests/pins/pin_run.py WORK FOLDER > notes.json

WORK holds the inputs (`pin_inputs.py`), and FOLDER, within it, takes what is made. Only commands
and `recap.load` are used, so that this runs on every tree of recap, however its modules move.
"""

import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIDE = "fast"
"""The preset with side adapters and two branches."""
BRAIN = "data/Brain_AD/valid"
NORMAL = ("--normal", f"{BRAIN}/good/img")
ABNORMAL = ("--abnormal", f"{BRAIN}/Ungood/img")
MASKS = ("--masks", f"{BRAIN}/Ungood/anomaly_mask")
OTHERS = ("--sources", "data", "--target", "Brain")
FEW = (*NORMAL, *ABNORMAL, *MASKS)
CALIBRATION = (
    *("--normal", "data/Brain_AD/test/good/img", "--normal", "data/Liver_AD/test/good/img"),
    *("--abnormal", "data/Brain_AD/test/Ungood/img", "--fpr", "0.2"),
)


def _set(**values: Any) -> tuple[str, ...]:
    return tuple(
        part for k, v in values.items() for part in ("--set", f"{k.replace('__', '.')}={v}")
    )


# Copies are shifted by a twentieth of the square: half a pixel of 70 would round either way.
_PX = _set(encoder__input_px=84, reading__slide_tile_px=64)
_DINO = ("--encoder", "encoders/dino", *_PX)
_CLIP = ("--encoder", "encoders/clip", *_PX)
_RESNET = ("--encoder", "encoders/resnet", *_set(encoder__input_px=96, reading__slide_tile_px=64))
# Two steps of training: each further one makes more of what processors round otherwise.
_COPIES = (*_DINO, *_set(training__epochs=1, training__batch_size=22))
_TWICE = (*_DINO, *_set(training__epochs=2, training__augment="false"))
_SOFT = _set(model__logit_scale=10)  # otherwise such scores are all 0 or 1
_STEPS = _set(options__epochs=1, options__batch_size=22)
_DRA = _set(options__steps=2, options__copies="false")

FITS: dict[str, tuple[str, ...]] = {
    "masks": (*FEW, *_COPIES),
    "labels": (*NORMAL, *ABNORMAL, *_TWICE),
    "normals": (*NORMAL, *_TWICE),
    "nearest": ("--method", "nearest", *NORMAL, *_TWICE),
    "others": (*OTHERS, *_TWICE),
    "side": ("--preset", SIDE, *FEW, *_COPIES),
    "side-others": ("--preset", SIDE, *OTHERS, *_TWICE, *_SOFT),
    "static": ("--method", "static", "--preset", SIDE, *FEW, *_TWICE),
    "paper": ("--preset", "paper", *FEW, *_TWICE),
    "paper-others": ("--preset", "paper", *OTHERS, *_TWICE, *_SOFT),
    "patchcore": ("--method", "patchcore", *FEW, *_CLIP, *_set(options__coreset=0.5)),
    "anomalydino": ("--method", "anomalydino", *FEW, *_CLIP),
    "mediclip": ("--method", "mediclip", *FEW, *_CLIP, *_STEPS, *_set(options__variants=2)),
    "dra": ("--method", "dra", *FEW, *_RESNET, *_STEPS, *_DRA),
    **{
        f"{method}-others" if others else method: (
            "--method",
            method,
            *(others or FEW),
            *_CLIP,
            *_STEPS,
        )
        for method in ("visualad", "uniadet", "april_gan", "mvfa", "madclip")
        for others in ((), OTHERS)
        if not (others and method in ("uniadet", "madclip"))
    },
}
"""`recap fit` for every kind of detector, on two images of either class or two other domains."""


def run(*arguments: str) -> str:
    """Run a command in this process as `python -m recap` would; returns what it printed."""
    printed, told = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["recap", *arguments]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
            runpy.run_module("recap", run_name="__main__")
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    if code:
        raise RuntimeError(f"recap {' '.join(arguments)}: exit {code}\n{told.getvalue()}")
    return printed.getvalue()


def make(work: Path, folder: str) -> dict[str, dict[str, Any]]:
    """Make everything below `work`, with that as working directory: names stay the same.

    Returns notes by topic: `cards`, `scores` and `metrics`.
    """
    with _working_in(work):
        bundles = {name: f"{folder}/bundles/{name}" for name in [*FITS, "calibrated"]}
        for name, options in FITS.items():
            run("fit", *options, "--out", bundles[name])
        run("calibrate", bundles["labels"], "--out", bundles["calibrated"], *CALIBRATION)
        run("score", *bundles.values(), "cases", "--out", f"{folder}/results")
        measured = f"{folder}/metrics.json"
        run("evaluate", bundles["masks"], "data/Brain_AD", "--json", measured)
        return {
            "cards": {name: _card(Path(bundle)) for name, bundle in bundles.items()},
            "scores": {name: _results(Path(folder, "results", name)) for name in bundles},
            "metrics": {"masks": json.loads(Path(measured).read_text(encoding="utf-8"))},
        }


@contextlib.contextmanager
def _working_in(work: Path) -> Iterator[None]:
    """Go there, and keep out of the user's cache."""
    before, cache = Path.cwd(), os.environ.get("RECAP_CACHE")
    os.chdir(work)
    os.environ["RECAP_CACHE"] = "cache"
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("RECAP_CACHE")
        if cache is not None:
            os.environ["RECAP_CACHE"] = cache


def _card(bundle: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    return {**card, "files": _digests(bundle)}


def _results(out: Path) -> dict[str, Any]:
    """All that a scored folder says of each case, and the bytes of its maps."""
    cases = {}
    for row in _table(out / "scores.csv"):
        case: dict[str, Any] = {column: value for column, value in row.items() if value}
        for column in ("table", "regions_table"):
            if row[column]:
                case[column] = [",".join(line.values()) for line in _table(out / row[column])]
        case["map"] = _map(out / row["map"])
        cases[row["case"]] = case
    return cases


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _map(path: Path) -> dict[str, Any]:
    """A map in a few numbers: what lies where, and its digest."""
    if path.suffix == ".npy":
        values, place = np.load(path), None
    else:
        import nibabel

        volume: Any = nibabel.load(path)
        values, place = np.asarray(volume.dataobj), volume.affine.ravel().tolist()
    halves = [np.array_split(np.arange(length), 2) for length in values.shape]
    blocks = [values[np.ix_(*block)] for block in itertools.product(*halves)]
    return {
        "shape": list(values.shape),
        "affine": place,
        "range": [float(values.min()), float(values.max())],
        "blocks": [float(block.mean(dtype=np.float64)) for block in blocks],
        "sha256": hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest(),
    }


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


if __name__ == "__main__":
    print(json.dumps(make(Path(sys.argv[1]), sys.argv[2])))
