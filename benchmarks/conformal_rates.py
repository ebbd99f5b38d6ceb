"""False-positive rates on held-out normal images against what the calibration promises.

    python benchmarks/conformal_rates.py measure DATA OUT [--shots 16] [--taps FOLDER]
    python benchmarks/conformal_rates.py table OUT [--splits 20000]

`measure` fits a detector per domain on normal pool images alone (nothing is trained) and scores
every other normal image of pool and test once. `table` then splits these scores at random into
calibration and held-out images, again and again; exits with 1 if a mean rate exceeds its promise.
"""

import json
import sys
from pathlib import Path

import numpy as np
import typer

from recap._files import write_atomic
from recap.data import Domain, draw_support, find_domains
from recap.data.patients import patient_of
from recap.data.support import load_support
from recap.encoders.load import load_encoder
from recap.encoders.memo import Memo
from recap.errors import SettingsError
from recap.io import read_image
from recap.methods.registry import resolve_settings
from recap.scoring.conformal import allowed_rank, images_needed, threshold_at
from recap.scoring.fit import fit_support
from recap.scoring.regions import reaches

RATES = (0.01, 0.05, 0.10)
app = typer.Typer(add_completion=False)


@app.command()
def measure(data: Path, out: Path, shots: int = 16, taps: Path | None = None) -> None:
    """Score the normal images of every domain that has no result yet."""
    settings = resolve_settings(training={"made_up_lesions": False})
    encoder = load_encoder(settings.encoder)
    encoder.memo = None if taps is None else Memo(taps)
    for domain in find_domains(data):
        file = out / f"{domain.name}.json"
        if not file.exists():
            support = draw_support(domain, shots).normal
            detector = fit_support(load_support(support), settings, device="cpu", encoder=encoder)
            rows = [_row(detector, domain, *item) for item in _others(domain, support)]
            write_atomic(file, json.dumps(rows, indent=1) + "\n")
            print(domain.name, len(rows), file=sys.stderr)


def _others(domain: Domain, support) -> list[tuple[str, Path]]:
    taken = {sample.path for sample in support}
    splits = {"pool": domain.pool(), "test": domain.test()}
    return [
        (name, sample.path)
        for name, samples in splits.items()
        for sample in samples
        if not sample.abnormal and sample.path not in taken
    ]


def _row(detector, domain: Domain, split: str, path: Path) -> dict:
    prediction = detector.score(read_image(path))
    return {
        "file": path.name,
        "split": split,
        "patient": patient_of(path, domain.name) or path.name,
        "score": prediction.score,
        "map_maximum": float(prediction.map.max()),
        "in_domain": prediction.decision.in_domain,
    }


@app.command()
def table(out: Path, splits: int = 20_000, seed: int = 0) -> None:
    """Mean rates over random splits, as a Markdown table."""
    head = ["domain", "calibrated on / held out", "promise", "called abnormal", "95 % of splits"]
    head += ["expected 95 %", "with any region", "split by patient", "pool → test"]
    print("| " + " | ".join(head) + " |", "|" + "---|" * len(head), sep="\n")
    broken = False
    for file in sorted(out.glob("*.json")):
        rows = json.loads(file.read_text())
        for rate in RATES:
            line, within = _line(file.stem, rows, rate, splits, np.random.default_rng(seed))
            print("| " + " | ".join(line) + " |")
            broken |= not within
    raise SystemExit(int(broken))


def _line(name: str, rows: list[dict], rate: float, splits: int, rng) -> tuple[list[str], bool]:
    scores = np.array([row["score"] for row in rows])
    maxima = np.array([row["map_maximum"] for row in rows], np.float32)  # as maps are
    # Half of the images; where that is too few for 1 %, as many as that takes.
    n = max(len(rows) // 2, images_needed(RATES[0]))
    drawn = [rng.permutation(len(rows)) < n for _ in range(splits)]
    called = np.array([_rate(scores, chosen, rate) for chosen in drawn])
    regions = np.array([_region_rate(maxima, chosen, rate) for chosen in drawn])
    # The splits share their images, so their mean is as sure as that many draws make it.
    slack = 3 * max(called.std(), regions.std()) / splits**0.5
    low, high = np.quantile(called, [0.025, 0.975])
    expected = _expected_range(n, len(rows) - n, rate, rng)
    people = np.array([row["patient"] for row in rows])
    pool = np.array([row["split"] == "pool" for row in rows])
    cells = [
        f"{name} ({len(set(people))} patients)",
        f"{n} / {len(rows) - n}",
        f"≤ {rate:.0%}",
        f"{called.mean():.2%}",
        f"{low:.1%}–{high:.1%}",
        f"{expected[0]:.1%}–{expected[1]:.1%}",
        f"{regions.mean():.2%}",
        _by_patient(scores, people, rate, splits, rng),
        _shown(scores, pool, rate),
    ]
    return cells, max(called.mean(), regions.mean()) <= rate + slack


def _rate(scores: np.ndarray, calibrating: np.ndarray, rate: float) -> float:
    threshold = threshold_at(np.sort(scores[calibrating]).tolist(), rate)
    return float(np.mean(scores[~calibrating] >= threshold))


def _region_rate(maxima: np.ndarray, calibrating: np.ndarray, rate: float) -> float:
    """How many held-out maps have a region, decided as regions are."""
    level = threshold_at(np.sort(maxima[calibrating]).tolist(), rate)
    return float(np.mean(reaches(maxima[~calibrating], level)))


def _expected_range(n: int, held_out: int, rate: float, rng) -> tuple[float, float]:
    """What so few held-out images show of a rate that follows its Beta distribution."""
    rank = allowed_rank(n, rate)
    seen = rng.binomial(held_out, rng.beta(rank, n + 1 - rank, 100_000)) / held_out
    low, high = np.quantile(seen, [0.025, 0.975])
    return float(low), float(high)


def _by_patient(scores: np.ndarray, people: np.ndarray, rate: float, splits: int, rng) -> str:
    """The mean rate when no patient is on both sides: nearer to practice, without a promise."""
    names = np.unique(people)
    found = []
    for _ in range(splits // 10):
        chosen = np.isin(people, rng.permutation(names)[: len(names) // 2])
        try:
            found.append(_rate(scores, chosen, rate))
        except SettingsError:  # the half of the patients has too few images
            return "too few"
    return f"{np.mean(found):.2%}"


def _shown(scores: np.ndarray, calibrating: np.ndarray, rate: float) -> str:
    try:
        return f"{_rate(scores, calibrating, rate):.1%}"
    except SettingsError:
        return "too few"


if __name__ == "__main__":
    app()
