"""A hundred of the uploads of benchmarks/hostile_uploads.py, which sends thousands."""

import sys
from pathlib import Path

import numpy as np
import pytest

from service_calls import API

pytest.importorskip("pydicom")
pytest.importorskip("nibabel")
pytest.importorskip("nrrd")


@pytest.fixture(scope="module")
def hostile():
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import hostile_files
    finally:
        sys.path.remove(folder)
    return hostile_files


def test_hostile_uploads_are_refused_and_leave_nothing(client, hostile, tmp_path):
    made = [hostile.attack(np.random.default_rng([7, number])) for number in range(100)]
    assert len({each.kind for each in made}) > 15
    for each in made:
        answer = client.post(
            f"{API}/jobs", content=each.body, headers={"Content-Type": each.content_type}
        )
        assert 400 <= answer.status_code < 500, (each.kind, answer.status_code, answer.text)
        assert str(tmp_path) not in answer.text
    data = tmp_path / "data"
    assert [*(data / "jobs").iterdir(), *(data / "incoming").iterdir()] == []
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    assert client.get(f"{API}/jobs").json() == []
    assert not list(Path("/tmp").glob(f"*{hostile.MARK}*"))
    assert client.get("/healthz").status_code == 200
