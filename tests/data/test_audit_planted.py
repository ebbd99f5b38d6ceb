"""Ten leaks planted into real images are found, and nothing else is."""

import io
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image as PillowImage
from PIL import ImageEnhance

from recap.data.audit import AuditReport, audit
from recap.data.patients import listed_patient, patient_of

Change = Callable[[PillowImage.Image], PillowImage.Image]


def shared_data() -> Path | None:
    beside = Path(__file__).resolve().parents[3] / "shared"
    root = Path(os.environ.get("RECAP_SHARED", beside)) / "data"
    return root if root.is_dir() else None


needs_data = pytest.mark.skipif(shared_data() is None, reason="no real data: set RECAP_SHARED")


def as_jpeg(quality: int) -> Change:
    def change(image: PillowImage.Image) -> PillowImage.Image:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=quality)
        return PillowImage.open(stream)

    return change


def resized(factor: float) -> Change:
    return lambda image: image.resize((round(image.width * factor), round(image.height * factor)))


def brighter(image: PillowImage.Image) -> PillowImage.Image:
    return ImageEnhance.Brightness(image).enhance(1.1)


def mirrored(image: PillowImage.Image) -> PillowImage.Image:
    return image.transpose(PillowImage.Transpose.FLIP_LEFT_RIGHT)


COPIES: list[tuple[str, str, Change | None]] = [
    ("Brain_AD", ".png", None),
    ("Brain_AD", ".jpg", as_jpeg(75)),
    ("Retina_OCT2017_AD", ".jpg", as_jpeg(90)),
    ("Histopathology_AD", ".jpg", as_jpeg(80)),
    ("Chest_AD", ".png", mirrored),
    ("Histopathology_AD", ".png", lambda i: i.transpose(PillowImage.Transpose.ROTATE_90)),
    ("Chest_AD", ".png", lambda image: brighter(resized(0.9)(image))),
    ("Retina_OCT2017_AD", ".png", lambda image: mirrored(resized(1.1)(image))),
]


def linked_copy(root: Path) -> Path:
    source = shared_data()
    assert source is not None
    shutil.copytree(source, root, copy_function=os.symlink)
    return root


def plant_copies(root: Path, rng: random.Random) -> dict[Path, Path]:
    """Pool file to test file. Names tell nothing."""
    planted = {}
    for number, (domain, suffix, change) in enumerate(COPIES):
        original = rng.choice(sorted((root / domain).glob("test/*/img/*.png")))
        copy = root / domain / "valid" / original.parts[-3] / "img" / f"img_{number:03d}{suffix}"
        if change is None:
            shutil.copy(original, copy)
        else:
            with PillowImage.open(original) as image:
                change(image).save(copy, quality=85)
        planted[copy] = original
    return planted


def plant_neighbours(root: Path, rng: random.Random) -> dict[Path, Path]:
    """Move two slices into the pool whose neighbours stay in the test split."""
    planted: dict[Path, Path] = {}
    tests = {path.name: path for path in (root / "Brain_AD").glob("test/*/img/*.png")}
    pairs = [
        (path, tests[after]) for name, path in tests.items() if (after := next_name(name)) in tests
    ]
    pairs = [(path, after) for path, after in sorted(pairs)]
    for new_name in (None, "img_100.png"):
        stays, goes = rng.choice([p for p in pairs if not set(p) & set(planted.values())])
        target = root / "Brain_AD" / "valid" / goes.parts[-3] / "img" / (new_name or goes.name)
        goes.rename(target)
        pairs = [p for p in pairs if patient_of(p[0], "Brain") != patient_of(stays, "Brain")]
        planted[target] = stays
    return planted


def next_name(name: str) -> str:
    stem, number = re.fullmatch(r"(.*_)(\d{3})\.png", name).groups()  # type: ignore[union-attr]
    return f"{stem}{int(number) + 1:03d}.png"


def strays(report: AuditReport, planted: dict[Path, Path]) -> list[tuple[object, ...]]:
    """Leaks that nobody planted: neither a planted pair nor one with the planted patient."""
    wrong = []
    for leak in report.leaks:
        original = planted.get(leak.pool) if leak.pool else None
        if original is None or leak.test is None or patient(leak.test) != patient(original):
            wrong.append((leak.kind, leak.pool, leak.test, leak.score))
    return wrong


def patient(path: Path) -> str:
    return listed_patient(path)


@needs_data
@pytest.mark.slow
def test_real_data_has_no_leaks() -> None:
    root = shared_data()
    assert root is not None
    report = audit(root)
    assert [d.name for d in report.domains if d.patients_on_both_sides] == []
    assert report.leaks == []
    assert all(image.patient for domain in report.domains for image in (*domain.pool, *domain.test))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_ten_planted_leaks(tmp_path: Path, seed: int) -> None:
    root, rng = linked_copy(tmp_path / "data"), random.Random(seed)
    planted = plant_copies(root, rng) | plant_neighbours(root, rng)
    assert len(planted) == 10
    report = audit(root)
    pairs = {(leak.pool, leak.test) for leak in report.leaks}
    found = [pair for pair in planted.items() if pair in pairs]
    assert len(found) >= 9, set(planted.items()) - set(found)
    assert strays(report, planted) == []
    by_pair = {(leak.pool, leak.test): leak.kind for leak in reversed(report.leaks)}
    kinds = [by_pair.get(pair) for pair in planted.items()]
    assert kinds[0] == "identical-file"
    assert set(kinds[1:8]) == {"near-duplicate"}
    assert kinds[8] == "neighbour-slice"
