"""Makes a domain of the benchmark from a raw source: in parallel, resumable, the same every time.

The result depends on the inputs and the options only, not on the number of workers, their order,
or how often the run was killed: even the manifest has the same bytes.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from PIL import features

from recap.data.prepare.plan import Item, Note, Plan, PrepareOptions, Probe, Source, Split
from recap.data.prepare.work import (
    Journal,
    Kind,
    Outcome,
    Record,
    Task,
    open_journal,
    run_tasks,
    write_manifest,
)
from recap.data.supports import LINE, read_list
from recap.errors import InputError, SettingsError
from recap.progress import Progress, silent

NAMES = ("brainmri", "liverct", "resc", "oct17", "chest", "his")


@dataclass(frozen=True)
class Summary:
    """The images that a run made, and those that it could not make."""

    folder: Path
    manifest: Path
    counts: dict[str, int]
    """Images by place, such as "valid/good"."""
    made: int
    reused: int
    skipped: tuple[Note, ...]
    errors: tuple[Note, ...]
    caveats: tuple[str, ...]


def prepare(
    source: Source,
    raw: Path,
    root: Path,
    options: PrepareOptions | None = None,
    workers: int = 1,
    progress: Progress = silent,
) -> Summary:
    """Make `<root>/<domain>_AD` from a raw folder; what an earlier run finished is kept.

    One missing or broken input never stops the rest: it is named among the errors.
    """
    options = options or PrepareOptions()
    if options.patient_split and (options.pool_normal or options.pool_abnormal):
        raise SettingsError(
            "The published lists put patients into the pool who are in test as well, so they "
            "do not go together with --patient-split. Leave one of the two out."
        )
    raw, folder = Path(raw).resolve(), Path(root) / f"{source.domain}_AD"
    if not raw.is_dir():
        raise source.wrong_folder(raw, "there is no such folder")
    plan = source.plan(raw, options)
    run = _Run(source, raw, folder, workers, progress, options)
    return run.complete(plan)


class _Run:
    """The state of one run: what came out of each unit so far."""

    def __init__(
        self,
        source: Source,
        raw: Path,
        folder: Path,
        workers: int,
        progress: Progress,
        options: PrepareOptions,
    ) -> None:
        self.raw, self.folder = raw, folder
        self.workers, self.progress = workers, progress
        self.header = _header(source, options)
        self.journal: Journal = open_journal(folder, self.header)
        self.records: dict[Kind, dict[str, Record]] = {"items": {}, "probes": {}}
        self.failed: list[tuple[Note, Record]] = []
        self.made = self.reused = 0

    def complete(self, plan: Plan) -> Summary:
        try:
            while plan.choose is not None:
                self._run("probes", plan.probes, "Looking")
                facts = {key: unit["facts"] for key, unit in sorted(self.records["probes"].items())}
                then = plan.choose(facts)
                plan = dataclasses.replace(
                    then,
                    skipped=plan.skipped + then.skipped,
                    errors=plan.errors + then.errors,
                    caveats=plan.caveats + then.caveats,
                )
            self._run("items", plan.items, "Preparing")
        finally:
            self.journal.file.close()
        self._refuse_clashes()
        self._remove_stale()
        return self._end(plan)

    def _run(self, kind: Kind, units: Iterable[Item | Probe], stage: str) -> None:
        known = self.journal.known[kind]
        tasks = [
            Task(unit, self.raw, self.folder, known.get(unit.key))
            for unit in sorted(units, key=lambda unit: unit.key)
        ]
        keys = Counter(task.unit.key for task in tasks)
        if len(keys) < len(tasks):
            raise InputError(f"{self.raw}: '{keys.most_common(1)[0][0]}' occurs twice. Keep one.")
        for done, outcome in enumerate(run_tasks(tasks, self.workers), start=1):
            self._take(kind, outcome)
            self.progress(stage, done, len(tasks), outcome.key)

    def _take(self, kind: Kind, outcome: Outcome) -> None:
        if outcome.fatal:
            raise InputError(outcome.reason)
        if outcome.reason:
            self.failed.append((Note(outcome.key, outcome.reason), outcome.record))
            return
        self.records[kind][outcome.key] = outcome.record
        if not outcome.reused:
            self.journal.add(kind, outcome.key, outcome.record)
        if kind == "items":
            self.reused += outcome.reused
            self.made += not outcome.reused

    def _outputs(self) -> list[str]:
        return [path for unit in self.records["items"].values() for path in unit["outputs"]]

    def _refuse_clashes(self) -> None:
        for path, times in Counter(self._outputs()).most_common(1):
            if times > 1:
                raise InputError(
                    f"{self.raw}: {times} inputs become the same {path}. Remove the copies."
                )

    def _remove_stale(self) -> None:
        """Delete what only earlier runs made: its input is gone, broken or not chosen.

        All that is there is looked at: of an item that a killed run moved to another split, the
        journal knows the later place only.
        """
        wanted = {self.folder / path for path in self._outputs()}
        for split in get_args(Split):
            for path in [*(self.folder / split).rglob("*")]:
                if path not in wanted and (path.is_symlink() or not path.is_dir()):
                    path.unlink()

    def _end(self, plan: Plan) -> Summary:
        failed = sorted(
            [*((note, Record()) for note in plan.errors), *self.failed],
            key=lambda pair: (pair[0].key, pair[0].reason),
        )
        skipped = sorted(plan.skipped, key=lambda note: (note.key, note.reason))
        made = map(PurePosixPath, self._outputs())
        counts = Counter(str(path.parents[1]) for path in made if path.parent.name == "img")
        content: dict[str, Any] = {
            "made_by": self.header,
            "caveats": plan.caveats,
            "counts": counts,
            "items": self.records["items"],
            "probes": self.records["probes"],
            "skipped": [dataclasses.asdict(note) for note in skipped],
            "errors": [
                {**dataclasses.asdict(note), "inputs": record.get("inputs", {})}
                for note, record in failed
            ],
        }
        return Summary(
            self.folder,
            write_manifest(self.folder, content),
            dict(sorted(counts.items())),
            self.made,
            self.reused,
            tuple(skipped),
            tuple(note for note, _ in failed),
            plan.caveats,
        )


def _header(source: Source, options: PrepareOptions) -> dict[str, Any]:
    names = ("recap-ad", "numpy", "pillow", *source.packages)
    versions = {name: _version(name) for name in names}
    # The bytes of a PNG are the compressor's.
    versions["zlib"] = features.version("zlib") or ""
    header = {
        "source": source.name,
        "revision": source.revision,
        "options": dataclasses.asdict(options),
        "versions": versions,
    }
    # Through JSON, so that it equals what is read back.
    return dict(json.loads(json.dumps(header)))


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def find_source(name: str) -> Source:
    """A source by its name."""
    if name not in NAMES:
        raise SettingsError(f"No source is called '{name}'. There are: {', '.join(NAMES)}.")
    source: Source = import_module(f"recap.data.prepare.{name}").SOURCE
    return source


def listed_names(places: Iterable[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Normal and abnormal names of list files (`n-0: …`, `a-0: …`), or of all .txt in folders."""
    names: dict[str, set[str]] = {"n": set(), "a": set()}
    for place in places:
        files = sorted(place.glob("*.txt")) if place.is_dir() else [place]
        if not files:
            raise InputError(f"{place}: no support lists (*.txt) in this folder.")
        for file in files:
            lines = read_list(file).splitlines()
            matches = [LINE.fullmatch(line.strip()) for line in lines if line.strip()]
            if not matches or None in matches:
                raise InputError(
                    f"{file}: not a support list. Expected lines 'n-0: file …' and 'a-0: file …'."
                )
            for match in filter(None, matches):
                names[match[1]].update(match[2].split())
    return tuple(sorted(names["n"])), tuple(sorted(names["a"]))
