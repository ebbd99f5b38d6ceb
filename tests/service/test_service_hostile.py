"""A hundred of the uploads of benchmarks/hostile_uploads.py, which sends thousands."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.service.inspection import Inspection
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


def test_a_picture_over_the_budget_is_too_large(tmp_path, monkeypatch):
    packed = io.BytesIO()
    Image.new("RGB", (12_000, 9_000)).save(packed, "PNG", compress_level=1)
    monkeypatch.setenv("RECAP_DECODE_GB", "1")
    inspection = Inspection(2, seconds=60, pixels=10**9)
    raw = tmp_path / "upload" / "raw"
    raw.mkdir(parents=True)
    (raw / "0").write_bytes(packed.getvalue())
    request = {
        **{"task": "score", "folder": str(raw.parent), "files": [["0", "x.png"]], "reading": {}},
        **{"max_pixels": 10**9, "max_unpacked": 10**9, "max_files": 9, "deidentify": False},
    }
    try:
        answer = inspection.check(request)
        status = Path(f"/proc/{inspection._free[0]._process.pid}/status").read_text()
    finally:
        inspection.stop()
    assert answer["code"] == "too_large"
    # Half of the budget is its share: the whole that would do is named.
    assert "RECAP_DECODE_GB=4" in answer["detail"]
    assert int(status.partition("VmHWM:")[2].split()[0]) < 400_000
