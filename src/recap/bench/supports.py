"""Support sets of few-shot cells, drawn or listed; and whether a kept result is still of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from recap.data import Domain, Support, draw_support, read_support
from recap.data.supports import Exclusions, relative_path
from recap.errors import InputError, SettingsError
from recap.methods.registry import find_method
from recap.types import CLASSES, Sample


@dataclass(frozen=True)
class SupportList:
    """The files of a list by their paths from the domain's folder: what was listed, anywhere."""

    normal: tuple[str, ...]
    abnormal: tuple[str, ...]

    def find(self, domain: Domain) -> Support:
        """The listed images of the pool."""
        pool = {relative_path(sample.path, domain): sample for sample in domain.pool()}
        missing = [path for path in (*self.normal, *self.abnormal) if path not in pool]
        if missing:
            raise InputError(
                f"{domain.root}: '{missing[0]}' of the support list is no longer in the pool. "
                "Restore it and run again."
            )
        return Support(
            normal=tuple(pool[path] for path in self.normal),
            abnormal=tuple(pool[path] for path in self.abnormal),
        )


Lists = dict[tuple[str, int], SupportList]
"""By data set and number of shots."""


def read_lists(
    folder: Path, domains: Iterable[Domain], datasets: Sequence[str], shots: Sequence[int]
) -> Lists:
    """Read FOLDER/NAME/K-shot.txt for every data set and number of shots; all must be there."""
    counts = [count for count in shots if count]
    if not counts:
        raise SettingsError(f"--supports {folder}: zero-shot has no supports. Leave it out.")
    chosen = [domain for domain in domains if domain.name in datasets]
    return {
        (domain.name, count): _read(folder / domain.name / f"{count}-shot.txt", domain, count)
        for domain in chosen
        for count in counts
    }


def _read(file: Path, domain: Domain, shots: int) -> SupportList:
    if not file.is_file():
        raise InputError(
            f"{file}: there is no such support list. --supports needs DIR/NAME/K-shot.txt for "
            "every data set and number of shots; leave out --datasets or --shots that have none."
        )
    support = read_support(domain, file)
    found = (len(support.normal), len(support.abnormal))
    if found != (shots, shots):
        raise InputError(
            f"{file}: lists {found[0]} normal and {found[1]} abnormal images, not {shots} of each. "
            "Name the list after the number of images that it has of each class."
        )

    def paths(samples: Iterable[Sample]) -> tuple[str, ...]:
        return tuple(relative_path(sample.path, domain) for sample in samples)

    return SupportList(paths(support.normal), paths(support.abnormal))


SupportRecord = Mapping[str, Sequence[str]]
"""Paths from the domain's folder, by class."""


class Supports:
    """The support sets of a run, each drawn once for all cells that share it."""

    def __init__(self, domains: Iterable[Domain]) -> None:
        self._domains = {domain.name: domain for domain in domains}
        self._drawn: dict[tuple[str, bool, int, int], Support | InputError] = {}

    def root(self, dataset: str) -> Path:
        """Name the folder of a data set."""
        return self._domains[dataset].root

    def draw(self, dataset: str, method: str, shots: int, draw: int) -> Support:
        """Draw for a method; there may be abnormal images that the method leaves aside."""
        key = (dataset, find_method(method).normal_only, shots, draw)
        if key not in self._drawn:
            try:
                found: Support | InputError = draw_support(
                    self._domains[dataset], shots, draw, normal_only=key[1]
                )
            except InputError as error:
                found = error
            self._drawn[key] = found
        support = self._drawn[key]
        if isinstance(support, InputError):
            raise support
        return support

    def record(self, dataset: str, method: str, shots: int, draw: int) -> "SupportRecord | None":
        """Say what a result would keep of a draw; None where it fails: its cells will tell."""
        try:
            samples = fitted_samples(self.draw(dataset, method, shots, draw), method)
        except InputError:
            return None
        return support_record(samples, self._domains[dataset])

    def find(
        self, dataset: str, method: str, shots: int, draw: int, listed: SupportList | None
    ) -> Support | None:
        """Find a support set: that of a list, or drawn; zero-shot has none."""
        if not shots:
            return None
        return (
            listed.find(self._domains[dataset])
            if listed
            else self.draw(dataset, method, shots, draw)
        )


def fitted_samples(support: Support, method: str) -> list[Sample]:
    """The images of a support set that a method is fitted on."""
    return [*support.normal, *(() if find_method(method).normal_only else support.abnormal)]


def support_record(samples: Sequence[Sample], target: Domain) -> SupportRecord:
    """List the images of a support set as a result keeps them.

    The cell's name tells the draw, not what the pool had when it was made.
    """
    return {
        label: [relative_path(s.path, target) for s in samples if s.abnormal == bool(abnormal)]
        for abnormal, label in enumerate(CLASSES)
    }


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
        domain = by_name[dataset]
        try:
            samples = domain.test()
        except InputError:  # cells that are still to run will tell
            return None
        listed = exclude.images.get(domain.name, {}) if exclude else {}
        kept = [sample for sample in samples if relative_path(sample.path, domain) not in listed]
        return Counter((sample.path.name, sample.abnormal) for sample in kept)

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
    results: Iterable[tuple[Path, Mapping[str, Any]]], supports: Supports
) -> None:
    """Refuse few-shot results, with their files, whose support set is not what is drawn now.

    Older results do not tell theirs. A list that was given is a part of the cell.
    """
    for file, result in results:
        cell, then = result["cell"], result.get("support")
        if then is None or cell.get("supports"):
            continue
        now = supports.record(cell["dataset"], cell["method"], cell["shots"], cell["draw"])
        if now is not None and now != then:
            gone = [path for label in then for path in then[label] if path not in now[label]]
            raise InputError(
                f"{file}: was fitted on a support set that {supports.root(cell['dataset'])} no "
                f"longer gives: {gone[0] if gone else 'its order'} is not in today's draw. Choose "
                "another --out; or remove this file, and the others of this data set, to run again."
            )
