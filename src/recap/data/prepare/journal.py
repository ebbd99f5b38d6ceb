"""What is finished, kept so that a killed run goes on where it was.

While a run is under way, `.prepare.jsonl` in the domain's folder has a line for every finished
unit. At the end `manifest.json` takes its place and says the same.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from recap._files import write_atomic
from recap.data.prepare.work import Record
from recap.errors import InputError

JOURNAL = ".prepare.jsonl"
MANIFEST = "manifest.json"
Kind = Literal["items", "probes"]
Records = dict[Kind, dict[str, Record]]
# A smaller run may be followed by a larger one in the same folder.
_MAY_CHANGE = ("limit",)


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
            records = {kind: _outdated(units) for kind, units in records.items()}
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


def _outdated(units: dict[str, Record]) -> dict[str, Record]:
    return {key: Record(**{**record, "work": ""}) for key, record in units.items()}
