"""Phantom volumes: lesions lie where the table says, in millimetres, whatever the orientation."""

import csv

import numpy as np
import pytest

from recap.data.phantom import head_volume, write_head_volumes
from recap.errors import InputError

nibabel = pytest.importorskip("nibabel")


def test_the_same_head_is_seen_whatever_the_voxels():
    volume = head_volume(np.random.default_rng(3), abnormal=True)
    directions = volume.affine_ras[:3, :3]
    spacing = np.linalg.norm(directions, axis=0)
    np.testing.assert_allclose(spacing, (2, 2, 4), rtol=1e-9)
    turned = np.abs(directions / spacing - np.eye(3)).max()
    assert 0.01 < turned < 0.6  # oblique, but still right, anterior, superior
    assert np.linalg.det(directions) > 0


def test_lesions_are_brighter_than_what_lies_around_them():
    contrasts = []
    for seed in range(6):
        volume = head_volume(np.random.default_rng(seed), abnormal=True)
        inside = volume.labels > 0
        assert inside.any()
        near = np.zeros_like(inside)
        for axis in range(2):
            near |= np.roll(inside, 4, axis) | np.roll(inside, -4, axis)
        contrasts.append(volume.values[inside].mean() - volume.values[near & ~inside].mean())
    assert min(contrasts) > 60


def test_normal_slices_change_with_their_level():
    volume = head_volume(np.random.default_rng(0), abnormal=False)
    assert not volume.labels.any()
    middle = volume.values[30:50, 38:58].astype(float)
    level = [middle[..., k].std() for k in range(middle.shape[-1])]
    assert max(level) > 3 * np.median(level)  # the base of the skull is busier


def test_the_table_tells_the_volume_and_place_of_the_label_maps(tmp_path):
    domain = write_head_volumes(tmp_path, pool=1, test=2)
    rows = list(csv.DictReader((domain / "lesions.csv").open(encoding="utf-8")))
    assert {row["split"] for row in rows} == {"valid", "test"}
    for row in rows:
        masks = domain / row["split"] / "Ungood" / "anomaly_mask"
        labels = nibabel.load(masks / f"{row['case']}.nii.gz")
        inside = np.argwhere(np.asarray(labels.dataobj) == int(row["lesion"]))
        voxel_mm3 = np.prod(labels.header.get_zooms())
        assert float(row["volume_mm3"]) == pytest.approx(len(inside) * voxel_mm3, rel=1e-3)
        centre = nibabel.affines.apply_affine(labels.affine, inside.mean(axis=0))
        told = [float(row[f"centroid_{axis}_mm"]) for axis in "ras"]
        np.testing.assert_allclose(told, centre, atol=0.02)
    assert len(list(domain.rglob("good/img/*.nii.gz"))) == 3


def test_the_same_seed_gives_the_same_bytes_and_nothing_is_overwritten(tmp_path):
    for name in ("a", "b"):
        write_head_volumes(tmp_path / name, pool=1, test=1)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    for file in files:
        if (tmp_path / "a" / file).is_file():
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    with pytest.raises(InputError):
        write_head_volumes(tmp_path / "a", pool=1, test=1)
