"""Plants faults in a copy of the package, one after the other, and says which tests see each.

    python tests/pins/faults.py [NAME …] [--pins]

Only the test files named with a fault are run, and with --pins those of this folder too. A fault
that none of them sees needs a test: the exit code is then 1. The table that this prints is in
docs/explanation/faults.md. Faults are found by their text, so they survive when code moves; where
code was rewritten, give the fault its new words.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src"


@dataclass(frozen=True)
class Fault:
    """One mistake on one line, and the test files that should see it."""

    breaks: str
    good: str
    bad: str
    tests: tuple[str, ...]


FAULTS = {
    "distance": Fault(
        "Eq. 5: distances to the memory too large",
        "return 1 - best.view(tokens.shape[:2]) /",
        "return 1 - 0.99 * best.view(tokens.shape[:2]) /",
        ("test_memory.py",),
    ),
    "fusion": Fault(
        "Eq. 9: the memory's share is the prototypes', which λ = 0.5 hides",
        "return (1 - share) * first + share * second",
        "return share * first + (1 - share) * second",
        ("test_fusion.py", "test_recap_model.py"),
    ),
    "top-k": Fault(
        "Eq. 7: 0.29 · 100 patches are 28",
        "int(ratio * count + 1e-9)",
        "int(ratio * count)",
        ("test_fusion.py",),
    ),
    "margin-gradient": Fault(
        "Eqs. 3 and 4: a gradient of the wrong sign in training alone",
        "addcmul_(p, along, value=-1)",
        "addcmul_(p, along, value=1)",
        ("test_margins.py",),
    ),
    "half-pixel": Fault(
        "maps half a pixel off",
        "position = (pixel + 0.5) / patch_px - 0.5",
        "position = pixel / patch_px - 0.5",
        ("test_maps.py",),
    ),
    "coreset": Fault(
        "greedy k-centre takes the nearest row, not the farthest",
        "current = int(closest.argmin())",
        "current = int(closest.where(closest.isfinite(), -torch.inf).argmax())",
        ("test_memory.py",),
    ),
    "p-value": Fault(
        "p-values may be 0: the image itself is not counted",
        "return (1 + as_high) / (len(scores) + 1)",
        "return as_high / len(scores)",
        ("test_conformal.py",),
    ),
    "threshold": Fault(
        "an image as high as the threshold breaks the promised rate",
        "float(np.nextafter(scores[len(scores) - rank], np.inf))",
        "float(scores[len(scores) - rank])",
        ("test_conformal.py",),
    ),
    "map-level": Fault(
        "the level of regions comes from image scores instead of maps",
        "map_level=threshold_at(sorted(normal_maxima), fpr)",
        "map_level=threshold_at(rising, fpr)",
        ("test_calibration.py",),
    ),
    "probability": Fault(
        "Platt's targets are 0 and 1: classes apart give an endless slope",
        "np.full(len(normal), 1 / (len(normal) + 2))",
        "np.full(len(normal), 0.0)",
        ("test_calibration.py", "test_decision_points.py"),
    ),
    "domain": Fault(
        "from the 1025th known image on, each is its own nearest neighbour",
        "cosine[owner[part, None] == owner[None]] = -np.inf",
        "cosine[owner[: len(cosine), None] == owner[None]] = -np.inf",
        ("test_domain_guard.py",),
    ),
    "dicom-spacing": Fault(
        "rows and columns of a DICOM slice exchange their spacing",
        "column_step=along_row / lengths[0] * spacing[1]",
        "column_step=along_row / lengths[0] * spacing[0]",
        ("test_dicom_series.py",),
    ),
    "dicom-window": Fault(
        "the LINEAR window of DICOM is one unit too wide",
        'return (low, high - 1) if self.curve == "LINEAR" else (low, high)',
        "return (low, high)",
        ("test_dicom.py",),
    ),
    "orientation": Fault(
        "flipped axes of a volume start one voxel off",
        "to_stored[axis, 3] = self.shape[axis] - 1 if against else 0",
        "to_stored[axis, 3] = self.shape[axis] if against else 0",
        ("test_volume.py", "test_nifti.py"),
    ),
    "small-lesions": Fault(
        "masks are looked up at corners instead of centres of pixels",
        "((2 * np.arange(self.size_px) + 1) * side)",
        "((2 * np.arange(self.size_px)) * side)",
        ("test_resize.py",),
    ),
    "table": Fault(
        "a row that was written twice is read twice",
        "return list({row.case: row for row in rows}.values())",
        "return rows",
        ("test_rows.py",),
    ),
    "resume": Fault(
        "a case whose ignore mask has changed is not scored again",
        "(row.sha256, row.ignore_sha256) == (seen.files, seen.ignored)",
        "row.sha256 == seen.files",
        ("test_decided.py",),
    ),
    "encoder": Fault(
        "a bundle is opened on another encoder than it was fitted on",
        "if encoder.checksum != card.encoder.sha256:",
        "if False:",
        ("test_bundle.py", "test_detector.py"),
    ),
    "finite": Fault(
        "a bundle with values that are not finite is opened",
        "if not all(bool(torch.isfinite(v).all()) for v in tensors.values()):",
        "if False:",
        ("test_bundle.py", "test_detector.py"),
    ),
    "regions": Fault(
        "PRO: regions that touch at a corner are two",
        "ndimage.label(mask, structure=np.ones((3, 3), bool))",
        "ndimage.label(mask)",
        ("test_regions.py",),
    ),
    "specificity": Fault(
        "19 of 20 normal images are not 95 %",
        "/ ranks.n_negative >= specificity",
        "/ ranks.n_negative > specificity",
        ("test_operating_points.py",),
    ),
    "export": Fault(
        "a graph that is far off is kept",
        "elif max(differences.values()) > ALLOWED:",
        "elif False:",
        ("test_export.py",),
    ),
    "augment": Fault(
        "what lies outside a turned image is black instead of reflected",
        'stacked, grid, mode="bilinear", padding_mode="reflection"',
        'stacked, grid, mode="bilinear", padding_mode="zeros"',
        ("test_augment.py",),
    ),
    "augment-masks": Fault(
        "warped masks grow",
        "ordered[:, 3] > 0.5",
        "ordered[:, 3] > 0",
        ("test_augment.py",),
    ),
    "lesions": Fault(
        "lesions pushed apart move the image by half a pixel",
        "grid = (2 * torch.stack([columns, rows], dim=-1) + 1) / size - 1",
        "grid = (2 * torch.stack([columns, rows], dim=-1)) / size - 1",
        ("test_lesions.py",),
    ),
    "held-out": Fault(
        "zero-shot learns from the domain that is held out",
        "sources = [domain for domain in domains if domain.name != target]",
        "sources = list(domains)",
        ("test_zeroshot.py",),
    ),
    "session": Fault(
        "sessions of the service never end",
        'return int(content.rpartition(".")[2]) > time.time()',
        "return True",
        ("test_service_auth.py",),
    ),
    "origin": Fault(
        "another site's page may send forms",
        'if foreign or site not in ("same-origin", "none"):',
        'if foreign and site not in ("same-origin", "none"):',
        ("test_service_auth.py",),
    ),
    "exit-code": Fault(
        "a run with files that cannot be read ends as if all were well",
        "if any(result.failed for result in results):",
        "if False:",
        ("test_score_command.py",),
    ),
}


def main(names: list[str], pins: bool) -> int:
    """Plant the faults of these names, or all; returns the exit code."""
    unseen = 0
    print("| fault | what it breaks | seen by |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in names or FAULTS:
            seen = _seen_by(FAULTS[name], copy, pins)
            unseen += not seen
            print(f"| {name} | {FAULTS[name].breaks} | {', '.join(seen) or '**nothing**'} |")
            sys.stdout.flush()
    return int(unseen > 0)


def _seen_by(fault: Fault, copy: Path, pins: bool) -> list[str]:
    """Tests that fail with a fault, as `test_file.py` with their number."""
    holders = [path for path in copy.rglob("*.py") if fault.good in path.read_text("utf-8")]
    if len(holders) != 1 or holders[0].read_text("utf-8").count(fault.good) != 1:
        sys.exit(f"'{fault.good}' stands at {len(holders)} places: give the fault its new words.")
    (file,) = holders
    text = file.read_text("utf-8")
    files = [_test_file(name) for name in fault.tests] + [TESTS / "pins"] * pins
    try:
        file.write_text(text.replace(fault.good, fault.bad), "utf-8")
        failed = _failures(files, copy)
    finally:
        file.write_text(text, "utf-8")
    return [f"{name} ({failed.count(name)})" for name in dict.fromkeys(failed)]


def _test_file(name: str) -> Path:
    found = sorted(TESTS.rglob(name))
    if not found:
        sys.exit(f"There is no {name} in {TESTS}: say which tests should see the fault now.")
    return found[0]


def _failures(files: list[Path], source: Path) -> list[str]:
    """The file names of tests that fail or break."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(source.parent / "compiled")}
    options = ["-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:randomly"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, files)],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode not in (0, 1):
        sys.exit(run.stdout + run.stderr)
    return re.findall(r"^(?:FAILED|ERROR) (?:[^:]*/)?(\w+\.py)", run.stdout, re.MULTILINE)


if __name__ == "__main__":
    chosen = [argument for argument in sys.argv[1:] if argument != "--pins"]
    sys.exit(main(chosen, pins="--pins" in sys.argv))
