"""What zero-shot cells learn from: part of what they are, for other sources give another result."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from recap.benchmark.cells import Cell, Sources
from recap.data import Domain
from recap.data.exclusions import relative_path


def with_sources(cells: Sequence[Cell], domains: Sequence[Domain]) -> list[Cell]:
    """The cells, zero-shot ones with the domains that they are fitted on."""
    from recap.methods.images import leave_one_out

    @cache  # many cells learn from one domain
    def listed(domain: Domain, split: str) -> str:
        return _digest(domain, split)

    def sources(cell: Cell) -> Sources:
        split = _split(cell)
        chosen = leave_one_out(domains, cell.dataset)
        return tuple((domain.name, listed(domain, split)) for domain in chosen)

    return [
        cell if cell.shots or cell.sources else replace(cell, sources=sources(cell))
        for cell in cells
    ]


def _split(cell: Cell) -> str:
    """Where the sources' images come from; other methods always take the pools."""
    training = getattr(cell.settings, "training", None)
    return str(getattr(training, "source_split", "pool"))


def _digest(domain: Domain, split: str) -> str:
    """Names the files, labels and masks of a split; it does not open them."""
    samples = domain.pool() if split == "pool" else domain.test()
    files = [
        (relative_path(s.path, domain), s.abnormal, s.mask and relative_path(s.mask, domain))
        for s in samples
    ]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:12]
