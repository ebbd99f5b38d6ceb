"""The audit of data sets: leaks between the labelled pool and the test split of every domain."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from recap._files import write_atomic
from recap.data.benchmark import Domain, find_domains, list_split, no_images
from recap.data.copies import (
    LEAKS,
    NOTES,
    Audited,
    Finding,
    Kind,
    Side,
    find_duplicates,
    find_leaks,
    find_unreadable,
    read_fingerprints,
)
from recap.data.manifest import manifest_samples
from recap.data.patients import listed_patient, named_patient, slice_of
from recap.data.similar import Fingerprint
from recap.data.supports import entry_of
from recap.data.text_names import as_text
from recap.errors import InputError, counted
from recap.progress import Progress, silent
from recap.types import Sample

NEIGHBOUR_REACH = 2
TABLE = "audit.csv"
EXCLUSIONS = "exclude.txt"
CACHE = "fingerprints.sqlite"
SHOWN = 5
COLUMNS = ("domain", "kind", "pool_file", "test_file", "score", "detail")


@dataclass(frozen=True)
class DomainAudit:
    """The findings in one domain."""

    domain: Domain
    pool: list[Audited]
    test: list[Audited]
    leaks: list[Finding]
    notes: list[Finding]

    @property
    def patients_on_both_sides(self) -> list[str]:
        """The patients that the pool and the test split share."""
        shared = {finding.test for finding in self.leaks if finding.kind == LEAKS[-1]}
        return sorted({image.patient for image in self.test if image.path in shared})


@dataclass(frozen=True)
class AuditReport:
    """The findings in all domains under a folder."""

    domains: list[DomainAudit]

    @property
    def leaks(self) -> list[Finding]:
        """Findings that must not be between a pool and a test split."""
        return [leak for domain in self.domains for leak in domain.leaks]

    @property
    def notes(self) -> list[Finding]:
        """Findings inside one split that are worth a look."""
        return [note for domain in self.domains for note in domain.notes]


def audit(
    root: Path,
    progress: Progress = silent,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    reach: int = NEIGHBOUR_REACH,
) -> AuditReport:
    """Look for leaks between pool and test in every domain under a folder.

    `cache` is a file that keeps what was read of each image, so that a killed audit goes on;
    `reach` is how far apart the numbers of neighbouring slices of one volume may be.
    """
    splits = [
        (domain, _samples(domain, "pool"), _samples(domain, "test"))
        for domain in find_domains(Path(root))
    ]
    paths = [sample.path for _, pool, test in splits for sample in (*pool, *test)]
    prints = read_fingerprints(paths, cache, workers, progress)
    results = []
    for number, (domain, pool, test) in enumerate(splits):
        step = partial(_compared, progress, number, len(splits), domain.name)
        results.append(
            _audit_domain(domain, _known(pool, prints), _known(test, prints), reach, step)
        )
    progress("Comparing", len(splits), len(splits), "")
    return AuditReport(results)


def _compared(
    progress: Progress,
    number: int,
    domains: int,
    name: str,
    stage: str,
    done: int,
    total: int,
    detail: str,
) -> None:
    progress(stage, number, domains, f"{name}: {done} of {total}")


def _audit_domain(
    domain: Domain,
    pool: list[Audited],
    test: list[Audited],
    reach: int,
    progress: Progress,
) -> DomainAudit:
    return DomainAudit(
        domain,
        pool,
        test,
        leaks=find_leaks(pool, test, reach, progress),
        notes=[
            *find_duplicates(pool, "pool"),
            *find_duplicates(test, "test"),
            *find_unreadable(pool, "pool"),
            *find_unreadable(test, "test"),
        ],
    )


def _samples(domain: Domain, split: Side) -> list[Sample]:
    """List a split. Of folders the masks are left out: an audit needs none.

    Nothing may be missing from either side: an audit of a part would find no leaks in the rest.
    """
    if domain.layout == "manifest":
        return manifest_samples(domain.root, split, domain.name)
    files = list_split(domain.root, domain.layout, split)
    if not files.normal and not files.abnormal:
        raise InputError(no_images(domain, split))
    return [
        Sample(path, abnormal, domain=domain.name)
        for abnormal, paths in ((False, files.normal), (True, files.abnormal))
        for path in paths
    ]


def _known(samples: list[Sample], prints: dict[Path, Fingerprint]) -> list[Audited]:
    return [
        Audited(
            path=sample.path,
            abnormal=sample.abnormal,
            fingerprint=prints[sample.path],
            listed=sample.patient or listed_patient(sample.path),
            named=named_patient(sample.path, sample.domain),
            slice=slice_of(sample.path, sample.domain),
        )
        for sample in samples
    ]


def write_audit(
    report: AuditReport, folder: Path, kinds: Collection[Kind] = LEAKS
) -> tuple[Path, Path]:
    """Write audit.csv and exclude.txt; leaks of other than the given kinds are not excluded."""
    files = folder / TABLE, folder / EXCLUSIONS
    write_atomic(files[0], table(report))
    # Names as the system has them, so that reading the list finds the files.
    write_atomic(files[1], exclusion_list(report, kinds).encode(errors="surrogateescape"))
    return files


def table(report: AuditReport) -> str:
    """All findings as CSV, leaks before notes in each domain."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for audited in report.domains:
        for finding in (*audited.leaks, *audited.notes):
            sides = [
                "" if path is None else entry_of(path, audited.domain)
                for path in (finding.pool, finding.test)
            ]
            score = "" if finding.score is None else f"{finding.score:.3f}"
            cells = [audited.domain.name, finding.kind, *sides, score, finding.detail]
            writer.writerow(map(as_text, cells))
    return stream.getvalue()


def exclusion_list(report: AuditReport, kinds: Collection[Kind] = LEAKS) -> str:
    """The test images to leave out, each after a comment with its strongest reason."""
    lines = ["# Test images that share something with the labelled pool (recap data audit)."]
    for audited in report.domains:
        digests = {image.path: image.fingerprint.sha256 for image in audited.test}
        for path, finding in _reasons(audited, kinds).items():
            entry = entry_of(path, audited.domain)
            score = "" if finding.score is None else f", score {finding.score:.3f}"
            pool = "" if finding.pool is None else entry_of(finding.pool, audited.domain)
            lines.append(f"# {finding.kind}: {pool} ({finding.detail}{score})")
            lines.append(f"{entry}\t{digests[path]}" if digests[path] else entry)
    return "\n".join(lines) + "\n"


def summary(report: AuditReport) -> Iterator[str]:
    """Lines for people: what was compared in each domain, and what was found."""
    for audited in report.domains:
        images = [*audited.pool, *audited.test]
        nameless = sum(not image.patient for image in images)
        both = audited.patients_on_both_sides
        excluded = len(_reasons(audited, LEAKS))
        yield f"{audited.domain.name}: {len(audited.pool)} pool and {len(audited.test)} test images"
        if nameless == len(images):
            yield "  patients on both sides: cannot be told, no image has a known patient"
        else:
            unknown = f" (images without a known patient: {nameless})" if nameless else ""
            yield f"  patients on both sides: {len(both)}{unknown}"
        yield from _counts(audited)
        if excluded:
            yield f"  test images to exclude: {excluded}"
    leaks = len(report.leaks)
    yield counted(leaks, "leak") if leaks else "No leaks between pool and test."


def _counts(audited: DomainAudit) -> Iterator[str]:
    counts = Counter(finding.kind for finding in (*audited.leaks, *audited.notes))
    for kind in (*LEAKS, *NOTES):
        if counts[kind]:
            note = " (note)" if kind in NOTES else ""
            yield f"  {kind}: {counts[kind]}{note}"
    # Nothing was compared with these, so that a leak may hide in them.
    unreadable = [note for note in audited.notes if note.kind == "unreadable"]
    for found in unreadable[:SHOWN]:
        path = found.test or found.pool
        assert path is not None
        why = found.detail.removeprefix(f"{path}: ")
        yield f"    {entry_of(path, audited.domain)}: {why}"
    if len(unreadable) > SHOWN:
        yield f"    … and {len(unreadable) - SHOWN} more ({TABLE})"


def _reasons(audited: DomainAudit, kinds: Collection[Kind]) -> dict[Path, Finding]:
    """The strongest leak of each test image, in the order of the split."""
    strongest: dict[Path, Finding] = {}
    for finding in audited.leaks:
        if finding.kind in kinds and finding.test is not None:
            strongest.setdefault(finding.test, finding)
    return {image.path: strongest[image.path] for image in audited.test if image.path in strongest}
