"""Prepared benchmarks from their public hosts: downloaded, checked and unpacked.

BMAD's authors share it in a Google Drive folder, without checksums. The one host that a program
can ask, and whose file has a published sha256, is the archive that anomalib downloads.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from recap._archive import unpack_archive
from recap._download import download
from recap._files import write_atomic
from recap.data.benchmark import PAPER_NAMES, Domain, layout_of, paper_order, read_domain
from recap.errors import InputError, SettingsError
from recap.progress import Progress, silent

RECORD = "pulled.json"
MB = 10**6


@dataclass(frozen=True)
class Source:
    """One archive on a public host; `sha256` is None where nobody has published one."""

    url: str
    sha256: str | None
    checksum_from: str
    size: str
    licence: str


SOURCES = {
    "bmad": Source(
        url="https://huggingface.co/datasets/code-dev05/BMAD/resolve/main/bmad.zip",
        sha256="df655def31f3f638a91c567550de54d6e45a74b2368f666c13a6a3052c063165",
        checksum_from="anomalib's BMAD data module",
        size="21.8 GB",
        licence="CC BY-NC-SA 4.0",
    )
}

Say = Callable[[str], None]


def pull(
    name: str,
    to: Path,
    domains: Sequence[str] = (),
    *,
    url: str | None = None,
    sha256: str | None = None,
    report: Progress = silent,
    say: Say = lambda line: None,
) -> list[Domain]:
    """Get a prepared benchmark into a folder: all of its domains, or those named.

    An interrupted pull goes on when it is called again. With an address of your own and no
    sha256, the digest that is seen is recorded in `pulled.json` and holds from then on.
    """
    wanted = _domain_names(domains)
    missing = [domain for domain in wanted if layout_of(to / domain) is None]
    if missing:
        _refuse_in_the_way([to / domain for domain in missing])
        source = _source(name, to, url, sha256)
        say(_announcement(source))
        archive = to / (unquote(Path(urlsplit(source.url).path).name) or f"{name}.archive")
        seen = download(
            source.url,
            archive,
            sha256=source.sha256,
            progress=lambda stage, done, total, name: report(
                stage, done // MB, max(done, total) // MB, f"MB of {name}"
            ),
        )
        say(_record(to, source, seen))
        _unpack_domains(archive, to, missing, bool(domains), report)
        say(f"{archive} is no longer needed, unless you want to pull further domains.")
    return [read_domain(to / domain) for domain in wanted if layout_of(to / domain)]


def _refuse_in_the_way(places: Sequence[Path]) -> None:
    """Tell before the download what would fail after it."""
    for place in places:
        is_free = place.is_dir() and not place.is_symlink() and not any(place.iterdir())
        if os.path.lexists(place) and not is_free:
            raise InputError(
                f"{place}: holds something else than this domain. Move it away, or choose another "
                "--to.",
                path=place,
            )


def _domain_names(given: Sequence[str]) -> list[str]:
    """Folder names for domain names in any case, such as brain, BrainMRI or Brain_AD."""
    names = {folder.lower(): folder for folder in PAPER_NAMES}
    known = names | {paper.lower(): folder for folder, paper in PAPER_NAMES.items()}
    keys = [name.lower().removesuffix("_ad") for name in given]
    for name, key in zip(given, keys, strict=True):
        if key not in known:
            raise SettingsError(f"There is no domain '{name}'. Choose from {', '.join(names)}.")
    return sorted({known[key] for key in keys} or PAPER_NAMES, key=paper_order)


def _source(name: str, to: Path, url: str | None, sha256: str | None) -> Source:
    if name not in SOURCES:
        raise SettingsError(f"There is no benchmark '{name}' to pull. Known: {', '.join(SOURCES)}.")
    if sha256 is not None and (len(sha256) != 64 or set(sha256.lower()) - set("0123456789abcdef")):
        raise SettingsError(f"'{sha256}' is not a sha256: that has 64 hexadecimal digits.")
    source = SOURCES[name]
    if url is not None and url != source.url:
        earlier = _read_record(to).get(url, {}).get("sha256")
        origin = f"an earlier pull, in {RECORD}" if earlier else "nobody"
        source = Source(url, earlier, origin, "size unknown", source.licence)
    return replace(source, sha256=sha256.lower(), checksum_from="you") if sha256 else source


def _announcement(source: Source) -> str:
    check = f"checked against the sha256 from {source.checksum_from}"
    return f"Downloading {source.url} ({source.size}; licence of the data: {source.licence}), " + (
        check if source.sha256 else "for which NO checksum is known"
    )


def _record(to: Path, source: Source, seen: str) -> str:
    """Note where the archive came from and its digest; returns what to tell the user."""
    records = _read_record(to)
    records[source.url] = {**asdict(source), "sha256": seen}
    write_atomic(to / RECORD, json.dumps(records, indent=2) + "\n")
    if source.sha256:
        return f"sha256 {seen}: as expected."
    return (
        f"sha256 {seen}: NOT CHECKED, for there was nothing to check it against. It is trusted "
        f"on first use and recorded in {to / RECORD}; later pulls from there must have it."
    )


def _read_record(to: Path) -> dict[str, Any]:
    try:
        records = json.loads((to / RECORD).read_text(encoding="utf-8"))
        if all(isinstance(record["sha256"], str) for record in records.values()):
            return dict(records)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InputError(f"{to / RECORD}: this record of earlier pulls is damaged. Remove it.")


def _unpack_domains(
    archive: Path, to: Path, domains: Sequence[str], all_needed: bool, report: Progress
) -> None:
    """Unpack beside, then move into place, so that a domain is there whole or not at all."""
    scratch = to / f".{archive.name}.unpacking"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        unpack_archive(
            archive,
            scratch,
            lambda path: _place(path, domains),
            progress=report,
        )
        found = [domain for domain in domains if layout_of(scratch / domain)]
        absent = [domain for domain in domains if domain not in found]
        if not found or (absent and all_needed):
            raise InputError(
                f"{archive}: does not hold {', '.join(absent)} in the benchmark's layout "
                "(NAME/{train,valid,test}/{good,Ungood}). Look into it with unzip -l or tar -t.",
                path=archive,
            )
        for domain in found:
            (scratch / domain).replace(to / domain)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _place(path: PurePosixPath, domains: Sequence[str]) -> PurePosixPath | None:
    """`Brain/…`, `Brain_AD/…` or `BMAD/Brain/…` to `Brain/…`; nothing hidden."""
    if any(part.startswith(".") or part == "__MACOSX" for part in path.parts):
        return None
    wanted = {domain.lower(): domain for domain in domains}
    for depth, part in enumerate(path.parts[:3]):
        domain = wanted.get(part.lower().removesuffix("_ad"))
        if domain is not None:
            return PurePosixPath(domain, *path.parts[depth + 1 :])
    return None
