"""Calls of the service that several tests make."""

import io
import time
import zipfile
from typing import Any

import numpy as np
from PIL import Image as Pillow

from recap.service.jobs import Jobs, Kind, NewJob
from recap.service.store import new_id

ADDRESS = "http://127.0.0.1:8000"
API = "/api/v1"
ENDED = ("done", "failed", "cancelled")


def png(seed: int = 0, size_hw: tuple[int, int] = (40, 60), colour: bool = False) -> bytes:
    shape = (*size_hw, 3) if colour else size_hw
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    stream = io.BytesIO()
    Pillow.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    """A zip of files by name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def add_job(
    jobs: Jobs, images: int = 1, bundle: str = "brain", key: str | None = None, kind: Kind = "score"
) -> str:
    """A job without files, as an upload makes it."""
    job = new_id()
    (jobs.store.incoming(job) / "upload").mkdir(parents=True)
    return jobs.accept(NewJob(job, kind, bundle, {}, {}, images, key))


def upload(client: Any, *contents: bytes | tuple[str, bytes], **data: str) -> Any:
    """POST /jobs with files."""
    files = [
        ("file", content if isinstance(content, tuple) else (f"{i}.png", content))
        for i, content in enumerate(contents)
    ]
    return client.post(f"{API}/jobs", files=files, data=data)


def ended(client: Any, answer: Any, seconds: float = 60) -> dict[str, Any]:
    """The job of an accepted upload, when it has ended."""
    assert answer.status_code == 202, answer.text
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        job = client.get(f"{API}/jobs/{answer.json()['id']}").json()
        if job["status"] in ENDED:
            return job
        time.sleep(0.02)
    raise AssertionError(f"still {job['status']} after {seconds} s")
