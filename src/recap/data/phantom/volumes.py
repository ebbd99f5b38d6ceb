"""Made-up heads in three dimensions, with lesions whose place and volume are known exactly.

A head is drawn in millimetres of the patient (right, anterior, superior) and only then cut into
voxels, so any spacing and any oblique orientation shows the same head. Its brightness and its
structures change from the base to the vertex, as they do in people: a slice's level alone must not
make it look abnormal.
"""

import csv
import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from recap._files import write_atomic
from recap.data.phantom.canvas import soft_step
from recap.errors import InputError, require
from recap.progress import Progress, silent
from recap.types import FloatArray

VOLUMES = "HeadVolumes"
_FULL_SCALE = 1000
LESION_COLUMNS = (
    *("split", "case", "lesion", "volume_mm3"),
    *("centroid_r_mm", "centroid_a_mm", "centroid_s_mm"),
)


@dataclass(frozen=True, eq=False)
class HeadVolume:
    """A head as a scanner stores it."""

    values: NDArray[np.int16]
    """(I, J, K), from 0 to about 1,000."""
    labels: NDArray[np.uint8]
    """(I, J, K): 0 is no lesion, n is lesion n."""
    affine_ras: NDArray[np.float64]
    """Takes (i, j, k, 1) to millimetres to the right, to the front and upwards."""

    def lesions(self) -> list[tuple[float, NDArray[np.float64]]]:
        """Volume in mm³ and centroid in mm of each lesion, in the order of its label."""
        voxel_mm3 = abs(np.linalg.det(self.affine_ras[:3, :3]))
        found = []
        for label in range(1, int(self.labels.max()) + 1):
            places = np.argwhere(self.labels == label)
            centroid = self.affine_ras[:3, :3] @ places.mean(axis=0) + self.affine_ras[:3, 3]
            found.append((float(len(places) * voxel_mm3), centroid))
        return found


def head_volume(
    rng: Generator, abnormal: bool, spacing_mm: tuple[float, float, float] = (2.0, 2.0, 4.0)
) -> HeadVolume:
    """Draw one head, its axes a little oblique to the patient's, as scans are."""
    affine, shape = _placed(rng, spacing_mm)
    index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    # The centre of each voxel in millimetres: (I, J, K, 3).
    at = np.asarray(index @ affine[:3, :3].T + affine[:3, 3], dtype=np.float32)
    head = rng.uniform((66, 82, 70), (72, 90, 76))
    wobble = _noise(rng, affine, shape, 40.0)
    depth_mm = (1 - np.linalg.norm(at / head, axis=-1)) * head.min() + 1.5 * wobble
    values = soft_step(depth_mm / 1.5) * rng.uniform(0.35, 0.5)  # the scalp
    values = _over(values, soft_step((depth_mm - 4) / 1.5), 0.06)  # the skull
    inner = soft_step((depth_mm - 10) / 1.5)
    values = _over(values, inner, _tissue(rng, at, depth_mm - 10, affine))
    values = _over(values, _ventricles(rng, at) * inner, rng.uniform(0.1, 0.16))
    labels = np.zeros(shape, np.uint8)
    if abnormal:
        values, labels = _lesions(rng, at, depth_mm - 10, values, affine)
    field = 1 + 0.06 * _noise(rng, affine, shape, 70.0)
    grain = 0.012 * rng.standard_normal(shape)
    seen = np.clip(values * field * rng.uniform(0.92, 1.08) + grain, 0, 1)
    return HeadVolume(np.round(seen * _FULL_SCALE).astype(np.int16), labels, affine)


def write_head_volumes(
    root: Path, *, seed: int = 0, pool: int = 4, test: int = 8, progress: Progress = silent
) -> Path:
    """Write heads with and without lesions as NIfTI, masks as label maps, lesions as a table.

    Every file shows another patient. Half of each split has lesions.

    Args:
        root: the folder that gets `HeadVolumes_AD`, in the layout of the benchmark.
        seed: the same seed gives the same volumes.
        pool: volumes to fit on, of each class.
        test: volumes to test on, of each class.
        progress: called for every volume.
    """
    nibabel = require("nibabel", "volumes")
    domain, partial = root / f"{VOLUMES}_AD", root / f".{VOLUMES}.partial"
    if domain.exists():
        raise InputError(f"{domain}: exists already. Remove it, or write to another folder.")
    if partial.exists():  # of a run that was killed
        shutil.rmtree(partial)
    places = [
        (split, abnormal)
        for split, count in (("valid", pool), ("test", test))
        for abnormal in (False, True)
        for _ in range(count)
    ]
    rows: list[list[str]] = [list(LESION_COLUMNS)]
    for number, (split, abnormal) in enumerate(places):
        name = f"patient{number + 1:03d}"
        progress("volumes", number, len(places), name)
        volume = head_volume(np.random.default_rng([seed, number]), abnormal)
        folder = partial / split / ("Ungood" if abnormal else "good")
        _save(nibabel, volume.values, volume, folder / "img" / f"{name}.nii.gz")
        if abnormal:
            _save(nibabel, volume.labels, volume, folder / "anomaly_mask" / f"{name}.nii.gz")
        for lesion, (volume_mm3, centre) in enumerate(volume.lesions(), start=1):
            centroid = [f"{value:.2f}" for value in centre]
            rows.append([split, name, str(lesion), f"{volume_mm3:.1f}", *centroid])
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    write_atomic(partial / "lesions.csv", table.getvalue())
    partial.rename(domain)
    progress("volumes", len(places), len(places), "")
    return domain


def _save(nibabel: Any, stored: NDArray[Any], volume: HeadVolume, path: Path) -> None:
    image = nibabel.Nifti1Image(stored, volume.affine_ras)
    image.header.set_xyzt_units("mm")
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)


def _placed(
    rng: Generator, spacing_mm: tuple[float, float, float]
) -> tuple[NDArray[np.float64], tuple[int, int, int]]:
    """An affine of stored axes right, anterior, superior, turned by a few degrees."""
    angles = rng.normal(0, np.radians(6), 3)
    turn = np.eye(3)
    for axis, angle in enumerate(angles):
        one, two = (other for other in range(3) if other != axis)
        around = np.eye(3)
        around[[one, two], [one, two]] = np.cos(angle)
        around[one, two], around[two, one] = -np.sin(angle), np.sin(angle)
        turn = turn @ around
    extent_mm = np.array([160.0, 192.0, 140.0])
    shape = np.ceil(extent_mm / spacing_mm).astype(int)
    affine = np.eye(4)
    affine[:3, :3] = turn * np.array(spacing_mm)
    affine[:3, 3] = -affine[:3, :3] @ ((shape - 1) / 2) + rng.normal(0, 2, 3)
    return affine, (int(shape[0]), int(shape[1]), int(shape[2]))


def _noise(
    rng: Generator, affine: NDArray[np.float64], shape: tuple[int, ...], grain_mm: float
) -> FloatArray:
    """Smooth noise of unit variance whose grains measure `grain_mm`, whatever the voxels do."""
    from scipy import ndimage

    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    white = rng.standard_normal(shape).astype(np.float32)
    smooth = ndimage.gaussian_filter(white, grain_mm / 2.5 / spacing, mode="wrap")
    return np.asarray(smooth / smooth.std(), dtype=np.float32)


def _over(base: FloatArray, cover: FloatArray, value: FloatArray | float) -> FloatArray:
    return np.asarray(base + cover * (value - base), dtype=np.float32)


def _tissue(
    rng: Generator, at: FloatArray, depth_mm: FloatArray, affine: NDArray[np.float64]
) -> FloatArray:
    """White matter with a grey rim, darker and busier towards the base of the skull."""
    shape = depth_mm.shape
    level = at[..., 2]
    tissue = 0.36 + 0.0012 * level + 0.012 * _noise(rng, affine, shape, 12.0)
    folds = _noise(rng, affine, shape, 9.0)
    tissue = _over(tissue, soft_step((9 + 3 * folds - depth_mm) / 2), 0.46 + 0.0008 * level)
    furrows = soft_step((0.12 - np.abs(folds)) / 0.1) * soft_step((11 - depth_mm) / 2)
    tissue = _over(tissue, 0.7 * furrows, 0.16)
    base = soft_step((-30 - level) / 6)
    bones = 0.35 + 0.16 * _noise(rng, affine, shape, 16.0)
    return _over(tissue, base, np.asarray(bones, dtype=np.float32))


def _ventricles(rng: Generator, at: FloatArray) -> FloatArray:
    cover = np.zeros(at.shape[:3], np.float32)
    for side in (-1, 1):
        centre = np.array([side * rng.uniform(9, 13), rng.normal(0, 3), rng.normal(12, 3)])
        radii = rng.uniform((4, 20, 7), (8, 30, 11))
        inside = 1 - np.linalg.norm((at - centre) / radii, axis=-1)
        cover = np.maximum(cover, soft_step(inside * radii.min() / 1.5))
    return cover


def _lesions(
    rng: Generator,
    at: FloatArray,
    depth_mm: FloatArray,
    values: FloatArray,
    affine: NDArray[np.float64],
) -> tuple[FloatArray, NDArray[np.uint8]]:
    """One to three bright, uneven ellipsoids in the brain, none touching another."""
    labels = np.zeros(values.shape, np.uint8)
    free = (depth_mm > 14) & (at[..., 2] > -25) & (np.abs(at[..., 0]) > 12)
    uneven = _noise(rng, affine, values.shape, 14.0)
    for label in range(1, int(rng.integers(1, 4)) + 1):
        if not free.any():
            break
        centre = at[free][rng.integers(np.count_nonzero(free))]
        radii = rng.uniform(6, 15) * rng.uniform(0.8, 1.25, 3)
        away = np.linalg.norm((at - centre) / radii, axis=-1)
        cover = soft_step((1 - away + 0.12 * uneven) * radii.min() / 2) * soft_step(depth_mm / 1.5)
        gain = rng.uniform(0.18, 0.3) * (1 + 0.1 * uneven)
        values = np.asarray(values + cover * gain, dtype=np.float32)
        labels[(cover > 0.5) & (labels == 0)] = label
        free &= away > 1 + 18 / radii.max()
    return values, labels
