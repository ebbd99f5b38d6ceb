"""Cells of the benchmark: one method on one data set with one number of shots and one seed."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar
from zipfile import BadZipFile

from recap.atomic import write_atomic
from recap.benchmark.support_lists import Lists, SupportList
from recap.config import Section, Settings
from recap.errors import InputError, SettingsError
from recap.methods.recap.settings import RecapSettings
from recap.methods.registry import changed, find_method, settings_from_dict

MeasuredOn = Literal["test", "pool"]
"""The test split; or what the support set leaves of the pool, to choose settings by."""
SCORING = {
    "model": {"map_logit_scale", "map_blur_px", "map_edge_px", "map_top_k"},
    "memory": {"weight"},
}
"""Settings of ours that play no part while a detector is fitted."""
Sources = tuple[tuple[str, str], ...]
"""The domains of a zero-shot fit, each with a digest of its files' names."""


@dataclass(frozen=True)
class Cell:
    """What is run; everything that decides the result is in it."""

    method: str
    dataset: str
    shots: int
    settings: Settings
    draw: int = 0
    """Which support set is drawn; it does not depend on the seed unless asked to."""
    exclude: str = ""
    """The sha256 of the exclusion list, if there is one."""
    on: MeasuredOn = "test"
    sources: Sources = ()
    """What a zero-shot cell is fitted on (`recap.benchmark.sources`); few-shot cells have none."""
    supports: SupportList | None = None
    """What a few-shot cell is fitted on, where a list says it and nothing is drawn."""

    @property
    def name(self) -> str:
        """Readable, and different for every setting: also the path of its result."""
        folder = f"{self.method}/{self.dataset}/{self.shots}-shot"
        return f"{folder}/seed-{self.settings.seed}-{_digest(self._identity())}"

    @property
    def fit_name(self) -> str:
        """The same for cells whose fitted detectors differ in how they score alone."""
        own = self.settings
        own = own.model_copy(
            update={name: reset(getattr(own, name), keys) for name, keys in SCORING.items()}
            if find_method(self.method).is_ours
            else {}
        )
        return _digest(replace(self, settings=own, exclude="", on="test")._identity())

    def _identity(self) -> dict[str, Any]:
        """Without settings at their defaults: a new one must not make old cells strange."""
        own = self.settings.model_dump(mode="json", exclude_defaults=True)
        return self.as_json() | {"settings": own}

    def as_json(self) -> dict[str, Any]:
        """The cell as it stands in its result."""
        # Only where there is something to say: what is newer must not rename older cells.
        content: dict[str, Any] = {} if self.on == "test" else {"on": self.on}
        if self.sources:
            content["sources"] = dict(self.sources)
        if self.supports:
            content["supports"] = asdict(self.supports)
        return content | {
            "method": self.method,
            "dataset": self.dataset,
            "shots": self.shots,
            "draw": self.draw,
            "exclude": self.exclude,
            "settings": self.settings.model_dump(mode="json"),
        }


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def plan_cells(
    settings: Mapping[str, Settings],
    datasets: Sequence[str],
    shots: Sequence[int],
    seeds: Sequence[int],
    draw_by_seed: bool = False,
    exclude: str = "",
    on: MeasuredOn = "test",
    lists: Lists | None = None,
) -> list[Cell]:
    """All cells of a grid that make sense, the cheap ones first; settings by method.

    Where `lists` has a support set, it is not drawn.
    """
    cells = []
    for method, own in settings.items():
        for count in sorted(set(shots)):
            if count == 0 and find_method(method).zero_shot == "no":
                continue  # nothing to fit on
            if count == 0 and on == "pool":
                _refuse_test_sources(own)
            for dataset in datasets:
                for seed in seeds:
                    draw = seed if draw_by_seed and count else 0  # zero-shot draws nothing
                    seeded = with_seed(own, seed)
                    cell = Cell(method, dataset, count, seeded, draw, exclude, on)
                    cells.append(replace(cell, supports=(lists or {}).get((dataset, count))))
    return sorted(cells, key=lambda cell: (cell.shots or 10**6, cell.settings.seed))


def _refuse_test_sources(settings: Settings) -> None:
    """On the pools nothing of test/ is read; neither may the sources' be."""
    training = getattr(settings, "training", None)
    if getattr(training, "source_split", "pool") == "test":
        raise SettingsError(
            '--on pool reads nothing of test/, but training.source_split = "test" fits zero-shot '
            "detectors on the test splits of the other data sets. Leave one of the two out, or 0 "
            "out of --shots."
        )


def reset(section: Section, names: Collection[str]) -> Section:
    """A group of settings with some of them at their defaults."""
    defaults = type(section)()
    return section.model_copy(update={name: getattr(defaults, name) for name in names})


SettingsT = TypeVar("SettingsT", bound=Settings)


def with_seed(settings: SettingsT, seed: int) -> SettingsT:
    """The same settings with another seed."""
    return changed(settings, seed=seed)


def with_changes(settings: RecapSettings, section: str, **values: Any) -> RecapSettings:
    """The same settings, some of one section changed and all checked again."""
    return changed(settings, **{section: values})


def result_file(out: Path, cell: Cell) -> Path:
    """Where a cell's result is kept."""
    return out / "cells" / f"{cell.name}.json"


def write_result(out: Path, cell: Cell, result: dict[str, Any]) -> None:
    """Keep a finished cell."""
    content = {"cell": cell.as_json(), **result}
    write_atomic(result_file(out, cell), json.dumps(content, indent=1) + "\n")


def is_done(out: Path, cell: Cell) -> bool:
    """Tell whether a cell has a whole result; a damaged one is run again."""
    try:
        found = json.loads(result_file(out, cell).read_text(encoding="utf-8"))
        # Settings that the cell was run without are as they always were.
        own = settings_from_dict(found["cell"]["settings"])
        return "metrics" in found and own == cell.settings
    except (OSError, ValueError, TypeError, KeyError, SettingsError):
        return False


@contextmanager
def refusing_damage(file: Path) -> Iterator[None]:
    """Whatever fails while a kept result is read is told as damage of its file."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile) as error:
        raise InputError(f"{file}: is damaged ({error}). Remove it and run again.") from error


def read_results(out: Path) -> Iterator[dict[str, Any]]:
    """All finished cells of a folder, by name."""
    if not (out / "cells").is_dir():
        raise InputError(f"{out}: no results here. Make some with `recap bench run --out {out}`.")
    for file in sorted((out / "cells").rglob("*.json")):
        with refusing_damage(file):
            result = json.loads(file.read_text(encoding="utf-8"))
        yield result


def parse_numbers(text: str) -> list[int]:
    """Numbers and ranges such as "0,2,4" and "0-4"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"'{text}' is not a list of numbers. Write it as 0,4,16 or 0-4.")
        span = range(int(first), int(last if dash else first) + 1)
        if not span:
            raise InputError(f"'{text}': {part.strip()} has nothing in it. Write it as 0-4.")
        numbers += span
    return list(dict.fromkeys(numbers))
