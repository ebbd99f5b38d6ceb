"""Damaged files: each must be read or refused in one line, soon and in bounded memory.

    python benchmarks/damaged_files.py [--copies 2000] [--seed 0] [--keep FOLDER]

Copies of real files (pydicom's, nibabel's and scikit-learn's) and of generated ones are damaged at
random, the same way for the same seed, and read by `recap.io.open_file` in a process of its own,
up to twenty images each. A copy that kills or hangs that process is counted, and a new one goes
on. Anything but an answer in one line makes the exit code 1; `--keep` saves such copies. Memory is
measured as Linux counts it.
"""

import os
import re
import resource
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import numpy as np
import typer
from damage import DAMAGES
from whole_files import Source, all_sources

LIMIT_SECONDS = 20
LIMIT_BYTES = 3 * 2**30
# Well above the limit that is measured: it keeps the machine alive.
LIMIT_ADDRESSES = 2 * LIMIT_BYTES
MOST_IMAGES = 20
FAULTS = ("traceback", "bad pixels", "crash", "hang", "memory")
OUTCOMES = ("read", "refused", *FAULTS)
# How many of twenty copies are of a format.
SHARES = {"PNG": 3, "JPEG": 2, "TIFF": 3, "WebP": 1, "DICOM": 6, "NIfTI": 2, "NIfTI.gz": 2}
SHARES["NRRD"] = 20 - sum(SHARES.values())
SUFFIXES = {"DICOM": "dcm", "JPEG": "jpg", "NIfTI": "nii", "NIfTI.gz": "nii.gz"}


@dataclass(frozen=True)
class Answer:
    """What came of one file."""

    outcome: str
    words: str
    peak: int = 0
    seconds: float = 0.0
    noisy: bool = False
    """Whether a C library wrote to standard error."""


@dataclass
class Tally:
    """What came of all files of a format."""

    outcomes: Counter[str] = field(default_factory=Counter)
    noisy: int = 0
    peak: int = 0
    slowest: float = 0.0

    def add(self, answer: Answer) -> None:
        self.outcomes[answer.outcome] += 1
        self.noisy += answer.noisy
        self.peak = max(self.peak, answer.peak)
        self.slowest = max(self.slowest, answer.seconds)

    def row(self) -> str:
        counts = "".join(f"{self.outcomes[each]:>11}" for each in OUTCOMES)
        return f"{counts}{self.noisy:>8}{self.peak / 2**20:>9.0f}{self.slowest:>8.1f}"


def main(copies: int = 2000, seed: int = 0, keep: Path | None = None) -> None:
    """Print a table; exit with 1 if a copy was neither read nor refused in one line."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    with tempfile.TemporaryDirectory() as folder, Reader() as reader:
        originals = readable(all_sources(), reader, Path(folder))
        for number in range(copies):
            kind, name, data = damaged_copy(originals, number, seed)
            path = Path(folder) / f"{number}.{SUFFIXES.get(kind, kind.lower())}"
            path.write_bytes(data)
            answer = reader.ask(path)
            tallies[kind].add(answer)
            tallies["all"].add(answer)
            if answer.outcome in FAULTS:
                print(f"{answer.outcome}: copy {number}, {name}: {answer.words}", flush=True)
                if keep:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / path.name).write_bytes(data)
            path.unlink()
    print(f"{'':<10}{''.join(f'{each:>11}' for each in OUTCOMES)}{'noisy':>8}{'MB':>9}{'s':>8}")
    for kind in (*SHARES, "all"):
        print(f"{kind:<10}{tallies[kind].row()}")
    if any(tallies["all"].outcomes[each] for each in FAULTS):
        raise typer.Exit(1)


def readable(
    sources: dict[str, list[Source]], reader: "Reader", folder: Path
) -> dict[str, list[Source]]:
    """The files that are read as they are; damage to the others would test nothing."""
    found: dict[str, list[Source]] = {kind: [] for kind in sources}
    for kind, files in sources.items():
        path = folder / f"whole.{SUFFIXES.get(kind, kind.lower())}"
        for name, data in files:
            path.write_bytes(data)
            answer = reader.ask(path)
            if answer.outcome == "read":
                found[kind].append((name, data))
            else:
                print(f"left out: {name}: {answer.words.removeprefix(f'{path}: ')}"[:150])
    print(", ".join(f"{len(found[kind])} {kind}" for kind in found), flush=True)
    return found


class Reader:
    """A process that reads files; a new one takes the place of one that died or hung."""

    def __enter__(self) -> "Reader":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def ask(self, path: Path) -> Answer:
        self._pipe.send(path)
        started = time.perf_counter()
        if not self._pipe.poll(LIMIT_SECONDS):
            answer = Answer("hang", f"no answer after {LIMIT_SECONDS} s")
        else:
            try:
                answer = self._pipe.recv()
                return answer
            except EOFError:
                self._process.join()
                answer = Answer("crash", f"exit code {self._process.exitcode}")
        self._stop()
        self._start()
        return Answer(answer.outcome, answer.words, seconds=time.perf_counter() - started)

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        # The imports are no part of the first file's time.
        self._pipe.recv()

    def _stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def serve(pipe: Connection) -> None:
    """Answer paths with what came of reading them, for ever."""
    from recap.io import open_file  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_ADDRESSES, LIMIT_ADDRESSES))
    with tempfile.TemporaryFile() as noise:
        os.dup2(noise.fileno(), 2)
        pipe.send("ready")
        while True:
            path = pipe.recv()
            forget_peak()
            start = time.perf_counter()
            outcome, words = read(path)
            seconds = time.perf_counter() - start
            if (peak := peak_bytes()) > LIMIT_BYTES:
                outcome, words = "memory", f"{peak / 2**20:.0f} MB; {words}"
            pipe.send(Answer(outcome, words, peak, seconds, heard(noise)))


def read(path: Path) -> tuple[str, str]:
    """Read a file's first images, and name the outcome."""
    from recap.errors import InputError
    from recap.io import open_file

    try:
        images = open_file(path).images
        for number in range(min(len(images), MOST_IMAGES)):
            pixels = images[number].pixels
            if not (pixels.dtype == np.float32 and pixels.min() >= 0 and pixels.max() <= 1):
                return "bad pixels", f"{pixels.dtype}, {pixels.min()} to {pixels.max()}"
    except InputError as error:
        words = str(error)
        if caused_by_memory(error):
            return "memory", words
        return ("traceback" if "\n" in words or str(path) not in words else "refused"), words
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    return "read", f"{len(images)} images"


def caused_by_memory(error: BaseException | None) -> bool:
    """Whether the limit of addresses, which no user has, made the reader give up."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def forget_peak() -> None:
    """Start the process's high-water mark anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def heard(noise: IO[bytes]) -> bool:
    """Whether anything was written to standard error since the last time."""
    written = os.fstat(noise.fileno()).st_size > 0
    noise.truncate(0)
    noise.seek(0)
    return written


def damaged_copy(
    originals: dict[str, list[Source]], number: int, seed: int
) -> tuple[str, str, bytes]:
    """Format, description and bytes of a copy, which depend on its number and the seed alone."""
    rng = np.random.default_rng([seed, number])
    kinds = [kind for kind in SHARES for _ in range(SHARES[kind])]
    kind = kinds[number % len(kinds)]
    (name, data), (_, other) = (originals[kind][rng.integers(len(originals[kind]))] for _ in "ab")
    damage = DAMAGES[rng.integers(len(DAMAGES))]
    return kind, f"{name}, {damage.__name__}", damage(bytearray(data), rng, other)


if __name__ == "__main__":
    typer.run(main)
