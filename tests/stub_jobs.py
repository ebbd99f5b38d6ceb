"""Jobs that die, fail or take their time on request; importable by the processes they run in."""

import os
import signal
import time
from dataclasses import dataclass

from recap.bench.cells import plan_cells
from recap.bench.run import Job
from recap.errors import InputError
from recap.methods.registry import resolve_settings


@dataclass(frozen=True)
class StubJob(Job):
    act: str = "work"

    @property
    def label(self):
        return f"{self.act}-{self.cell.settings.seed}"

    def runs(self):
        return sorted(self.out.glob(f"{self.label}.*"))

    def run(self):
        attempt = len(self.runs())
        (self.out / f"{self.label}.{attempt}").write_text(str(os.getpid()))
        if self.act == "die" or (self.act == "die once" and attempt == 0):
            time.sleep(0.2)  # so that others are in the air
            os.kill(os.getpid(), signal.SIGKILL)
        if self.act == "fail":
            return str(InputError("chest.png: is damaged."))
        if self.act == "sleep":
            time.sleep(600)
        return ""


def stub_jobs(out, *acts):
    cells = plan_cells(
        dict.fromkeys(["nearest"], resolve_settings()), ["Brain"], [2], range(len(acts))
    )
    pairs = zip(cells, acts, strict=True)
    return [StubJob(cell, (), out, None, 1, act=act) for cell, act in pairs]


class Desk:
    """What an engine reported."""

    def __init__(self):
        self.started, self.ended = [], {}

    def start(self, job):
        self.started.append(job.label)

    def end(self, job, problem):
        assert job.label not in self.ended
        self.ended[job.label] = problem
