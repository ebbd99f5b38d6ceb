"""The model hub: its local cache, whether it can be reached, and single files from it."""

import json
import os
import re
import shutil
import socket
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from recap.errors import WeightsError
from recap.progress import Progress

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
PREPROCESSOR_FILE = "preprocessor_config.json"
TOKENISER_FILES = ("tokenizer.json", "vocab.json", "merges.txt")
"""Text and JSON, of models with a text tower; either the first, or both others."""

PROBE_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Downloaded:
    """What the hub said of the weights that it sent."""

    sha256: str | None
    revision: str | None


def is_hub_id(name: str) -> bool:
    """Whether a name has the form organisation/model."""
    part = r"\w(?:[\w.-]{0,94}\w)?"
    form = re.fullmatch(f"{part}/{part}", name, re.ASCII)
    return form is not None and not re.search(r"--|\.\.|\.git$", name)


def cached_folder(hub_id: str, revision: str | None) -> Path | None:
    """The folder of the hub's own cache that holds configuration and weights, if it does."""
    from huggingface_hub import try_to_load_from_cache

    paths = [
        try_to_load_from_cache(hub_id, file, cache_dir=_cache_root(), revision=revision)
        for file in (CONFIG_FILE, WEIGHTS_FILE)
    ]
    folders = {Path(path).parent for path in paths if isinstance(path, str)}
    return folders.pop() if all(isinstance(path, str) for path in paths) else None


def why_unreachable() -> str | None:
    """Try to connect to the hub for a few seconds; what hinders it, or None."""
    if _is_set("HF_HUB_OFFLINE") or _is_set("TRANSFORMERS_OFFLINE"):
        return "HF_HUB_OFFLINE is set"
    host, port = _first_hop(endpoint())
    outcome: list[str | None] = [f"{host} did not answer within {PROBE_TIMEOUT_S:.0f} s"]
    # In a thread, because looking up a name knows no time-out.
    probe = threading.Thread(target=_connect, args=(host, port, outcome), daemon=True)
    probe.start()
    probe.join(PROBE_TIMEOUT_S + 0.5)
    return outcome[-1]


def endpoint() -> str:
    """The address of the hub, from HF_ENDPOINT or the library's default."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def download(hub_id: str, revision: str | None, folder: Path, progress: Progress) -> Downloaded:
    """Fetch configuration and weights, and nothing else, into a folder."""
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    # Connection errors come from the hub library's HTTP client, whichever it is.
    network_errors: Any = (OSError, getattr(errors, "HTTPError", OSError))
    try:
        url = hf_hub_url(hub_id, WEIGHTS_FILE, revision=revision, endpoint=endpoint())
        stated = get_hf_file_metadata(url, timeout=ANSWER_TIMEOUT_S, endpoint=endpoint())
        commit = stated.commit_hash or revision
        _fetch(hub_id, CONFIG_FILE, commit, folder)
        for file in (PREPROCESSOR_FILE, *_files_for_text(folder)):
            _fetch_if_there(hub_id, file, commit, folder)
        progress("weights", 0, 0, f"{hub_id}: {WEIGHTS_FILE}, {(stated.size or 0) / 1e6:.0f} MB")
        _fetch(hub_id, WEIGHTS_FILE, commit, folder)
    except errors.RemoteEntryNotFoundError as error:
        raise WeightsError(_no_safetensors(hub_id, revision)) from error
    except network_errors as error:
        raise WeightsError(_explain(hub_id, error)) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    etag = stated.etag or ""
    return Downloaded(etag if re.fullmatch(r"[0-9a-f]{64}", etag) else None, commit)


def _fetch(hub_id: str, file: str, revision: str | None, folder: Path) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(
        hub_id,
        file,
        revision=revision,
        local_dir=folder,
        endpoint=endpoint(),
        etag_timeout=ANSWER_TIMEOUT_S,
    )


def _fetch_if_there(hub_id: str, file: str, revision: str | None, folder: Path) -> None:
    from huggingface_hub.errors import RemoteEntryNotFoundError

    try:
        _fetch(hub_id, file, revision, folder)
    # Its parent class is also raised where the hub fails or does not answer: an error, not this.
    except RemoteEntryNotFoundError:
        return


def _files_for_text(folder: Path) -> tuple[str, ...]:
    """What a model with a text tower needs beside its weights, by its configuration."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError:  # damaged: said when the folder is taken into the cache
        return ()
    return TOKENISER_FILES if isinstance(config, dict) and "text_config" in config else ()


def how_to_convert(hub_id: str, name: str, *parts: str) -> str:
    """What to do about a model that the hub has only as a pickle: how to save the model and, with
    classes of transformers, other parts of it."""
    saves = "; ".join(
        f"t.{p}.from_pretrained('{hub_id}').save_pretrained('encoder')"
        for p in ("AutoModel", *parts)
    )
    return (
        "convert it once, on any machine that can reach the hub, with "
        f'`python -c "import transformers as t; {saves}"`, '
        f"then run `recap weights add encoder --name {name}`."
    )


def _no_safetensors(hub_id: str, revision: str | None) -> str:
    place = f"{hub_id} at revision {revision}" if revision else hub_id
    return (
        f"{place} has no {WEIGHTS_FILE} or no {CONFIG_FILE}, and recap never opens pickles: "
        + how_to_convert(hub_id, hub_id, "AutoImageProcessor")
    )


def _explain(hub_id: str, error: Exception) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what the hub answered, rather than that the file is not here
    if isinstance(error, GatedRepoError):
        return f"{hub_id} is gated: accept its terms on the hub and set HF_TOKEN, then pull again."
    if isinstance(error, RepositoryNotFoundError):
        return f"The hub has no model '{hub_id}', or it is private (then set HF_TOKEN)."
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"The hub did not send {hub_id}: {first_line}"


def _cache_root() -> str | None:
    """The hub's cache as the environment says now; the library reads it only once."""
    if root := os.environ.get("HF_HUB_CACHE"):
        return root
    home = os.environ.get("HF_HOME")
    return str(Path(home).expanduser() / "hub") if home else None


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")


def _first_hop(address: str) -> tuple[str, int]:
    """The machine to which the first connection goes: the proxy if there is one."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(host):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.hostname or host, parts.port or (80 if parts.scheme == "http" else 443)


def _connect(host: str, port: int, outcome: list[str | None]) -> None:
    try:
        socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S).close()
    except OSError as error:
        outcome.append(f"no connection to {host}: {error}")
    else:
        outcome.append(None)
