"""Counts and times for Prometheus; labels are ours, never a client's."""

from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0)


class Metrics:
    """All that one service counts."""

    def __init__(self) -> None:
        disable_created_metrics()  # a line with the time of the start beside each of the others
        self._registry = own = CollectorRegistry()
        self._requests = Counter(
            "recap_requests", "Requests answered.", ["method", "route", "status"], registry=own
        )
        self._seconds = Histogram(
            "recap_request_seconds", "Time to answer.", ["route"], buckets=BUCKETS, registry=own
        )
        self._job_seconds = Histogram(
            "recap_job_seconds",
            "Working time of jobs that ended.",
            ["kind", "status"],
            buckets=BUCKETS,
            registry=own,
        )
        self._images = Counter("recap_images_scored", "Images scored.", registry=own)
        self._bytes = Counter("recap_upload_bytes", "Bytes received.", registry=own)
        self._jobs = Gauge("recap_jobs", "Jobs that are kept, by state.", ["status"], registry=own)
        self._queue = Gauge("recap_queue_length", "Jobs that wait.", registry=own)
        resident = Gauge("recap_resident_bytes", "Memory in use.", registry=own)
        resident.set_function(resident_bytes)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def job(self, kind: str, status: str, seconds: float, images: int = 0) -> None:
        """Count a job that has ended."""
        self._job_seconds.labels(kind, status).observe(seconds)
        self._images.inc(images)

    def received(self, size: int) -> None:
        """Count the bytes of an upload."""
        self._bytes.inc(size)

    def mean_job_seconds(self) -> float:
        """Average the working time of the jobs of scoring so far."""
        scored = {"kind": "score", "status": "done"}
        count = self._registry.get_sample_value("recap_job_seconds_count", scored)
        total = self._registry.get_sample_value("recap_job_seconds_sum", scored)
        return total / count if count and total is not None else 1.0

    def text(self, jobs: dict[str, int]) -> bytes:
        """Write everything down, with the number of jobs in each state as it is now."""
        for status, count in jobs.items():
            self._jobs.labels(status).set(count)
        self._queue.set(jobs.get("queued", 0))
        return generate_latest(self._registry)


def resident_bytes() -> int:
    """Read the memory of this process, where Linux tells it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    found = [line for line in status.read_text().splitlines() if line.startswith("VmRSS:")]
    return int(found[0].split()[1]) * 1024 if found else 0
