"""A result is of the images it was fitted and measured on; their folder may hold others by now."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from recap.benchmark.cell_support import (
    SupportRecord,
    drawn_support,
    fitted_samples,
    support_record,
)
from recap.data import Domain
from recap.data.exclusions import Exclusions, relative_path
from recap.errors import InputError

Names = Counter[tuple[str, bool]]
"""File names and labels."""


def refuse_other_images(
    results: Iterable[tuple[Path, Mapping[str, Any]]],
    domains: Sequence[Domain],
    exclude: Exclusions | None,
) -> None:
    """Refuse results, with their files, that were measured on other test images than are there."""
    by_name = {domain.name: domain for domain in domains}

    @cache  # many cells are measured on one domain
    def present(dataset: str) -> Names | None:
        return _present(by_name[dataset], exclude)

    for file, result in results:
        cell = result["cell"]
        if cell.get("on", "test") != "test" or "images" not in result:
            continue
        now = present(cell["dataset"])
        then = Counter((row["file"], row["abnormal"]) for row in result["images"])
        if now is not None and now != then:
            raise InputError(
                f"{file}: was measured on {then.total()} test images, which are not the "
                f"{now.total()} of {by_name[cell['dataset']].root} now. Choose another --out; or "
                "remove this file, and the others of this data set, to measure again."
            )


def refuse_other_supports(
    results: Iterable[tuple[Path, Mapping[str, Any]]], domains: Sequence[Domain]
) -> None:
    """Refuse few-shot results, with their files, whose support set is not what is drawn now.

    Older results do not tell theirs. A list that was given is a part of the cell.
    """
    by_name = {domain.name: domain for domain in domains}

    @cache  # all seeds of a cell have one draw
    def drawn(dataset: str, method: str, shots: int, draw: int) -> SupportRecord | None:
        return _drawn(by_name[dataset], method, shots, draw)

    for file, result in results:
        cell, then = result["cell"], result.get("support")
        if then is None or cell.get("supports"):
            continue
        now = drawn(cell["dataset"], cell["method"], cell["shots"], cell["draw"])
        if now is not None and now != then:
            gone = [path for label in then for path in then[label] if path not in now[label]]
            raise InputError(
                f"{file}: was fitted on a support set that {by_name[cell['dataset']].root} no "
                f"longer gives: {gone[0] if gone else 'its order'} is not in today's draw. Choose "
                "another --out; or remove this file, and the others of this data set, to run again."
            )


def _drawn(domain: Domain, method: str, shots: int, draw: int) -> SupportRecord | None:
    try:
        support = drawn_support(domain, method, shots, draw)
    except InputError:  # cells that are still to run will tell
        return None
    return support_record(fitted_samples(support, method), domain)


def _present(domain: Domain, exclude: Exclusions | None) -> Names | None:
    try:
        samples = domain.test()
    except InputError:  # cells that are still to run will tell
        return None
    listed = exclude.images.get(domain.name, {}) if exclude else {}
    kept = [sample for sample in samples if relative_path(sample.path, domain) not in listed]
    return Counter((sample.path.name, sample.abnormal) for sample in kept)
