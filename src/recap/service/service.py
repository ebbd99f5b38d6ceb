"""All parts of the service, put together."""

import logging
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from recap.errors import counted
from recap.service.auth import Gate, Places, Rate
from recap.service.bundles import Bundles
from recap.service.inspection import Inspection
from recap.service.jobs import Jobs
from recap.service.metrics import Metrics
from recap.service.settings import ServerSettings, check_exposure
from recap.service.store import Store
from recap.service.workers import Workers

MOST_LISTENERS = 128
_log = logging.getLogger("recap.service")


@dataclass(frozen=True)
class Service:
    """All that routes work with."""

    settings: ServerSettings
    jobs: Jobs
    bundles: Bundles
    metrics: Metrics
    gate: Gate
    inspection: Inspection
    workers: Workers
    uploads: Places
    listeners: Places
    """Clients that follow a job's events."""
    posts: Rate

    def start(self) -> None:
        """Take up what a kill left behind, then work."""
        import_readers()
        left = self.jobs.recover()
        self.jobs.store.sweep()
        _log.info("%s taken up", counted(left, "unfinished job"))
        self.inspection.start()
        self.bundles.load_served()
        self.workers.start()

    def stop(self) -> None:
        """Come to a good end."""
        self.workers.stop()
        self.inspection.stop()
        self.jobs.store.close()

    def retry_seconds(self) -> int:
        """When it is worth coming back: when a tenth of the queue is worked off."""
        each = self.metrics.mean_job_seconds() / self.settings.workers
        return max(1, min(120, round(each * self.jobs.waiting() / 10)))


def import_readers() -> None:
    """Import what threads would otherwise import at the same time, which packages do not expect."""
    for name in ("scipy.ndimage", "pydicom", "nibabel", "nrrd", "openslide", "highdicom"):
        if find_spec(name.partition(".")[0]) is not None:
            import_module(name)


def build_service(settings: ServerSettings) -> Service:
    """Check the settings, take hold of the data folder, and prepare all parts."""
    check_exposure(settings)
    store = Store(settings.data)
    jobs = Jobs(store, settings.queue)
    bundles = Bundles(settings, store)
    metrics = Metrics()
    return Service(
        settings=settings,
        jobs=jobs,
        bundles=bundles,
        metrics=metrics,
        gate=Gate(settings),
        inspection=Inspection(settings.inspectors, settings.inspect_seconds, settings.max_pixels),
        workers=Workers(settings, jobs, bundles, metrics),
        uploads=Places(settings.uploads_at_once),
        listeners=Places(MOST_LISTENERS),
        posts=Rate(settings.posts_per_minute),
    )
