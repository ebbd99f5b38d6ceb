"""The support set of a few-shot cell: how it is chosen, and what its result records of it."""

from collections.abc import Mapping, Sequence

from recap.benchmark.cells import Cell
from recap.data import Domain, Support, draw_support
from recap.data.exclusions import relative_path
from recap.methods.registry import find_method
from recap.types import CLASSES, Sample

SupportRecord = Mapping[str, Sequence[str]]
"""Paths from the domain's folder, by class."""


def support_of(cell: Cell, target: Domain) -> Support:
    """The support set of a few-shot cell, of a list or drawn."""
    if cell.supports:
        return cell.supports.find(target)
    return drawn_support(target, cell.method, cell.shots, cell.draw)


def drawn_support(target: Domain, method: str, shots: int, draw: int) -> Support:
    """What is drawn for a method; it may have abnormal images that the method leaves aside."""
    return draw_support(target, shots, draw, normal_only=find_method(method).normal_only)


def fitted_samples(support: Support, method: str) -> list[Sample]:
    """The images of a support set that a method is fitted on."""
    return [*support.normal, *(() if find_method(method).normal_only else support.abnormal)]


def support_record(samples: Sequence[Sample], target: Domain) -> SupportRecord:
    """What a result keeps of the images that it was fitted on.

    The cell's name tells the draw, not what the pool had when it was made.
    """
    return {
        label: [relative_path(s.path, target) for s in samples if s.abnormal == bool(abnormal)]
        for abnormal, label in enumerate(CLASSES)
    }
