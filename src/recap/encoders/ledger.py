"""What is known of a weights file, so that an unchanged one is not hashed at every load."""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from recap._download import sha256_of
from recap._files import write_atomic
from recap.errors import InputError


@dataclass(frozen=True)
class Record:
    """The digest of a file, the size and time at which it was taken, and where it came from."""

    sha256: str
    size: int
    mtime_ns: int
    source: str
    revision: str | None

    def is_current(self, weights: Path) -> bool:
        """Whether the file still has the size and time of the record."""
        stat = weights.stat()
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


def measure(weights: Path, source: str, revision: str | None = None) -> Record:
    """Hash a file now."""
    stat = weights.stat()
    return Record(sha256_of(weights), stat.st_size, stat.st_mtime_ns, source, revision)


def load(path: Path) -> Record | None:
    """Read a record; None if there is none, or none that can be read."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def save(path: Path, record: Record) -> None:
    """Write a record so that a reader sees the old one or the new one, never half of it."""
    # All who share the cache read it: for those who may not, a file would have no pin.
    write_atomic(path, json.dumps(asdict(record), indent=2))


def save_if_possible(path: Path, record: Record) -> None:
    """Write a record, or go without: in a read-only cache the file is hashed again next time."""
    with contextlib.suppress(InputError):
        save(path, record)
