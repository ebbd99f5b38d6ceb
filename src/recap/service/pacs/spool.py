"""Images that have arrived and are not done yet, on disk: a killed listener goes on where it was.

    incoming/STUDY/SERIES-INSTANCE.dcm   studies that are still arriving
    work/STUDY-TIME/images/              one round of a study that has become quiet
                   /results/             its results: there as a whole, or not at all
                   /sent.txt             which of them the archive has answered for
                   /refused.txt          which of those it will never take
    done/STUDY.json                      which images have been dealt with
    failed/STUDY-TIME/                   rounds that could not be scored, or the images of a
                                         round that could not, with the reason

All names are digests of UIDs: nothing that a peer sends becomes part of a path, and none of them
names a patient.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

from recap._files import locked, sync, write_atomic
from recap.errors import InputError

Answer = Literal["stored", "refused"]
_KEY_LETTERS = 24
_DONE_DAYS = 30
_MEASURE_S = 1.0


def key_of(uid: str) -> str:
    """Name a UID in a way that says nothing else."""
    return sha256(uid.encode()).hexdigest()[:_KEY_LETTERS]


class Unscored(NamedTuple):
    """Images of a round that could not be scored together, and why."""

    files: tuple[Path, ...]
    reason: str


@dataclass(frozen=True)
class Round:
    """Images of one study that are scored together."""

    folder: Path

    @property
    def name(self) -> str:
        """Name in logs."""
        return self.folder.name

    @property
    def study(self) -> str:
        """The key of its study."""
        return self.folder.name.partition("-")[0]

    @property
    def images(self) -> Path:
        """The folder of what arrived."""
        return self.folder / "images"

    @property
    def results(self) -> Path:
        """The folder of the results; it appears when they are complete."""
        return self.folder / "results"

    def count_attempt(self) -> int:
        """Note that scoring is tried once more, and say how often that now was."""
        path = self.folder / "attempts.txt"
        try:
            before = int(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # a power cut may have left it empty
            before = 0
        write_atomic(path, str(before + 1), durable=True)
        return before + 1

    def forget_attempts(self) -> None:
        """Begin to count anew."""
        (self.folder / "attempts.txt").unlink(missing_ok=True)

    def keep_results(self, partial: Path) -> None:
        """Take results over once they are complete and on disk."""
        for path in partial.rglob("*.dcm"):
            sync(path)
        partial.rename(self.results)

    def unsent(self) -> list[Path]:
        """Results that the archive has not answered for, in order."""
        sent = self._noted("sent.txt")
        files = sorted(path for path in self.results.rglob("*") if path.is_file())
        return [path for path in files if path.relative_to(self.results).as_posix() not in sent]

    def note_answer(self, path: Path, answer: Answer) -> None:
        """Note on disk that a result need not be sent again."""
        for name in ("refused.txt", "sent.txt") if answer == "refused" else ("sent.txt",):
            with (self.folder / name).open("a", encoding="utf-8") as ledger:
                ledger.write(f"{path.relative_to(self.results).as_posix()}\n")
                ledger.flush()
                os.fsync(ledger.fileno())

    @property
    def was_in_vain(self) -> bool:
        """Tell if there were results and the archive has taken none of them."""
        refused = self._noted("refused.txt")
        return bool(refused) and refused == self._noted("sent.txt")

    def _noted(self, name: str) -> set[str]:
        try:
            return set((self.folder / name).read_text(encoding="utf-8").splitlines())
        except FileNotFoundError:
            return set()


class Spool:
    """The folder of a listener; safe to use from several threads of one process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._claim = ExitStack()
        for name in ("incoming", "work", "done", "failed"):
            (root / name).mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)  # what lies here shows patients
        self._counts = {
            folder.name: len(list(folder.glob("*.dcm"))) for folder in (root / "incoming").iterdir()
        }
        self._bytes, self._measured_at = self._measured(), time.monotonic()
        self._forget_old()

    def claim(self) -> None:
        """Refuse a folder that another listener uses: both would send the same results."""
        busy = InputError(
            f"{self.root} is in use by another listener.",
            code="in_use",
            path=self.root,
            remedy="Choose another --spool.",
        )
        self._claim.enter_context(locked(self.root / "lock", busy))

    def release(self) -> None:
        """Let another listener have the folder."""
        self._claim.close()

    @property
    def stored_bytes(self) -> int:
        """Measure roughly the images that wait here."""
        return self._bytes

    def has_room(self, size: int, most: int) -> bool:
        """Tell if so many bytes more may wait here; before it says no, it looks again."""
        with self._lock:
            # Somebody may have made room by hand. Senders try again and again, and each look takes
            # time, during which no image is stored.
            stale = time.monotonic() - self._measured_at >= _MEASURE_S
            if self._bytes + size > most and stale:
                self._bytes, self._measured_at = self._measured(), time.monotonic()
            return self._bytes + size <= most

    def store(self, study_uid: str, series_uid: str, instance_uid: str, data: bytes) -> str:
        """Keep an image before its arrival is confirmed; gives the key of its study."""
        study = key_of(study_uid)
        folder = self.root / "incoming" / study
        path = folder / f"{key_of(series_uid)}-{key_of(instance_uid)}.dcm"
        with self._lock:
            folder.mkdir(exist_ok=True)
            partial = path.with_suffix(".partial")
            try:
                with partial.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                is_new = not path.exists()
                replaced = 0 if is_new else path.stat().st_size
                self._counts[study] = self._counts.get(study, 0) + is_new
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)  # on a full disk it is only part of an image
            sync(folder)
            self._bytes += len(data) - replaced
        return study

    def count(self, study_uid: str) -> int:
        """Count the images of a study that wait to become quiet."""
        return self._counts.get(key_of(study_uid), 0)

    def arriving(self) -> list[str]:
        """List the keys of studies that are not sealed."""
        return sorted(path.name for path in (self.root / "incoming").iterdir())

    def seal(self, study: str) -> Round | None:
        """Make a round of what has arrived of a study, to be sifted; None if nothing has."""
        folder = self.root / "work" / f"{study}-{time.time_ns():x}"
        incoming = self.root / "incoming" / study
        with self._lock:
            if not incoming.exists():  # a late image was sealed with those before it
                return None
            for path in incoming.iterdir():
                if path.suffix != ".dcm":  # a kill left it: readers would take it for an image
                    path.unlink()
            folder.mkdir()
            incoming.rename(folder / "images")
            self._counts.pop(study, None)
        return Round(folder)

    def sift(self, new: Round) -> bool:
        """Leave out series that are known; false if nothing remains, and the round is gone.

        To be done before a round is scored, whenever that is tried: a kill may have left what was
        being left out half there.
        """
        # Rounds before it may still wait for the archive.
        waiting = [each for each in self.rounds() if each.study == new.study]
        earlier = waiting[: waiting.index(new)]
        pending = {name: digest for each in earlier for name, digest in _digests(each)}
        _drop_known_series(new, self._known(new.study) | pending)
        if any(new.images.glob("*.dcm")):
            return True
        self._remove(new)
        return False

    def rounds(self) -> list[Round]:
        """Sealed rounds, the oldest first; what a kill left half made is cleared away."""
        found = []
        for folder in sorted((self.root / "work").iterdir(), key=lambda each: each.name[-16:]):
            if (folder / "images").is_dir():
                found.append(Round(folder))
            else:
                # What cannot go now, for want of permission, must not hold up the others.
                shutil.rmtree(folder, ignore_errors=True)
        return found

    def finish(self, done: Round) -> None:
        """Remember what was dealt with, and let the images go."""
        # What came to nothing is scored again when the archive knows our kinds and it comes again.
        if not done.was_in_vain:
            known = self._known(done.study) | dict(_digests(done))
            # The images go next, and nothing else knows of them.
            write_atomic(self._ledger(done.study), json.dumps(known, indent=0), durable=True)
        self._remove(done)

    def fail(self, failed: Round, reason: str) -> None:
        """Set a round aside, images and all; back in work/ it is tried again."""
        failed.forget_attempts()
        write_atomic(failed.folder / "reason.txt", reason + "\n")
        kept = self.root / "failed" / failed.name
        if kept.exists():  # it was copied back, and fails again
            kept = kept.with_name(f"{failed.study}-{time.time_ns():x}")
        failed.folder.rename(kept)

    def set_aside(self, partly: Round, unscored: Sequence[Unscored]) -> None:
        """Copy images that could not be scored into failed/, as a round of their own.

        Those of a volume appear together, so that a kill in between cannot make a shorter volume
        of what is left. Done again, it gives the same folder.
        """
        made = partly.folder / "aside.partial"
        shutil.rmtree(made, ignore_errors=True)
        (made / "images").mkdir(parents=True)
        for path in (path for each in unscored for path in each.files):
            copy = made / "images" / path.name
            try:
                copy.hardlink_to(path)
            except OSError:  # not every file system has links
                shutil.copyfile(path, copy)
        write_atomic(made / "reason.txt", "".join(f"{each.reason}\n" for each in unscored))
        study, _, sealed = partly.name.partition("-")
        # A name of its own: back in work/ it may meet the round that it comes from.
        kept = self.root / "failed" / f"{study}-{int(sealed, 16) + 1:x}"
        shutil.rmtree(kept, ignore_errors=True)
        made.rename(kept)
        sync(kept.parent)

    def _remove(self, done: Round) -> None:
        # First the name, at once: a kill while files go must not leave half a series to be scored.
        done.images.rename(done.folder / "images.done")
        sync(done.folder)
        shutil.rmtree(done.folder)
        with self._lock:
            self._bytes, self._measured_at = self._measured(), time.monotonic()

    def _measured(self) -> int:
        sizes: dict[tuple[int, int], int] = {}  # by file: what is set aside has two names
        for folder, _, names in os.walk(self.root):  # folders that go meanwhile are passed over
            for name in (name for name in names if name.endswith(".dcm")):
                # Who looks after failed/ may take files away at any time.
                with suppress(FileNotFoundError):
                    found = Path(folder, name).stat()
                    sizes[found.st_dev, found.st_ino] = found.st_size
        return sum(sizes.values())

    def _known(self, study: str) -> dict[str, str]:
        try:
            found = json.loads(self._ledger(study).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # a power cut may have left it empty
            return {}
        return found if isinstance(found, dict) else {}

    def _ledger(self, study: str) -> Path:
        return self.root / "done" / f"{study}.json"

    def _forget_old(self) -> None:
        oldest = time.time() - _DONE_DAYS * 86400
        for ledger in (self.root / "done").glob("*.json"):
            if ledger.stat().st_mtime < oldest:
                ledger.unlink()


def _digests(each: Round) -> Iterator[tuple[str, str]]:
    for path in sorted(each.images.glob("*.dcm")):
        yield path.name, sha256(path.read_bytes()).hexdigest()


def _drop_known_series(new: Round, known: dict[str, str]) -> None:
    """Leave out a series that came again unchanged; keep one with anything new whole."""
    if not known:
        return
    digests = dict(_digests(new))
    changed = {
        name.partition("-")[0] for name, digest in digests.items() if known.get(name) != digest
    }
    for name in digests:
        if name.partition("-")[0] not in changed:
            (new.images / name).unlink()
