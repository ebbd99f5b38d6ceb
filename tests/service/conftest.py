"""A service on a tiny detector: in this process for routes, in its own to be killed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

from fastapi.testclient import TestClient

import recap
from quick_encoder import encoder_read_once  # noqa: F401
from recap.data import write_phantoms
from recap.data.benchmark import Domain
from recap.service import service
from recap.service.app import create_app
from recap.service.inspection import Inspection
from recap.service.settings import ServerSettings
from recap.service.store import Store
from service_calls import ADDRESS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "data")
    yield store
    store.close()


@pytest.fixture
def volume() -> bytes:
    """A NIfTI file of four slices."""
    nibabel = pytest.importorskip("nibabel")
    voxels = np.random.default_rng(0).integers(0, 900, (11, 9, 4)).astype(np.int16)
    content: bytes = nibabel.Nifti1Image(voxels, np.diag([2.0, 2.0, 3.0, 1.0])).to_bytes()
    return content


@pytest.fixture(scope="session")
def domains(tmp_path_factory: pytest.TempPathFactory) -> list[Domain]:
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=3, test=3, size_px=70, domains=["Brain", "Chest"])


@pytest.fixture(scope="session")
def bundles(
    tmp_path_factory: pytest.TempPathFactory, domains: list[Domain], tiny_folder: Path
) -> list[Path]:
    """`brain` knows normal and abnormal images, `chest` normal ones only; not to be changed."""
    root = tmp_path_factory.mktemp("bundles")
    settings = recap.resolve_settings(
        encoder={"name": str(tiny_folder), "input_px": 70},
        training={"epochs": 1, "augment": False},
    )
    paths = []
    for domain, name in zip(domains, ("brain", "chest"), strict=True):
        valid = domain.root / "valid"
        diseased = valid / "Ungood" / "img" if name == "brain" else None
        detector = recap.fit(valid / "good" / "img", diseased, settings=settings)
        detector.save(root / f"{name}.recap")
        paths.append(root / f"{name}.recap")
    return paths


@pytest.fixture(scope="session")
def one_inspection() -> Iterator[Inspection]:
    inspection = Inspection(1, seconds=60, pixels=10**8)
    inspection.start()
    yield inspection
    inspection.stop()


class _Shared:
    """An inspection that is neither started nor stopped with the service."""

    def __init__(self, inspection: Inspection) -> None:
        self.check = inspection.check

    def start(self) -> None:
        pass

    stop = start


Make = Callable[..., TestClient]


@pytest.fixture
def make_client(
    tmp_path: Path,
    bundles: list[Path],
    one_inspection: Inspection,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Make]:
    """make_client(**settings): a client of a running service on tmp_path/data."""
    running = []
    monkeypatch.setattr(
        service, "Inspection", lambda most, seconds, pixels: _Shared(one_inspection)
    )

    def make(**values: Any) -> TestClient:
        given = {"bundles": tuple(bundles), "data": tmp_path / "data"} | values
        client = TestClient(create_app(ServerSettings(**given)), base_url=ADDRESS)
        client.__enter__()
        running.append(client)
        return client

    yield make
    for client in running:
        client.__exit__(None, None, None)


@pytest.fixture
def client(make_client: Make) -> TestClient:
    return make_client()
