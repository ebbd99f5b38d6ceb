"""Several detectors in one run: each folder is what its detector alone would have written."""

import json
import shutil

import numpy as np
import pytest

from folder_runs import score_to_folder
from recap.data.cases import Found, find_cases
from recap.encoders.vit import Encoder
from recap.errors import InputError
from recap.scoring.batch import score_to_folders
from recap.scoring.case_steps import Target
from recap.scoring.many import SharedPass, encoding_once

KINDS = ["few-shot", "normal-only", "zero-shot", "write-back"]
"""The last one shares no pass of the encoder, but the file that was read."""


def draw(case, prediction, path):
    with path.open("wb") as file:
        np.save(file, case.images[0].pixels + prediction.map.reshape(-1)[0])


@pytest.fixture(scope="module")
def pictures_folder(domains, tmp_path_factory):
    """Five pictures, one of them damaged."""
    folder = tmp_path_factory.mktemp("pictures")
    files = sorted((domains[0].root / "test").rglob("img/*.png"))[:5]
    for number, file in enumerate(files):
        shutil.copy(file, folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    return folder


@pytest.fixture
def cases(pictures_folder):
    return find_cases([pictures_folder], pictures_folder / "no archives").cases


def targets(detectors, out, kinds=KINDS):
    return [Target(detectors[kind], out / kind, draw) for kind in kinds]


def contents(out):
    """Every file but the manifest, which holds times."""
    files = (path for path in out.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(out): path.read_bytes() for path in files}


@pytest.fixture
def counted(monkeypatch):
    """Counts passes of the encoder and files that were opened."""
    counts = {"embed": 0, "open": 0}
    embed, opened = Encoder.embed, Found.open

    def count_embed(self, pixels):
        counts["embed"] += len(pixels)
        return embed(self, pixels)

    def count_open(self, reading):
        counts["open"] += 1
        return opened(self, reading)

    monkeypatch.setattr(Encoder, "embed", count_embed)
    monkeypatch.setattr(Found, "open", count_open)
    return counts


@pytest.mark.parametrize("batch", [1, 2])
def test_each_folder_is_that_of_its_detector_alone(batch, detectors, cases, tmp_path):
    rows = score_to_folders(targets(detectors, tmp_path / "all"), cases, batch=batch)
    for kind, found in zip(KINDS, rows, strict=True):
        alone = tmp_path / "alone" / kind
        assert score_to_folder(detectors[kind], cases, alone, draw) == found
        assert contents(tmp_path / "all" / kind) == contents(alone)
        manifest = json.loads((tmp_path / "all" / kind / "manifest.json").read_text())
        assert (manifest["status"], manifest["cases"]) == ("complete", {"ok": 4, "error": 1})
        assert set(manifest["stages"]) >= {"hash", "open", "decode", "score", "write"}


def test_a_picture_is_read_and_encoded_once(detectors, cases, tmp_path, counted):
    score_to_folders(targets(detectors, tmp_path, KINDS[:3]), cases)
    assert counted == {"embed": 4, "open": 5}


def test_only_what_is_missing_is_scored(detectors, cases, tmp_path, counted):
    score_to_folder(detectors["few-shot"], cases, tmp_path / "few-shot", draw)
    score_to_folder(detectors["zero-shot"], cases[:2], tmp_path / "zero-shot", draw)
    before = contents(tmp_path / "few-shot")
    counted.update(embed=0, open=0)
    rows = score_to_folders(targets(detectors, tmp_path, ["few-shot", "zero-shot"]), cases)
    assert counted == {"embed": 2, "open": 3}  # the damaged one is tried again
    assert contents(tmp_path / "few-shot") == before
    assert [row.status for row in rows[1]] == ["ok", "ok", "ok", "error", "ok"]


@pytest.mark.parametrize("batch", [1, 2])
def test_a_detector_that_fails_costs_the_others_nothing(
    batch, detectors, cases, tmp_path, monkeypatch
):
    original = SharedPass.output

    def output(self, detector):
        if detector is detectors["normal-only"]:
            raise InputError("It cannot.")
        return original(self, detector)

    monkeypatch.setattr(SharedPass, "output", output)
    rows = score_to_folders(targets(detectors, tmp_path), cases, batch=batch)
    good = [sum(row.status == "ok" for row in found) for found in rows]
    assert good == [4, 0, 4, 4]
    assert rows[1][0].error == "It cannot."


def test_a_refused_folder_leaves_the_others_as_they_are(detectors, cases, tmp_path):
    score_to_folder(detectors["zero-shot"], cases, tmp_path / "few-shot", draw)
    with pytest.raises(InputError, match="another detector"):
        score_to_folders(targets(detectors, tmp_path, ["normal-only", "few-shot"]), cases)
    assert contents(tmp_path / "normal-only") == {}


def test_the_slices_of_a_volume_are_encoded_once(detectors, tmp_path, counted):
    nibabel = pytest.importorskip("nibabel")
    voxels = np.random.default_rng(0).random((20, 24, 3), np.float32)
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / "scan.nii.gz")
    cases = find_cases([tmp_path / "scan.nii.gz"], tmp_path / "no archives").cases
    kinds = KINDS[:3]
    rows = score_to_folders(targets(detectors, tmp_path / "all", kinds), cases)
    assert counted["embed"] == 3
    assert all(detectors[kind].model.encoder.memo is None for kind in kinds)
    for kind, found in zip(kinds, rows, strict=True):
        assert score_to_folder(detectors[kind], cases, tmp_path / kind, draw) == found
        assert contents(tmp_path / "all" / kind) == contents(tmp_path / kind)


def test_nothing_is_kept_for_a_single_detector(detectors):
    with encoding_once([detectors["few-shot"]]):
        assert detectors["few-shot"].model.encoder.memo is None
    with encoding_once([detectors["few-shot"], detectors["zero-shot"]]):
        assert detectors["few-shot"].model.encoder.memo is not None
