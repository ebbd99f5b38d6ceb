"""Telling printed numbers that cannot be, by arithmetic that every ranking of a test split obeys.

P abnormal and N normal images are ranked by score, ties allowed. k of the abnormal and f of the
normal ones lie at or above a threshold, so F1 there is 2k / (P + k + f), and the ROC curve passes
through (f / N, k / P). Numbers in and out of the bounds are fractions.

There is no lower bound of AP given AUROC here: the one for rankings without ties is simple, but a
ranking with ties can fall below it, and a bound that accuses a possible number is worse than none.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from recap.bench.published import PublishedCell, TestSplit, load_splits

Kind = Literal["f1_floor", "ap_ceiling", "f1_floor_given_auroc", "f1_ceiling_given_auroc"]

ROUNDING = 0.005
"""Per cent by which a number printed with two decimals may differ from the one measured."""


@dataclass(frozen=True)
class Violation:
    """A printed number beyond a bound; `bound` is in per cent, `auroc` as printed beside it."""

    cell: PublishedCell
    kind: Kind
    bound: float
    split: TestSplit
    auroc: float

    @property
    def mark(self) -> str:
        """† for the floor of F1-max and the ceiling of AP, ‡ for F1-max against AUROC."""
        return "†" if self.kind in ("f1_floor", "ap_ceiling") else "‡"

    @property
    def reason(self) -> str:
        """Why the number cannot be, in one sentence that names the bound and the split."""
        where = f"{self.split.abnormal} abnormal and {self.split.normal} normal test images"
        if self.kind == "f1_floor":
            return (
                f"{self.cell.dataset}: F1-max cannot be below {self.bound:.2f}: with {where}, "
                "calling all of them abnormal already gives that."
            )
        name = "AP" if self.kind == "ap_ceiling" else "F1-max"
        side = "below" if self.kind == "f1_floor_given_auroc" else "above"
        return (
            f"{self.cell.dataset}, {self.cell.method}: with AUROC {self.auroc:.2f} on {where}, "
            f"{name} cannot be {side} {self.bound:.2f}; {self.cell.value:.2f} is printed."
        )


def f1_floor(abnormal: int, normal: int) -> float:
    """Lowest F1-max of any ranking: calling all images abnormal gives 2P / (2P + N)."""
    return 2 * abnormal / (2 * abnormal + normal)


def f1_floor_given_auroc(auroc: float, abnormal: int, normal: int) -> float:
    """Lowest F1-max that a ranking with this AUROC can have.

    If F1 is at most φ everywhere, then k ≤ c(P + f) with c = φ / (2 − φ): the ROC curve stays under
    y = min(1, c(1 + mx)) with m = N / P. That is concave, so it also covers the slanted pieces of
    ties, and AUROC is at most the area below it, 1 − (1 − c)² / (2cm) once c ≥ P / (P + N).
    Solving for c gives the floor: c = t − √(t² − 1) with t = 1 + m(1 − AUROC), φ = 2c / (1 + c).
    Where that c is below P / (P + N), AUROC is too low to say more than `f1_floor` does.
    """
    t = 1 + normal / abnormal * (1 - auroc)
    c = t - sqrt(t * t - 1)
    return max(f1_floor(abnormal, normal), 2 * c / (1 + c))


def f1_ceiling_given_auroc(auroc: float, abnormal: int, normal: int) -> float:
    """Highest F1-max that a ranking with this AUROC can have.

    A curve through (u, v) has an area of at least v(1 − u), so k ≤ P · min(1, AUROC / (1 − u)) and
    F1 ≤ 2P·AUROC / ((P + Nu)(1 − u) + P·AUROC) for u up to 1 − AUROC; beyond it F1 falls. The
    denominator is concave in u, hence smallest at an end: u = 0 or u = 1 − AUROC.
    """
    no_false_alarm = 2 * auroc / (1 + auroc)
    no_miss = 2 * abnormal / (2 * abnormal + normal * (1 - auroc))
    return max(no_false_alarm, no_miss)


def ap_ceiling(auroc: float, abnormal: int, normal: int) -> float:
    """Highest AP that a ranking with this AUROC can have: 1 − (1 − AUROC) · N / (P + N).

    Take an abnormal image with B normal and I abnormal ones at or above it (itself included). It
    adds precision 1 − B / (I + B). Let b be the normal images above it, ties counting half: B ≥ b,
    and I + B ≤ P + N, so it loses at least b / (P + N). All the b sum to (1 − AUROC) · PN, and AP
    is the mean over P images. The ceiling is reached when some abnormal images outrank everything
    and the others share the last place; without ties AP stays a little below it.
    """
    return 1 - (1 - auroc) * normal / (abnormal + normal)


def find_violations(
    cells: Iterable[PublishedCell], splits: Mapping[str, TestSplit] | None = None
) -> list[Violation]:
    """The image-level F1-max and AP values that no ranking of their test split can give.

    Every number may be off by half of its last digit, each in the direction that helps it. A number
    that breaks several bounds is named once, by the first of: floor, AP, F1 given AUROC.
    """
    known = load_splits() if splits is None else splits
    groups: dict[tuple[str, int, str, str], dict[str, PublishedCell]] = {}
    for cell in cells:
        if cell.level == "image" and cell.dataset in known:
            key = (cell.table, cell.shots, cell.method, cell.dataset)
            groups.setdefault(key, {})[cell.metric] = cell
    return [
        violation
        for group in groups.values()
        for violation in _check(group, known[next(iter(group.values())).dataset])
    ]


def _check(group: dict[str, PublishedCell], split: TestSplit) -> Iterator[Violation]:
    """Check the AUROC, F1-max and AP of one method on one data set."""
    if "auroc" not in group:
        return
    auroc, counts = group["auroc"].value, (split.abnormal, split.normal)
    least, most = max(0.0, (auroc - ROUNDING) / 100), min(1.0, (auroc + ROUNDING) / 100)
    floor = 100 * f1_floor(*counts)
    if "f1_max" in group:
        cell, low = group["f1_max"], 100 * f1_floor_given_auroc(least, *counts)
        high = 100 * f1_ceiling_given_auroc(most, *counts)
        if cell.value + ROUNDING < floor:
            yield Violation(cell, "f1_floor", floor, split, auroc)
        elif cell.value + ROUNDING < low:
            yield Violation(cell, "f1_floor_given_auroc", low, split, auroc)
        elif cell.value - ROUNDING > high:
            yield Violation(cell, "f1_ceiling_given_auroc", high, split, auroc)
    if "ap" in group:
        cell, high = group["ap"], 100 * ap_ceiling(most, *counts)
        if cell.value - ROUNDING > high:
            yield Violation(cell, "ap_ceiling", high, split, auroc)
