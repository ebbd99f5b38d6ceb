"""Cells of the benchmark: one method on one data set with one number of shots and one seed.

Everything that decides a result is in its cell, what zero-shot cells learn from too: other sources
give another result.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from recap._files import write_atomic
from recap.bench.supports import Lists, SupportList, Supports
from recap.config import Section, Settings
from recap.data import Domain, Support
from recap.data.supports import relative_path
from recap.errors import InputError, SettingsError
from recap.methods.recap.settings import RecapSettings
from recap.methods.registry import changed, find_method
from recap.progress import Progress

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
    """A run of the benchmark; everything that decides the result is in it."""

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
    """What a zero-shot cell is fitted on (`recap.bench.cells`); few-shot cells have none."""
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

    def support(self, supports: Supports) -> Support | None:
        """Find what it is fitted on; None for zero-shot cells."""
        return supports.find(self.dataset, self.method, self.shots, self.draw, self.supports)

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
    """List the cells of a grid that make sense, the cheap ones first; settings by method.

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
    """Copy settings with another seed."""
    return changed(settings, seed=seed)


def with_changes(settings: RecapSettings, section: str, **values: Any) -> RecapSettings:
    """Copy settings, some of one section changed and all checked again."""
    return changed(settings, **{section: values})


def parse_numbers(text: str) -> list[int]:
    """Read numbers and ranges such as "0,2,4" and "0-4"."""
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


def with_sources(cells: Sequence[Cell], domains: Sequence[Domain]) -> list[Cell]:
    """Give zero-shot cells the domains that they are fitted on."""
    from recap.methods.images import leave_one_out

    @cache  # many cells learn from one domain
    def listed(domain: Domain, split: str) -> str:
        """Digest the names of files, labels and masks of a split; it does not open them."""
        samples = domain.pool() if split == "pool" else domain.test()
        files = [
            (relative_path(s.path, domain), s.abnormal, s.mask and relative_path(s.mask, domain))
            for s in samples
        ]
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:12]

    def sources(cell: Cell) -> Sources:
        training = getattr(cell.settings, "training", None)
        split = str(getattr(training, "source_split", "pool"))  # other methods take the pools
        chosen = leave_one_out(domains, cell.dataset)
        return tuple((domain.name, listed(domain, split)) for domain in chosen)

    return [
        cell if cell.shots or cell.sources else replace(cell, sources=sources(cell))
        for cell in cells
    ]


EVERY_S = 1.0
_FILE = "progress.json"


@dataclass(frozen=True)
class HowFar:
    """Steps of a stage that are done, of so many."""

    stage: str
    done: int
    total: int


def work_folder(out: Path, name: str) -> Path:
    """Name the folder of what an interrupted cell goes on from."""
    return out / "work" / name


def noting(work: Path, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Note every stage when it begins, and then once a second."""
    noted, due = "", 0.0

    def note(stage: str, done: int, total: int, detail: str) -> None:
        nonlocal noted, due
        if stage == noted and clock() < due:
            return
        noted, due = stage, clock() + EVERY_S
        with suppress(InputError):  # where nothing can be written, the fit itself will say so
            write_atomic(work / _FILE, json.dumps(asdict(HowFar(stage, done, total))))

    return note


def how_far(out: Path, name: str) -> HowFar | None:
    """Read what was noted last of the cell of a name, if anything was."""
    try:
        return HowFar(**json.loads((work_folder(out, name) / _FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
