"""Results whose mean is taken differ in the seed alone; anything else would mix settings unseen."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from textwrap import shorten
from typing import Any, NamedTuple

from recap.bench.results import flat_settings
from recap.bench.supports import SupportRecord
from recap.config import merged
from recap.errors import InputError, SettingsError
from recap.methods.registry import default_settings

_NAMED_BY_PLACE = ("method", "dataset", "shots", "settings")


class Averaged(NamedTuple):
    """A result and the mean that it goes into."""

    place: str
    """Such as "ReCAP on BrainMRI, 4 shots"; results of one place are averaged over their seeds."""
    seed: int
    cell: Mapping[str, Any]
    """As it stands in its file; empty for what is no cell, such as a timing."""
    counts: tuple[int, int] | None = None
    """Abnormal and normal images that it was measured on, where known."""
    support: SupportRecord | None = None
    """What it was fitted on, where its file tells; older ones do not."""


def refuse_mixed(results: Iterable[Averaged]) -> None:
    """Refuse two results of one seed, and seeds that differ in a setting or in how they draw."""
    places: dict[str, list[Averaged]] = {}
    for result in results:
        places.setdefault(result.place, []).append(result)
    for group in places.values():
        for one, other in combinations(group, 2):
            if one.seed == other.seed:
                _refuse(one, other, f"Two results for {one.place}, seed {one.seed},", True)
        draws = not draws_by_seed([(result.seed, result.cell) for result in group])
        # One that tells its support set, if any does: it shows whether the others' is the same.
        first = next((result for result in group if result.support), group[0])
        for other in group:
            if _difference(first, other, draws):
                seeds = f"seeds {first.seed} and {other.seed}"
                _refuse(first, other, f"The results for {first.place}, {seeds},", draws)


def draws_by_seed(runs: Sequence[tuple[int, Mapping[str, Any]]]) -> bool:
    """Tell whether each of several seeds has a support set of its own."""
    draws = [(seed, cell.get("draw", 0)) for seed, cell in runs if cell.get("shots")]
    return len({draw for _, draw in draws}) > 1 and all(seed == draw for seed, draw in draws)


def _refuse(one: Averaged, other: Averaged, which: str, draws: bool) -> None:
    cell = one.cell
    found = _difference(one, other, draws) or "must differ in a setting."
    where = "{method}/{dataset}/{shots}-shot".format(**cell) if cell else "METHOD/DATASET/K-shot"
    raise InputError(
        f"{which} {found} A mean holds one setting: run the other into an --out of its own, or "
        f"move its files out of cells/{where}."
    )


def _difference(one: Averaged, other: Averaged, draws: bool) -> str:
    """The first thing in which two results differ beside the seed."""
    mine, theirs = _identity(one, draws), _identity(other, draws)
    for key in {**mine, **theirs}:
        a, b = (side.get(key, "not recorded") for side in (mine, theirs))
        if a != b:
            return f"differ in {key}: {_text(a)} and {_text(b)}."
    if draws and one.support and other.support and one.support != other.support:
        only = " and ".join(_alone(*pair) for pair in ((one, other), (other, one)))
        return f"differ in support images: {only}."
    return ""


def _alone(one: Averaged, other: Averaged) -> str:
    """The support images that the other result was not fitted on."""
    mine, theirs = ([p for own in (r.support or {}).values() for p in own] for r in (one, other))
    return shorten(", ".join(p for p in mine if p not in theirs) or "the same, moved", 120)


def _identity(result: Averaged, draws: bool) -> dict[str, Any]:
    cell = result.cell
    if not cell:
        return {}
    rest = {key: value for key, value in cell.items() if key not in _NAMED_BY_PLACE}
    if not draws or not cell["shots"]:  # zero-shot draws nothing
        rest.pop("draw", None)
    if result.counts and rest.get("on", "test") == "test":  # every draw leaves others of a pool
        rest["test images"] = "{} abnormal + {} normal".format(*result.counts)
    # Settings that a cell was run without are as they always were.
    own = cell["settings"]
    try:
        known = default_settings(own.get("method", "recap"))
    except SettingsError:  # of a version, or a package, with other methods
        known = {}
    settings = merged([known, own, {"seed": 0}])
    return {"on": "test", "supports": "drawn", **dict(flat_settings(settings)), **rest}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):  # sources, or the files of a support list
        items = [(k, v if isinstance(v, str) else " ".join(v)) for k, v in value.items()]
        return shorten(", ".join(f"{name} ({files})" for name, files in items), 120)
    return "none" if value in (None, "") else str(value)
