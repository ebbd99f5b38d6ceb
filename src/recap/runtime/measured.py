"""What auto found out about this machine, kept in the cache folder."""

import hashlib
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from recap._files import write_atomic
from recap.encoders._cache import cache_dir
from recap.errors import InputError
from recap.runtime.check import ALLOWED, largest_differences
from recap.runtime.cores import Cores
from recap.runtime.machine import machine_facts
from recap.runtime.record import ExportRecord
from recap.scoring.arrays import Runtime

ROUNDS = 5


class Measured(BaseModel):
    """The time of each runtime, and why others have none."""

    model_config = ConfigDict(extra="forbid")
    milliseconds: dict[str, float]
    """Per image, the best of some rounds."""
    left_out: dict[str, str]
    machine: dict[str, str]

    def fastest(self, gain: float) -> str:
        """The fastest runtime; torch unless another takes less than `gain` of its time."""
        best = min(self.milliseconds, key=lambda name: self.milliseconds[name])
        return best if self.milliseconds[best] < gain * self.milliseconds["torch"] else "torch"

    def in_words(self) -> str:
        """The times as one line."""
        times = [f"{name} {ms:.1f} ms" for name, ms in self.milliseconds.items()]
        notes = [f"{name} left out ({why})" for name, why in self.left_out.items()]
        return "measured on this machine: " + ", ".join([*times, *notes])


def time_each(
    runtimes: Mapping[str, Runtime],
    input_px: int,
    left_out: dict[str, str] | None = None,
    lanes: int = 1,
) -> Measured:
    """Best time of each runtime per image; they take turns, so that a slow moment hits all of them.

    A runtime that does not agree with torch on this machine is left out, however fast it is.
    """
    pixels = np.random.default_rng(0).random((1, 3, input_px, input_px), np.float32)
    expected = runtimes["torch"].run(pixels)
    left_out = dict(left_out or {})
    for name, runtime in runtimes.items():
        difference = max(largest_differences(expected, runtime.run(pixels)).values())
        if difference > ALLOWED:
            left_out[name] = f"differs from torch by {difference:.2g} on this machine"
    best = {name: float("inf") for name in runtimes if name not in left_out}
    with ThreadPoolExecutor(lanes) as pool:
        for _ in range(ROUNDS):
            for name in best:
                start = time.perf_counter()
                list(pool.map(runtimes[name].run, [pixels] * lanes))
                best[name] = min(best[name], 1000 * (time.perf_counter() - start) / lanes)
    return Measured(milliseconds=best, left_out=left_out, machine=machine_facts())


def recall(records: Mapping[str, ExportRecord], cores: Cores) -> Measured | None:
    """What was measured before for these graphs on this machine, if anything."""
    try:
        return Measured.model_validate_json(_file(records, cores).read_text(encoding="utf-8"))
    except (OSError, ValidationError, ValueError):
        return None


def remember(records: Mapping[str, ExportRecord], cores: Cores, measured: Measured) -> None:
    """Keep a measurement; a cache that cannot be written is measured again next time."""
    try:
        write_atomic(_file(records, cores), measured.model_dump_json(indent=2) + "\n")
    except InputError:
        return


def _file(records: Mapping[str, ExportRecord], cores: Cores) -> Path:
    graphs = {kind: [record.source, record.files] for kind, record in records.items()}
    key = json.dumps([graphs, machine_facts(), cores.threads, cores.lanes], sort_keys=True)
    return cache_dir() / "runtimes" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
