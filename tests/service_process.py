"""The service in a process of its own, to be killed."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

_SCRIPT = """
import json, sys
from pathlib import Path
from recap.service.app import run_server
from recap.service.settings import ServerSettings
run_server(ServerSettings.model_validate_json(sys.argv[1]))
"""


class ServiceProcess:
    """Started on a free port; `address` is where it listens."""

    def __init__(self, bundles: list[Path], data: Path, **settings: Any) -> None:
        self.data = data
        given = {"bundles": tuple(bundles), "data": data, "port": 0, **settings}
        from recap.service.settings import ServerSettings

        text = ServerSettings(**given).model_dump_json()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, text], stderr=subprocess.PIPE, text=True
        )
        self.log: list[str] = []
        self._found = threading.Event()
        self.address = ""
        threading.Thread(target=self._read, daemon=True).start()
        assert self._found.wait(180), "\n".join(self.log)
        self._wait_until_healthy()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"http://[0-9.:]+", line):
                self.address = self.address or found[0]
                self._found.set()
        self._found.set()

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "".join(self.log)
            try:
                if httpx.get(f"{self.address}/healthz", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise AssertionError("".join(self.log))

    def kill(self) -> None:
        """Kill −9."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "ServiceProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def resident_bytes(self) -> int:
        """Its memory, as Linux counts it."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
