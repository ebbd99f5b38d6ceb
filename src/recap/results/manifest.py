"""manifest.json of a scored folder: what was run on what, how long it took, and what failed."""

import json
import platform
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recap._download import sha256_of
from recap._files import write_atomic
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.results.table import MANIFEST, TABLE, WHOLE, Row, Shard, all_of
from recap.scoring.bundle import library_versions
from recap.scoring.detector import Detector

_NOT_TOLD = {"support", "losses", "calibration", "head_sha256"}


class Stages:
    """Seconds by the name of a stage.

    Stages run at the same time in several threads: their seconds may add up to more than passed.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a step to its stage, whether it succeeds or not."""
        started = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - started
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + passed


class Manifest:
    """The manifest of one run."""

    def __init__(
        self,
        out: Path,
        detector: Detector,
        reading: ReadingSettings,
        ignore: Path | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        self.reading, self.shard, self.stages = reading, shard, Stages()
        self._out, self._detector = out, detector
        self._decided = decided_by(detector, ignore)
        self._started = time.time()

    def refuse_other_results(self) -> None:
        """Refuse a folder with results of another detector, runtime, way of reading or calibration.

        The float runtimes agree but for rounding; still the manifest could name only one of them.
        """
        for path in all_of(self._out, MANIFEST):
            self._compare_with(path)

    def _compare_with(self, path: Path) -> None:
        out = self._out
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            fingerprint, read_as = before["bundle"]["fingerprint"], before["reading"]
            decided = before["decisions"]
            computed = before.get("runtime", {})
            runtime, graph = computed.get("runtime", "torch"), computed.get("graph")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is damaged. Choose another --out.") from error
        if fingerprint != self._detector.card.fingerprint:
            raise InputError(f"{out} holds the results of another detector. Choose another --out.")
        if read_as != self.reading.model_dump(mode="json"):
            raise InputError(
                f"{out} holds results of files that were read with other settings ({read_as}). "
                "Choose another --out."
            )
        if _without_place(decided) != _without_place(self._decided):
            raise InputError(
                f"{out} holds results that were decided by another calibration, or only one of "
                "the two runs has ignore masks. Choose another --out."
            )
        now = self._runtime["runtime"]
        if runtime != now:
            raise InputError(
                f"{out} holds results of the runtime {runtime}, but this run would score with "
                f"{now}. Pass --runtime {runtime} to go on, or choose another --out."
            )
        if graph is not None and graph != self._runtime.get("graph"):
            raise InputError(
                f"{out} holds results of another graph for {runtime}, and those of int8 differ by "
                "the images that they were made with. Choose another --out."
            )

    def write(self, status: str, rows: Sequence[Row]) -> None:
        """Write it as things stand."""
        card = self._detector.card
        failed = [row for row in rows if row.status != "ok"]
        table = self._out / self.shard.file(TABLE)
        manifest: dict[str, Any] = {
            "status": status,
            "shard": str(self.shard),
            "cases": {"ok": len(rows) - len(failed), "error": len(failed)},
            "errors": {row.case: row.error for row in failed},
            "seconds": round(time.time() - self._started, 3),
            "stages": {name: round(seconds, 3) for name, seconds in self.stages.seconds.items()},
            "started_unix": round(self._started, 3),
            "versions": {**library_versions(), "python": platform.python_version()},
            "runtime": self._runtime,
            "bundle": card.model_dump(mode="json", exclude=_NOT_TOLD),
            "reading": self.reading.model_dump(mode="json"),
            "decisions": self._decided,
            "maps": {
                "npy": "float32; pictures and frames in source pixels, slides as docs/files.md "
                "says",
                "nii.gz": "float32, on the source volume's own grid",
                "drawn_from_to": self._detector.map_scale,
            },
            "sha256": {table.name: sha256_of(table)} if status == "complete" else {},
        }
        path = self._out / self.shard.file(MANIFEST)
        write_atomic(path, json.dumps(manifest, indent=2) + "\n")

    @property
    def _runtime(self) -> dict[str, Any]:
        runtime = self._detector.runtime
        if runtime is not None:
            return runtime.describe()
        return {"runtime": "torch", "device": str(self._detector.model.device)}


def decided_by(detector: Detector, ignore: Path | None) -> dict[str, Any] | None:
    """Record what decisions and regions come from; None without a calibration."""
    calibration = detector.card.calibration
    if calibration is None:
        return None
    return {
        "sha256": calibration.digest,
        "source": calibration.source,
        "kind": calibration.kind,
        "normal_images": len(calibration.normal_scores),
        "fpr": calibration.fpr,
        "threshold": calibration.threshold,
        "map_level": calibration.map_level,
        "rule": calibration.rule,
        "guarantee": calibration.guarantee,
        "ignore": None if ignore is None else str(ignore),
    }


def _without_place(decided: dict[str, Any] | None) -> dict[str, Any] | None:
    """Keep what decides; masks do so by their content, which the rows have, wherever they lie."""
    return decided and {**decided, "ignore": decided.get("ignore") is not None}


def add_to_manifest(
    out: Path,
    seconds: dict[str, float],
    files: Sequence[str] = (),
    shard: Shard = WHOLE,
    **entries: Any,
) -> None:
    """Note what was done after scoring: seconds by stage, files written, and anything else."""
    path = out / shard.file(MANIFEST)
    manifest = json.loads(path.read_text(encoding="utf-8"))
    stages = {name: round(value, 3) for name, value in seconds.items()}
    manifest["stages"] = {**manifest.get("stages", {}), **stages}
    digests = {name: sha256_of(out / name) for name in files}
    manifest["sha256"] = {**manifest.get("sha256", {}), **digests}
    write_atomic(path, json.dumps({**manifest, **entries}, indent=2) + "\n")
