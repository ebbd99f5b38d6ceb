"""An archive on loopback for every test here."""

from collections.abc import Iterator

import pytest

from pacs_peer import Archive


@pytest.fixture
def archive() -> Iterator[Archive]:
    pytest.importorskip("pynetdicom")
    archive = Archive()
    yield archive
    archive.server.shutdown()
