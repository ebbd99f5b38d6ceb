"""The audit of data sets: leaks between the labelled pool and the test split of every domain."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from recap.data.benchmark import Domain, find_domains, list_split, no_images
from recap.data.fingerprint_store import read_fingerprints
from recap.data.fingerprints import Fingerprint
from recap.data.leaks import (
    LEAKS,
    Audited,
    Finding,
    Side,
    find_duplicates,
    find_leaks,
    find_unreadable,
)
from recap.data.manifest import manifest_samples
from recap.data.patients import listed_patient, named_patient, slice_of
from recap.errors import InputError
from recap.progress import Progress, silent
from recap.types import Sample

NEIGHBOUR_REACH = 2


@dataclass(frozen=True)
class DomainAudit:
    """What was found in one domain."""

    domain: Domain
    pool: list[Audited]
    test: list[Audited]
    leaks: list[Finding]
    notes: list[Finding]

    @property
    def patients_on_both_sides(self) -> list[str]:
        """Whom the pool and the test split share."""
        shared = {finding.test for finding in self.leaks if finding.kind == LEAKS[-1]}
        return sorted({image.patient for image in self.test if image.path in shared})


@dataclass(frozen=True)
class AuditReport:
    """What was found in all domains under a folder."""

    domains: list[DomainAudit]

    @property
    def leaks(self) -> list[Finding]:
        """What must not be between a pool and a test split."""
        return [leak for domain in self.domains for leak in domain.leaks]

    @property
    def notes(self) -> list[Finding]:
        """What is worth a look inside one split."""
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
