"""What an audit leaves behind: a table, an exclusion list, and a summary to read."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from recap._files import write_atomic
from recap.data.audit import AuditReport, DomainAudit
from recap.data.benchmark import Domain
from recap.data.exclusions import entry_of
from recap.data.leaks import LEAKS, NOTES, Finding, Kind
from recap.data.text_names import as_text
from recap.errors import counted

TABLE = "audit.csv"
EXCLUSIONS = "exclude.txt"
CACHE = "fingerprints.sqlite"
SHOWN = 5
COLUMNS = ("domain", "kind", "pool_file", "test_file", "score", "detail")


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
            lines.append(f"# {finding.kind}: {_reason(finding, audited)}")
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
    yield from (f"    {_named(note, audited.domain)}" for note in unreadable[:SHOWN])
    if len(unreadable) > SHOWN:
        yield f"    … and {len(unreadable) - SHOWN} more ({TABLE})"


def _named(note: Finding, domain: Domain) -> str:
    path = note.test or note.pool
    assert path is not None
    return f"{entry_of(path, domain)}: {note.detail.removeprefix(f'{path}: ')}"


def _reasons(audited: DomainAudit, kinds: Collection[Kind]) -> dict[Path, Finding]:
    """The strongest leak of each test image, in the order of the split."""
    strongest: dict[Path, Finding] = {}
    for finding in audited.leaks:
        if finding.kind in kinds and finding.test is not None:
            strongest.setdefault(finding.test, finding)
    return {image.path: strongest[image.path] for image in audited.test if image.path in strongest}


def _reason(finding: Finding, audited: DomainAudit) -> str:
    score = "" if finding.score is None else f", score {finding.score:.3f}"
    pool = "" if finding.pool is None else entry_of(finding.pool, audited.domain)
    return f"{pool} ({finding.detail}{score})"
