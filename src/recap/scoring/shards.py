"""Shards: a run's cases in parts, for several machines that write into one folder.

A case belongs to one shard by its name alone, so machines that never talk to each other agree.
Every shard has a table and a manifest of its own; maps and pictures have the names of their cases
and never meet. Whoever runs next, a shard or the whole, goes on from the rows of all tables.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from recap.errors import SettingsError
from recap.scoring.rows import Row, read_rows

TABLE, MANIFEST = "scores.csv", "manifest.json"


@dataclass(frozen=True)
class Shard:
    """Number `number` of `count` parts, counted from 1; 1 of 1 is the whole."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, case: str) -> bool:
        """Whether a case of this name belongs to it."""
        # File names need not be valid text.
        digest = sha256(case.encode("utf-8", errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1

    def file(self, name: str) -> str:
        """What a file of the whole is called for this shard: scores.csv, scores.1-of-4.csv."""
        if self.count == 1:
            return name
        path = Path(name)
        return f"{path.stem}.{self.number}-of-{self.count}{path.suffix}"


WHOLE = Shard()


def parse_shard(text: str) -> Shard:
    """A shard as written on the command line: 1/4."""
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    number, count = (int(part) for part in match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise SettingsError(f"--shard {text}: write I/N with 1 ≤ I ≤ N, such as 1/4.")
    return Shard(number, count)


def all_of(out: Path, name: str) -> list[Path]:
    """The files of the whole and of all shards that are there, the newest last."""
    path = Path(name)
    pattern = rf"{re.escape(path.stem)}(\.\d+-of-\d+)?{re.escape(path.suffix)}"
    found = [file for file in out.iterdir() if re.fullmatch(pattern, file.name, re.ASCII)]
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name))


def finished_rows(out: Path, shard: Shard) -> dict[str, Row]:
    """The newest row of each case of a shard, whichever table it stands in, unless it failed."""
    rows = {row.case: row for table in all_of(out, TABLE) for row in read_rows(table)}
    return {case: row for case, row in rows.items() if row.status == "ok" and shard.holds(case)}
