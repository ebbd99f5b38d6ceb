"""One unit of preparation: checked against what was done before, made whole or not at all."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from recap._download import sha256_of
from recap._files import write_atomic
from recap.data.prepare.plan import Item, Output, Probe
from recap.errors import InputError, RecapError


class Record(TypedDict, total=False):
    """What a finished unit was made from and what it made; names only, no folders, no times."""

    work: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    facts: Any


@dataclass(frozen=True)
class Task:
    """A unit with all that another process must know."""

    unit: Item | Probe
    raw: Path
    folder: Path
    known: Record | None = None


@dataclass(frozen=True)
class Outcome:
    """How a task ended; `reason` is empty where it went well."""

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
            _write(folder, output)
            written[output.path] = hashlib.sha256(output.data).hexdigest()
    except Exception:
        for path in written:
            (folder / path).unlink(missing_ok=True)
        raise
    return dict(sorted(written.items()))


def _write(folder: Path, output: Output) -> None:
    try:
        write_atomic(folder / output.path, output.data)
    except InputError as error:
        raise _WriteError(f"{error} What is finished stays.") from error
