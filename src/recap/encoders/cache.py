"""recap's own cache of encoders: one folder each, complete and checked before it appears.

Each folder has a ledger; files elsewhere (a user's folder, the hub's cache) have theirs in
`digests`, so that they too are hashed only when they changed.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recap.encoders import header, ledger
from recap.encoders.hub import CONFIG_FILE, PREPROCESSOR_FILE, WEIGHTS_FILE
from recap.encoders.normalisation import USUAL, normalisation_of
from recap.encoders.registry import EncoderEntry, find
from recap.errors import WeightsError

LEDGER_FILE = "ledger.json"


class WrongDigestError(WeightsError):
    """A weights file is not the one that was pinned or recorded."""


def cache_dir() -> Path:
    """Where recap keeps what it fetched: RECAP_CACHE, else recap in the user's cache folder."""
    if own := os.environ.get("RECAP_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "recap"


def folder_of(name: str) -> Path:
    """The folder of an encoder in the cache, there or not."""
    entry = find(name)
    folder_name = entry.name if entry else name.replace("/", "--", 1)
    if re.fullmatch(r"\w[\w.-]*", folder_name, re.ASCII) is None:
        raise WeightsError(
            f"'{name}' cannot be an encoder's name: use letters, digits, '.', '_' and '-'."
        )
    return cache_dir() / "encoders" / folder_name


def folders() -> dict[str, Path]:
    """Every encoder's folder in the cache, by the encoder's name."""
    root = cache_dir() / "encoders"
    if not root.is_dir():
        return {}
    found = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
    return {folder.name.replace("--", "/", 1): folder for folder in found}


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A scratch folder that takes the place of `folder` once it is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".incoming-") as scratch:
            fresh = Path(scratch) / "new"
            fresh.mkdir()
            yield fresh
            if folder.exists():
                folder.rename(Path(scratch) / "old")
            fresh.rename(folder)
    except OSError as error:
        raise WeightsError(
            f"Cannot write {folder}: {error}. Check its rights and the free space, "
            "or set RECAP_CACHE to another folder."
        ) from error


def complete(folder: Path, entry: EncoderEntry) -> None:
    """Write what a bare weights file of a named encoder lacks."""
    config = {"model_type": entry.model_type, **entry.config}
    normalisation = {"image_mean": entry.mean, "image_std": entry.std}
    for file, values in ((CONFIG_FILE, config), (PREPROCESSOR_FILE, normalisation)):
        if not (folder / file).is_file():
            (folder / file).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def accept(folder: Path, record: ledger.Record, entry: EncoderEntry | None) -> None:
    """Check a folder that is to enter the cache, complete it and open its ledger."""
    weights = folder / WEIGHTS_FILE
    if entry is not None:
        header.check_fits(weights, {"model_type": entry.model_type, **entry.config})
        if entry.sha256 not in (None, record.sha256):
            raise WrongDigestError(
                f"The file offered as '{entry.name}' has sha256 {record.sha256}, expected "
                f"{entry.sha256}: it was not kept. Use {WEIGHTS_FILE} of {entry.hub_id} at "
                f"revision {entry.revision}, or give your own file another name."
            )
        complete(folder, entry)
    config = header.read_config(folder / CONFIG_FILE)
    header.check_fits(weights, config)
    if entry is None and config["model_type"] in USUAL:
        normalisation_of(folder, config)  # a damaged file is told of now, not when it is used
    ledger.save(folder / LEDGER_FILE, record)


def checked_digest(weights: Path, entry: EncoderEntry | None, *, ours: bool) -> str:
    """The file's digest, from the ledger if it has not changed, checked against the pin.

    A file of our own cache without a pin must keep the digest of its first use.
    """
    path = _ledger_path(weights, ours)
    known, expected = ledger.load(path), entry.sha256 if entry else None
    if known is not None and known.is_current(weights):
        record = known
    elif known is not None and ours:
        record = ledger.measure(weights, known.source, known.revision)
        expected = expected or known.sha256
    else:
        record = ledger.measure(weights, "copied" if ours else "outside")
    if expected not in (None, record.sha256):
        raise WrongDigestError(
            f"{weights} has sha256 {record.sha256}, expected {expected}. Run "
            "`recap weights pull` or `recap weights add` to put the right file in its place."
        )
    if record is not known:
        ledger.save_if_possible(path, record)
    return record.sha256


def _ledger_path(weights: Path, ours: bool) -> Path:
    if ours:
        return weights.parent / LEDGER_FILE
    key = hashlib.sha256(str(weights.absolute()).encode()).hexdigest()[:32]
    return cache_dir() / "digests" / f"{key}.json"
