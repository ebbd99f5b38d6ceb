"""Hostile uploads to a running service: only 4xx, nothing out of place, no growth.

    python benchmarks/hostile_uploads.py [--count 5000] [--seed 0] [--clients 4] [--damaged 300]

A service on a tiny detector is started in a folder of its own, as its own process. Uploads that
must be refused (`hostile_files.py`) are sent to it, the same ones for the same seed; each must be
answered with 4xx. Afterwards nothing may be left of them: no job, no file in the data folder, in
the temporary folder or in the working folder, no file of their names elsewhere; and the service's
memory may not have grown. Then randomly damaged copies of real files follow, which may still be
readable: none may be answered with 5xx, and each accepted one must end. Linux only.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import typer
from hostile_files import MARK, MULTIPART, RARE, Attack, attack, form

MEGABYTE = 2**20
WARM_UP = 200
MOST_GROWTH = 64 * MEGABYTE
RARE_EVERY = 500
_SERVE = "import typer; from recap.cli.serve import serve_command as c; typer.run(c)"


def main(count: int = 5000, seed: int = 0, clients: int = 4, damaged: int = 300) -> None:
    with tempfile.TemporaryDirectory(prefix="hostile-") as root:
        service = Service(Path(root))
        try:
            outcome = send_all(service, count, seed, clients)
            print_table(outcome)
            faults = outcome.faults + service.traces(Path(root))
            faults += send_damaged(service, damaged, seed)
        finally:
            service.process.kill()
            service.process.wait()
    for fault in faults[:50]:
        print(f"FAULT: {fault}")
    if faults:
        raise typer.Exit(1)


class Service:
    """`recap serve` on a tiny detector, in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.data, self.home, self.scratch = root / "data", root / "home", root / "scratch"
        for folder in (self.home, self.scratch):
            folder.mkdir()
        bundle = tiny_bundle(root / "made")
        # Posts of this benchmark come from one address, faster than a client should.
        arguments = ["--data", str(self.data), "--port", "0", "--queue", "1000"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(bundle), *arguments],
            cwd=self.home,
            env={**os.environ, "TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = self._wait()

    def _wait(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"http://[0-9.:]+", line):
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                break
        else:
            raise SystemExit("the service did not start")
        for _ in range(600):
            try:
                if httpx.get(f"{found[0]}/healthz").status_code == 200:
                    return found[0]
            except httpx.HTTPError:
                time.sleep(0.2)
        raise SystemExit("the service is not well")

    def resident(self) -> int:
        return resident_bytes(self.process.pid)

    def inspectors(self) -> int:
        """The memory of its largest child."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = {pid for task in tasks for pid in task.read_text().split()}
        return max((resident_bytes(int(pid)) for pid in children), default=0)

    def traces(self, root: Path) -> list[str]:
        """What is left of uploads that were refused."""
        found = [
            f"left in {path}" for f in ("jobs", "incoming") for path in (self.data / f).iterdir()
        ]
        found += [f"made {path}" for path in self.home.iterdir()]
        found += [f"made {path}" for path in self.scratch.iterdir()]
        known = {"data", "home", "scratch", "made"}
        found += [f"made {path}" for path in root.iterdir() if path.name not in known]
        for folder in (Path("/"), Path("/tmp"), Path("/etc"), Path.home(), root.parent):
            found += [f"made {path}" for path in folder.glob(f"*{MARK}*")]
        jobs = httpx.get(f"{self.address}/api/v1/jobs?limit=1000").json()
        return found + [f"accepted {job['id']}" for job in jobs]


def resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) * 1024 if found else 0


def tiny_bundle(folder: Path) -> Path:
    """A detector on a random encoder of a few kilobytes."""
    import torch
    import transformers

    import recap

    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        patch_size=14,
        image_size=70,
    )
    transformers.Dinov2Model(config).save_pretrained(folder / "encoder", safe_serialization=True)
    settings = recap.resolve_settings(encoder={"name": str(folder / "encoder"), "input_px": 70})
    images = [np.random.default_rng(n).random((70, 70)).astype(np.float32) for n in range(3)]
    recap.fit(images, settings=settings).save(folder / "tiny.recap")
    return folder / "tiny.recap"


class Outcome:
    """What came of all uploads."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.faults: list[str] = []
        self.memory: list[tuple[int, int]] = []
        self.slowest = 0.0
        self.seconds = 0.0
        self.done = 0


def make_attack(number: int, seed: int) -> Attack:
    rng = np.random.default_rng([seed, number])
    if number % RARE_EVERY != RARE_EVERY // 2:
        return attack(rng)
    make = RARE[number // RARE_EVERY % len(RARE)]
    body = form(make(rng), "a.zip")
    return Attack(make.__name__.replace("_", " "), body, MULTIPART)


def send_all(service: Service, count: int, seed: int, clients: int) -> Outcome:
    for number in range(200):  # imports and files that all threads share
        make_attack(number, seed)
    outcome = Outcome()
    numbers = iter(range(count))
    started = time.perf_counter()

    def work() -> None:
        with httpx.Client(timeout=180, trust_env=False) as http:
            while True:
                with outcome.guard:
                    number = next(numbers, None)
                if number is None:
                    return
                send_one(http, service, make_attack(number, seed), number, outcome)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.seconds = time.perf_counter() - started
    grown = outcome.memory[-1][0] - outcome.memory[0][0] if outcome.memory else 0
    if grown > MOST_GROWTH:
        outcome.faults.append(f"the service grew by {grown / MEGABYTE:.0f} MB")
    return outcome


def send_one(
    http: httpx.Client, service: Service, made: Attack, number: int, outcome: Outcome
) -> None:
    headers = {"Content-Type": made.content_type}
    while True:
        started = time.perf_counter()
        answer = http.post(f"{service.address}/api/v1/jobs", content=made.body, headers=headers)
        if answer.status_code != 429:
            break
        time.sleep(0.5)
    with outcome.guard:
        outcome.statuses[made.kind, answer.status_code] += 1
        outcome.slowest = max(outcome.slowest, time.perf_counter() - started)
        outcome.done += 1
        if outcome.done >= WARM_UP and outcome.done % 100 == 0:
            outcome.memory.append((service.resident(), service.inspectors()))
        if outcome.done % 500 == 0:
            print(f"{outcome.done} sent", file=sys.stderr, flush=True)
        if not 400 <= answer.status_code < 500:
            outcome.faults.append(f"{made.kind} {number}: {answer.status_code} {answer.text[:200]}")
        if str(service.data) in answer.text:
            outcome.faults.append(f"{made.kind} {number}: tells of a folder: {answer.text[:200]}")


def send_damaged(service: Service, count: int, seed: int) -> list[str]:
    """Copies of real files with random damage: no 5xx, and what is accepted ends."""
    from damage import DAMAGES
    from whole_files import all_sources

    sources = [(kind, data) for kind, files in all_sources().items() for _, data in files]
    faults: list[str] = []
    statuses: Counter[int] = Counter()
    with httpx.Client(timeout=180, trust_env=False) as http:
        for number in range(count):
            rng = np.random.default_rng([seed, 1, number])
            kind, data = sources[int(rng.integers(len(sources)))]
            others = [other for same, other in sources if same == kind]
            other = others[int(rng.integers(len(others)))]
            copy = DAMAGES[int(rng.integers(len(DAMAGES)))](bytearray(data), rng, other)
            files = {"file": (f"{number}.{kind.lower()}", copy)}
            answer = http.post(f"{service.address}/api/v1/jobs", files=files)
            statuses[answer.status_code] += 1
            if answer.status_code >= 500:
                faults.append(f"damaged {kind} {number}: {answer.status_code}")
        ends = wait_for_all(http, service)
    print(f"damaged copies: {dict(sorted(statuses.items()))}; jobs: {dict(ends)}")
    if set(ends) - {"done", "failed"}:
        faults.append(f"jobs that did not end: {dict(ends)}")
    return faults


def wait_for_all(http: httpx.Client, service: Service) -> Counter[str]:
    deadline = time.monotonic() + 600
    while True:
        jobs = http.get(f"{service.address}/api/v1/jobs?limit=1000").json()
        ends = Counter(job["status"] for job in jobs)
        if not {"queued", "running"} & set(ends) or time.monotonic() > deadline:
            return ends
        time.sleep(0.5)


def print_table(outcome: Outcome) -> None:
    kinds = sorted({kind for kind, _ in outcome.statuses})
    codes = sorted({code for _, code in outcome.statuses})
    print(f"{'':<20}" + "".join(f"{code:>7}" for code in codes))
    for kind in kinds:
        counts = "".join(f"{outcome.statuses[kind, code] or '':>7}" for code in codes)
        print(f"{kind:<20}{counts}")
    first, last = outcome.memory[0], outcome.memory[-1]
    most = max(each for _, each in outcome.memory)
    print(
        f"{outcome.done} uploads in {outcome.seconds:.0f} s, the slowest {outcome.slowest:.1f} s; "
        f"service {first[0] / MEGABYTE:.0f} → {last[0] / MEGABYTE:.0f} MB, "
        f"inspectors at most {most / MEGABYTE:.0f} MB"
    )


if __name__ == "__main__":
    typer.run(main)
