"""An archive on loopback for every test here, and listeners that send to it."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pacs_images import mark
from pacs_peer import Archive
from recap.service.pacs.listen import Listener, ListenSettings
from recap.service.pacs.send import DicomPeer, parse_address
from recap.service.pacs.spool import Spool


@pytest.fixture
def archive() -> Iterator[Archive]:
    pytest.importorskip("pynetdicom")
    archive = Archive()
    yield archive
    archive.server.shutdown()


@pytest.fixture
def running(tmp_path: Path, archive: Archive) -> Iterator[Callable[..., Listener]]:
    """Start listeners; all end with the test."""
    started = []

    def start(score: Any = mark, spool: str = "spool", **settings: Any) -> Listener:
        listener = Listener(
            Spool(tmp_path / spool),
            score,
            DicomPeer(parse_address(archive.address)),
            ListenSettings(**({"port": 0, "quiet_seconds": 0.3} | settings)),
        )
        listener.start()
        thread = threading.Thread(target=listener.run)
        thread.start()
        started.append((listener, thread))
        return listener

    yield start
    for listener, thread in started:
        listener.stop()
        thread.join(30)
