"""One unit of preparation: checked against what was done before, made whole or not at all."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypedDict

from recap._download import sha256_of
from recap._files import write_atomic
from recap._process import Processes, run_each
from recap.data.prepare.plan import Item, Probe
from recap.errors import InputError, RecapError

_DIED = (
    "the process that worked on it died: out of memory, killed, or a decoder crashed. "
    "Try again with --workers 1, or look at this file."
)
JOURNAL = ".prepare.jsonl"
MANIFEST = "manifest.json"
Kind = Literal["items", "probes"]
# A smaller run may be followed by a larger one in the same folder.
_MAY_CHANGE = ("limit",)


class Record(TypedDict, total=False):
    """A finished unit's inputs and outputs; names only, no folders, no times."""

    work: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    facts: Any


Records = dict[Kind, dict[str, Record]]


@dataclass(frozen=True)
class Task:
    """A unit with all that another process must know."""

    unit: Item | Probe
    raw: Path
    folder: Path
    known: Record | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a task; `reason` is empty where it went well."""

    key: str
    record: Record = field(default_factory=Record)
    reused: bool = False
    reason: str = ""
    fatal: bool = False
    """The result cannot be written: going on is of no use."""


class _WriteError(Exception):
    """The domain's folder cannot be written to."""


def execute(task: Task) -> Outcome:
    """Do a task, unless its record still holds. Never raises for what is inside the inputs."""
    key, record = task.unit.key, Record(inputs={})
    try:
        record["work"] = fingerprint(task.unit.work, task.raw)
        for path in task.unit.inputs:
            record["inputs"][relative(path, task.raw)] = sha256_of(path)
        if task.known is not None and _holds(task.known, record, task.folder):
            return Outcome(key, task.known, reused=True)
        if isinstance(task.unit, Probe):
            # Through JSON, so that a fresh fact and a recorded one are the same.
            record["facts"] = json.loads(json.dumps(task.unit.work()))
        else:
            record["outputs"] = _write_all(task.unit, task.folder)
    except _WriteError as error:
        return Outcome(key, record, reason=str(error), fatal=True)
    except ImportError:
        raise  # the installation is broken, not the input
    # Decoders answer a damaged file with almost any exception.
    except Exception as error:
        return Outcome(key, record, reason=reason_of(error, task.raw))
    return Outcome(key, record)


def fingerprint(work: Callable[[], Any], raw: Path) -> str:
    """Name a function and its arguments, wherever the raw folder lies."""
    if not isinstance(work, partial):
        raise TypeError(f"the work must be a functools.partial, not {work!r}")
    said = f"{work.func.__module__}.{work.func.__qualname__}{work.args!r}{work.keywords!r}"
    return hashlib.sha256(said.replace(str(raw), "").encode()).hexdigest()


def relative(path: Path, raw: Path) -> str:
    """A path as the manifest has it."""
    return path.relative_to(raw).as_posix() if path.is_relative_to(raw) else path.name


def reason_of(error: Exception, raw: Path) -> str:
    """One line without the raw folder's own place."""
    text = " ".join(str(error).split()).replace(f"{raw}/", "")
    if isinstance(error, OSError) and error.filename:
        text = f"{relative(Path(error.filename), raw)}: {error.strerror}."
    return text if isinstance(error, RecapError | OSError) else f"{type(error).__name__}: {text}"


def _holds(known: Record, now: Record, folder: Path) -> bool:
    if known.get("work") != now["work"] or known.get("inputs") != now["inputs"]:
        return False
    outputs = [(folder / path, digest) for path, digest in known.get("outputs", {}).items()]
    return all(path.is_file() and sha256_of(path) == digest for path, digest in outputs)


def _write_all(item: Item, folder: Path) -> dict[str, str]:
    """Write what an item yields, in turn; after a failure nothing of it stays."""
    written: dict[str, str] = {}
    try:
        for output in item.work():
            try:
                write_atomic(folder / output.path, output.data)
            except InputError as error:
                raise _WriteError(f"{error} What is finished stays.") from error
            written[output.path] = hashlib.sha256(output.data).hexdigest()
    except Exception:
        for path in written:
            (folder / path).unlink(missing_ok=True)
        raise
    return dict(sorted(written.items()))


def run_tasks(tasks: Sequence[Task], workers: int) -> Iterator[Outcome]:
    """Do all tasks, in any order; up to one worker runs here, without other processes."""
    if workers <= 1:
        return map(execute, tasks)
    engine = Processes(workers, queued=2)
    return (outcome for _, outcome in run_each(execute, tasks, engine, _died))


def _died(task: Task, reason: str) -> Outcome:
    return Outcome(task.unit.key, reason=_DIED)


@dataclass
class Journal:
    """The records of earlier runs, and an open file for those of this one."""

    known: Records
    file: IO[str]

    def add(self, kind: Kind, key: str, record: Record) -> None:
        """Keep a finished unit; a killed process loses none that was added."""
        self.file.write(json.dumps([kind, key, record]) + "\n")
        self.file.flush()


def open_journal(folder: Path, header: Mapping[str, Any]) -> Journal:
    """Read what earlier runs with the same options finished in this folder, and go on from there.

    Records of another version only say which files to replace: everything is made anew.
    """
    known: Records = {"items": {}, "probes": {}}
    found = [part for part in (_manifest(folder), _journal(folder)) if part is not None]
    if not found and folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"{folder}: holds files that were not made by `recap data prepare`. "
            "Remove them, or give another folder with --to."
        )
    for before, records in found:
        _refuse_other(folder, before, header)
        if _without_options(before) != _without_options(header):
            records = {
                kind: {key: Record(**{**record, "work": ""}) for key, record in units.items()}
                for kind, units in records.items()
            }
        for kind, units in records.items():
            known[kind].update(units)
    return Journal(known, _start(folder, header, known))


def write_manifest(folder: Path, content: Mapping[str, Any]) -> Path:
    """End a run: the manifest takes the journal's place."""
    path = folder / MANIFEST
    write_atomic(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
    (folder / JOURNAL).unlink(missing_ok=True)
    return path


def _start(folder: Path, header: Mapping[str, Any], known: Records) -> IO[str]:
    lines = [json.dumps(header)]
    lines += [json.dumps([kind, key, known[kind][key]]) for kind in known for key in known[kind]]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / JOURNAL, "\n".join(lines) + "\n")
    # From here on the folder may change, and an unfinished one has no manifest.
    (folder / MANIFEST).unlink(missing_ok=True)
    return (folder / JOURNAL).open("a", encoding="utf-8")


def _journal(folder: Path) -> tuple[dict[str, Any], Records] | None:
    path = folder / JOURNAL
    if not path.is_file():
        return None
    first, *rest = path.read_text(encoding="utf-8").splitlines() or [""]
    records: Records = {"items": {}, "probes": {}}
    try:
        header: dict[str, Any] = json.loads(first)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: cannot be read. Remove {folder} and start again.") from error
    for line in rest:
        try:
            kind, key, record = json.loads(line)
        except ValueError:
            break  # the line that was being written when the process was killed
        records[kind][key] = record
    return header, records


def _manifest(folder: Path) -> tuple[dict[str, Any], Records] | None:
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        records: Records = {"items": content.pop("items"), "probes": content.pop("probes")}
        return content["made_by"], records
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path}: not a manifest of `recap data prepare`. Remove {folder}, "
            "or give another folder with --to."
        ) from error


def _refuse_other(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if before["source"] != now["source"]:
        raise InputError(f"{folder}: was made from '{before['source']}', not '{now['source']}'.")
    was, wanted = before["options"], now["options"]
    other = [name for name in wanted if was.get(name) != wanted[name] and name not in _MAY_CHANGE]
    if other:
        raise InputError(
            f"{folder}: was prepared with another {', '.join(other)}. "
            "Remove it, or give another folder with --to."
        )


def _without_options(header: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in header.items() if key != "options"}
