"""The service's side of the inspectors: a few processes that are replaced when they fall."""

import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import Any

from recap.io.decoding import BUDGET

# A process that has seen this many uploads makes room for a fresh one.
MOST_UPLOADS = 500
# Of Python and the decoders' code; what they decode comes on top of it.
BASE_BYTES = 3 * 2**29
_FALLEN = {
    "code": "input",
    "detail": "The upload cannot be read: its decoder crashed or took too long.",
}


class Inspector:
    """One process, asked one thing at a time."""

    def __init__(self, decoding_bytes: int, pixels: int) -> None:
        self.asked = 0
        limits = [BASE_BYTES + decoding_bytes, decoding_bytes, pixels]
        self._process = subprocess.Popen(
            # Without -P, modules of the folder that the service runs in would be imported.
            [sys.executable, "-P", "-m", "recap.service.inspector", *map(str, limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """Wait for its answer; None if it died or took longer."""
        self.asked += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        line = self._read_line(time.monotonic() + seconds)
        return json.loads(line) if line else None

    def _read_line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        pipe, line = self._process.stdout.fileno(), b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            block = os.read(pipe, 2**16) if ready else b""
            if not block:
                return b""
            line += block
        return line

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not read by a dead process cannot be flushed
                    continue


class Inspection:
    """Inspectors that wait for uploads. `check` may be called from any thread.

    Together they decode within one budget: each has its share of it.
    """

    def __init__(self, most: int, seconds: float, pixels: int) -> None:
        self._limits = (BUDGET.limit_bytes // most, pixels)
        self._free: list[Inspector] = []
        self._places = threading.Semaphore(most)
        self._guard = threading.Lock()
        self._seconds = seconds

    def start(self) -> None:
        """Have one ready: the first upload need not wait for its imports."""
        with self._guard:
            self._free.append(Inspector(*self._limits))

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have an upload looked at; an inspector that falls over it is an answer too."""
        with self._places:
            with self._guard:
                free = self._free.pop() if self._free else None
            inspector = free or Inspector(*self._limits)
            answer = inspector.ask(request, self._seconds)
            if answer is None or inspector.asked >= MOST_UPLOADS:
                inspector.end()
            else:
                with self._guard:
                    self._free.append(inspector)
            return _FALLEN if answer is None else answer

    def stop(self) -> None:
        """End all that are free."""
        with self._guard:
            for inspector in self._free:
                inspector.end()
            self._free.clear()
