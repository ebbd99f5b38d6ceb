"""recap's own cache of encoders, and what a folder with an encoder must hold.

One folder each, complete and checked before it appears. Of weights only the header is read: names
and shapes, no torch. Each folder has a ledger, so that an unchanged file is not hashed at every
load; files elsewhere (a user's folder, the hub's cache) have theirs in `digests`.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recap._download import sha256_of
from recap._files import write_atomic
from recap.encoders._hub import CONFIG_FILE, PREPROCESSOR_FILE, WEIGHTS_FILE
from recap.encoders.registry import (
    EncoderEntry,
    Normalisation,
    Triple,
    all_families,
    find,
    patch_tensors,
    vision_tower,
)
from recap.errors import InputError, WeightsError

LEDGER_FILE = "ledger.json"


Shapes = dict[str, tuple[int, ...]]

CONVERT = (
    "`recap weights add` takes a model.safetensors, files of torch (.bin, .pt: read, never "
    "unpickled), or a folder with one of them and its config.json."
)
_HEADER_LIMIT_BYTES = 100_000_000


@dataclass(frozen=True)
class Record:
    """The digest of a file, the size and time at which it was taken, and where it came from."""

    sha256: str
    size: int
    mtime_ns: int
    source: str
    revision: str | None

    def is_current(self, weights: Path) -> bool:
        """Tell if the file still has the size and time of the record."""
        stat = weights.stat()
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


def measure(weights: Path, source: str, revision: str | None = None) -> Record:
    """Hash a file now."""
    stat = weights.stat()
    return Record(sha256_of(weights), stat.st_size, stat.st_mtime_ns, source, revision)


def load_record(path: Path) -> Record | None:
    """Read a record; None if there is none, or none that can be read."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def save_record(path: Path, record: Record) -> None:
    """Write a record so that a reader sees the old one or the new one, never half of it."""
    # All who share the cache read it: for those who may not, a file would have no pin.
    write_atomic(path, json.dumps(asdict(record), indent=2))


def save_record_if_possible(path: Path, record: Record) -> None:
    """Write a record, or go without: in a read-only cache the file is hashed again next time."""
    with contextlib.suppress(InputError):
        save_record(path, record)


class WrongDigestError(WeightsError):
    """A weights file is not the one that was pinned or recorded."""


def cache_dir() -> Path:
    """Find where recap keeps what it fetched: RECAP_CACHE, else the user's cache folder."""
    if own := os.environ.get("RECAP_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "recap"


def folder_of(name: str) -> Path:
    """Name the folder of an encoder in the cache, there or not."""
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
    """Open a scratch folder that takes the place of `folder` once it is complete."""
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


def accept(folder: Path, record: Record, entry: EncoderEntry | None) -> None:
    """Check a folder that is to enter the cache, complete it and open its ledger."""
    weights = folder / WEIGHTS_FILE
    if entry is not None:
        check_fits(weights, {"model_type": entry.model_type, **entry.config})
        if entry.sha256 not in (None, record.sha256):
            raise WrongDigestError(
                f"The file offered as '{entry.name}' has sha256 {record.sha256}, expected "
                f"{entry.sha256}: it was not kept. Use {WEIGHTS_FILE} of {entry.hub_id} at "
                f"revision {entry.revision}, or give your own file another name."
            )
        complete(folder, entry)
    config = read_config(folder / CONFIG_FILE)
    check_fits(weights, config)
    if entry is None and config["model_type"] in all_families():
        normalisation_of(folder, config)  # a damaged file is told of now, not when it is used
    save_record(folder / LEDGER_FILE, record)


def checked_digest(weights: Path, entry: EncoderEntry | None, *, ours: bool) -> str:
    """Return the file's digest, from the ledger if it has not changed, checked against the pin.

    A file of our own cache without a pin must keep the digest of its first use.
    """
    path = weights.parent / LEDGER_FILE
    if not ours:
        key = hashlib.sha256(str(weights.absolute()).encode()).hexdigest()[:32]
        path = cache_dir() / "digests" / f"{key}.json"
    known, expected = load_record(path), entry.sha256 if entry else None
    if known is not None and known.is_current(weights):
        record = known
    elif known is not None and ours:
        record = measure(weights, known.source, known.revision)
        expected = expected or known.sha256
    else:
        record = measure(weights, "copied" if ours else "outside")
    if expected not in (None, record.sha256):
        raise WrongDigestError(
            f"{weights} has sha256 {record.sha256}, expected {expected}. Run "
            "`recap weights pull` or `recap weights add` to put the right file in its place."
        )
    if record is not known:
        save_record_if_possible(path, record)
    return record.sha256


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration of the vision model in a config.json, with its model_type."""
    try:
        if path.exists() and not path.is_file():  # a named pipe would be waited for
            raise OSError("this is no plain file")
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"Cannot read {path}: {error}. An encoder folder holds config.json and "
            "model.safetensors, as transformers' save_pretrained writes them; `recap weights list` "
            "shows the named encoders."
        ) from error
    kind = str(config.get("model_type", "")) if isinstance(config, dict) else ""
    known = patch_tensors()
    kind = vision_tower(kind)
    if kind not in known:
        raise WeightsError(
            f"{path}: model type '{kind}' is not supported. Supported: {', '.join(sorted(known))}."
        )
    return {**config.get("vision_config", config), "model_type": kind}


def read_shapes(path: Path) -> Shapes:
    """Read the names and shapes in a safetensors file; an error says what the file is instead."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if size < 8 or length > min(_HEADER_LIMIT_BYTES, size - 8):
            raise WeightsError(f"{path} {_what_it_is(path, start, size)}")
        header = _parse(path, stream.read(length))
    try:
        shapes = {name: tuple(value["shape"]) for name, value in header.items()}
        end = max((value["data_offsets"][1] for value in header.values()), default=0)
    except (TypeError, KeyError, IndexError) as error:
        raise WeightsError(f"{path} is not a safetensors file: its header is damaged.") from error
    if 8 + length + end != size:
        raise WeightsError(
            f"{path} has {size} bytes, its header announces {8 + length + end}: "
            "the copy is incomplete. Copy it again."
        )
    return shapes


def check_fits(path: Path, config: dict[str, Any]) -> None:
    """Raise unless the file holds a model of this configuration."""
    shapes = read_shapes(path)
    # Of a model with a text tower, the image tower alone.
    shapes = {name: shape for name, shape in shapes.items() if "vision_model." in name} or shapes
    kind = config["model_type"]
    tensor = patch_tensors()[kind]
    found = next((shape for name, shape in shapes.items() if name.endswith(tensor)), None)
    if found is None:
        raise WeightsError(
            f"{path} holds no '{tensor}': it is not a '{kind}' model in transformers' layout."
        )
    width, patch = config.get("hidden_size"), config.get("patch_size")
    if width is not None and found[0] != width:
        raise WeightsError(f"{path} has width {found[0]}, config.json says {width}: wrong file.")
    if patch is not None and math.prod(found[1:]) != config.get("num_channels", 3) * patch**2:
        raise WeightsError(f"{path} has patches {found[1:]}, config.json says {patch} px.")
    depth = config.get("num_hidden_layers")
    layers = len({m[1] for name in shapes if (m := re.search(r"\blayers?\.(\d+)\.", name))})
    if depth is not None and layers != depth:
        raise WeightsError(f"{path} has {layers} layers, config.json says {depth}: wrong file.")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise WeightsError(f"{path} is not a safetensors file: its header is no JSON.") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is not a safetensors file: its header is no JSON object.")
    header.pop("__metadata__", None)
    return header


def _what_it_is(path: Path, start: bytes, size: int) -> str:
    if size == 0:
        return "is empty. Copy it again."
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80" or path.suffix in (".bin", ".pt", ".pth"):
        return f"is a pickle or an archive. {CONVERT}"
    if start == b"version ":
        return "is a Git LFS pointer, not the file itself: run `git lfs pull` where it comes from."
    return "is not a safetensors file, or its copy is incomplete."


def normalisation_of(folder: Path, config: dict[str, Any]) -> Normalisation:
    """Read the mean and std beside the weights, or those usual in the family."""
    return _stated(folder) or all_families()[config["model_type"]].normalisation


def assumed_normalisation(name: str, folder: Path) -> str | None:
    """Say what is assumed of an encoder in a folder; None where its own files say it."""
    kind = read_config(folder / CONFIG_FILE)["model_type"]
    if find(name) is not None or kind not in all_families() or _stated(folder) is not None:
        return None
    mean, std = all_families()[kind].normalisation
    return (
        f"{name}: no {PREPROCESSOR_FILE} says how pixels are normalised. Assumed, as usual for "
        f"{kind}: mean {list(mean)}, std {list(std)}. If it was trained on others, put that file "
        "beside its weights."
    )


def _stated(folder: Path) -> Normalisation | None:
    path = folder / PREPROCESSOR_FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        mean, std = values.get("image_mean"), values.get("image_std")
        return None if mean is None or std is None else (_triple(mean), _triple(std, least=1e-6))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{path} is damaged: its image_mean and image_std must be three numbers each, and no "
            "std may be 0. Copy it again from where the encoder comes from."
        ) from error


def _triple(values: list[float], least: float = -math.inf) -> Triple:
    red, green, blue = map(float, values)
    if not all(math.isfinite(value) and value >= least for value in (red, green, blue)):
        raise ValueError(values)
    return red, green, blue
