"""Counts and times in the text format that Prometheus reads."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0)


class Histogram:
    """How often something took how long."""

    def __init__(self) -> None:
        self.counts = [0] * len(BUCKETS)
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.total += seconds
        for number, bound in enumerate(BUCKETS):
            self.counts[number] += seconds <= bound

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The lines of one labelled histogram."""
        comma = f"{labels}," if labels else ""
        for bound, count in zip(BUCKETS, self.counts, strict=True):
            yield f'{name}_bucket{{{comma}le="{bound:g}"}} {count}'
        yield f'{name}_bucket{{{comma}le="+Inf"}} {self.count}'
        braced = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braced} {self.total:.6f}"
        yield f"{name}_count{braced} {self.count}"


class Metrics:
    """All that is counted; labels are ours, never a client's."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, Histogram] = defaultdict(Histogram)
        self._jobs: dict[tuple[str, str], Histogram] = defaultdict(Histogram)
        self._bytes = 0
        self._images = 0

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        with self._guard:
            self._requests[method, route, status] += 1
            self._seconds[route].add(seconds)

    def job(self, kind: str, status: str, seconds: float, images: int = 0) -> None:
        """Count a job that has ended."""
        with self._guard:
            self._jobs[kind, status].add(seconds)
            self._images += images

    def received(self, size: int) -> None:
        """Count the bytes of an upload."""
        with self._guard:
            self._bytes += size

    def mean_job_seconds(self) -> float:
        """How long jobs of scoring took so far."""
        with self._guard:
            done = self._jobs["score", "done"]
            return done.total / done.count if done.count else 1.0

    def text(self, jobs: dict[str, int]) -> str:
        """Everything, with the number of jobs in each state as it is now."""
        with self._guard:
            lines = [*_typed("recap_requests_total", "counter", "Requests answered.")]
            for (method, route, status), count in sorted(self._requests.items()):
                labels = f'method="{method}",route="{route}",status="{status}"'
                lines.append(f"recap_requests_total{{{labels}}} {count}")
            lines += _typed("recap_request_seconds", "histogram", "Time to answer.")
            for route, histogram in sorted(self._seconds.items()):
                lines += histogram.lines("recap_request_seconds", f'route="{route}"')
            lines += _typed("recap_job_seconds", "histogram", "Working time of jobs that ended.")
            for (kind, end), histogram in sorted(self._jobs.items()):
                labels = f'kind="{kind}",status="{end}"'
                lines += histogram.lines("recap_job_seconds", labels)
            lines += _one("recap_images_scored_total", "counter", "Images scored.", self._images)
            lines += _one("recap_upload_bytes_total", "counter", "Bytes received.", self._bytes)
        lines += _typed("recap_jobs", "gauge", "Jobs that are kept, by state.")
        lines += [f'recap_jobs{{status="{state}"}} {count}' for state, count in jobs.items()]
        lines += _one("recap_queue_length", "gauge", "Jobs that wait.", jobs.get("queued", 0))
        lines += _one("recap_resident_bytes", "gauge", "Memory in use.", resident_bytes())
        return "\n".join(lines) + "\n"


def resident_bytes() -> int:
    """Memory of this process, where Linux tells it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    found = [line for line in status.read_text().splitlines() if line.startswith("VmRSS:")]
    return int(found[0].split()[1]) * 1024 if found else 0


def _typed(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _one(name: str, kind: str, meaning: str, value: int) -> list[str]:
    return [*_typed(name, kind, meaning), f"{name} {value}"]
