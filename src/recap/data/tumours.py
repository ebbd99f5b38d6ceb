"""Real tumours for the demo: four patients' volumes from a released package, cut into slices.

The volumes are the sample data of pyradiomics 3.0.1 (BSD-3-Clause): two contrast-enhanced brain
MRIs and two chest CTs, each with the outline of one tumour. A slice without the outline is taken
as normal, but nobody has declared these patients healthy elsewhere.
"""

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from recap._download import fetch_sdist, sha256_of
from recap._files import write_atomic
from recap.errors import InputError
from recap.io.nrrd import read_nrrd
from recap.io.window import apply_window
from recap.progress import Progress, silent
from recap.types import BoolArray, FloatArray, Window

SDIST = ("pyradiomics", "3.0.1")
SDIST_SHA256 = "47c57f441d6cb7973fa3b2ea48d3948df78e3348e1c69e1e2ff19001601fc2f5"
VOLUMES_SHA256 = {
    "brain1_image.nrrd": "fffdb111ee8b428ede7256707393c927a7d5be912f0604cf3c6f1bd5fc9644cf",
    "brain1_label.nrrd": "ae6d8e6b84f7e99d68c210ee2fa6aaaefa0b2df0a84f55efca4feebe2b216059",
    "brain2_image.nrrd": "d35a1c6a3e1eb72bae97c5515472fbe057fb38ee8e1e199215d1c3c6f292332e",
    "brain2_label.nrrd": "15189c024936ecc337649b9a10c475117c7c40df0d53c22163f9a2023ed741a5",
    "lung1_image.nrrd": "379fa48bf34cfa961e6f5ec19c0c38757a30b9aa884212ef28dc29b5061c64ed",
    "lung1_label.nrrd": "e9d9a88054d7bc1d3034193ff907ce6b8c6ba28a7bc3a16f23728982d1b6b50a",
    "lung2_image.nrrd": "aa2b94eec79127ed786798ac8dc3c013010e1692d5787bebfae1a1e9685a4651",
    "lung2_label.nrrd": "cef52738dc51aab69a48fe30639da956d2b911b1c2920439c091fab84727657a",
}

# A normal slice lies this many slices from any labelled one, and shows this part of the
# largest extent of the organ; an abnormal slice has this many labelled pixels.
GAP_SLICES = 2
LEAST_EXTENT = 0.6
LEAST_LESION_PX = 30
# Least cosine between a stored axis and one of the body: slices of tilted volumes show neither.
MOST_OBLIQUE = 0.95

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """One patient's volume: its window, and which of its slices are comparable.

    `window` None means from 0 to the 97th percentile of the tissue, because MRI has no unit.
    `organ` is the range of windowed values whose extent is compared. `below` is how many slices
    under the lowest labelled one are still used: further down a head is mostly face.
    """

    name: str
    window: Window | None
    organ: tuple[float, float]
    below: int | None = None


CASES = (
    Case("brain1", window=None, organ=(0.1, 1.0), below=2),
    Case("brain2", window=None, organ=(0.1, 1.0), below=2),
    Case("lung1", window=(-1000, 400), organ=(0.035, 0.285)),
    Case("lung2", window=(-1000, 400), organ=(0.035, 0.285)),
)


def pull_tumours(cache: Path, progress: Progress = silent) -> Path:
    """Fetch the volumes into `cache/tumours`, unless they are there, and return that folder."""
    folder = Path(cache) / "tumours"
    wanted = {
        name: sha256
        for name, sha256 in VOLUMES_SHA256.items()
        if not (folder / name).is_file() or sha256_of(folder / name) != sha256
    }
    if not wanted:
        return folder
    archive = fetch_sdist(*SDIST, SDIST_SHA256, folder, progress=progress)
    try:
        _unpack(archive, wanted, folder)
    finally:
        archive.unlink(missing_ok=True)
    return folder


def write_tumour_slices(folder: Path, out: Path) -> dict[str, Path]:
    """Write each case's slices as `<out>/<case>/{normal,abnormal,masks}/NNN.png`."""
    return {case.name: _write_case(case, Path(folder), Path(out) / case.name) for case in CASES}


def spread(items: Sequence[T], count: int) -> list[T]:
    """Pick `count` items evenly spread over a sequence, the first and the last included."""
    if not 1 <= count <= len(items):
        raise InputError(f"Cannot pick {count} of {len(items)} images. Ask for at most that many.")
    return [items[i] for i in np.linspace(0, len(items) - 1, count).round().astype(int)]


def choose_slices(
    case: Case, windowed: FloatArray, label: BoolArray
) -> tuple[list[int], list[int]]:
    """Choose the normal and the abnormal slices of a volume (slices, rows, columns)."""
    lesion_px = label.sum(axis=(1, 2))
    labelled = np.flatnonzero(lesion_px)
    if labelled.size == 0:
        raise InputError(f"{case.name}: no slice of the volume is labelled.")
    low, high = case.organ
    extent = ((windowed >= low) & (windowed <= high)).sum(axis=(1, 2))
    lowest = 0 if case.below is None else int(labelled[0]) - case.below
    normal = [
        k
        for k in range(max(lowest, 0), len(label))
        if np.abs(labelled - k).min() >= GAP_SLICES and extent[k] >= LEAST_EXTENT * extent.max()
    ]
    return normal, [int(k) for k in labelled if lesion_px[k] >= LEAST_LESION_PX]


def _write_case(case: Case, folder: Path, out: Path) -> Path:
    image = _read_axial(folder / f"{case.name}_image.nrrd")
    label = _read_axial(folder / f"{case.name}_label.nrrd") > 0
    if image.shape != label.shape:
        raise InputError(
            f"{folder / case.name}: image {image.shape} and label {label.shape} differ in size."
        )
    windowed = apply_window(image, case.window or _tissue_window(image))
    normal, abnormal = choose_slices(case, windowed, label)
    grey = np.rint(windowed * 255).astype(np.uint8)
    for kind, numbers in (("normal", normal), ("abnormal", abnormal)):
        _save(grey, numbers, out / kind)
    _save(label.astype(np.uint8) * 255, abnormal, out / "masks")
    return out


def _save(volume: NDArray[np.uint8], numbers: list[int], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k in numbers:
        PillowImage.fromarray(volume[k]).save(folder / f"{k:03d}.png")


def _tissue_window(image: FloatArray) -> Window:
    """From 0 to the brightest tissue, without the rare voxels above it."""
    tissue = image[image > np.float64(0.05 * float(image.max()))]
    return 0.0, float(np.percentile(tissue.astype(np.float64), 97))


def _read_axial(path: Path) -> FloatArray:
    """Read a volume as (slices, rows, columns), seen from the feet with the front at the top."""
    volume = read_nrrd(path, "axial")
    steps = np.abs(volume.grid.affine_ras[:3, :3])
    if (steps.max(axis=0) < MOST_OBLIQUE * np.linalg.norm(steps, axis=0)).any():
        raise InputError(f"{path}: the volume is not cut along the axes of the body.", path=path)
    return volume.values


def _unpack(archive: Path, wanted: dict[str, str], folder: Path) -> None:
    """Copy the wanted files out of the archive in one pass, under names of our own choice."""
    prefix = f"{SDIST[0]}-{SDIST[1]}/data/"
    missing = set(wanted)
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = member.name.removeprefix(prefix)
            if name not in missing or name == member.name or not member.isfile():
                continue
            stream = tar.extractfile(member)
            if stream is not None:
                with stream:
                    _copy_checked(stream, folder / name, wanted[name])
                missing.remove(name)
    if missing:
        raise InputError(f"{archive.name}: lacks {', '.join(sorted(missing))}.", path=archive.name)


def _copy_checked(stream: IO[bytes], target: Path, sha256: str) -> None:
    data = stream.read()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(
            f"{target.name}: is not the file expected (its SHA-256 differs).", path=target.name
        )
    write_atomic(target, data)
