"""The bundles that can be asked for: those named at the start, and those made here since."""

import json
import sqlite3
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from recap._files import sync
from recap.scoring.bundle import Card, read_card
from recap.scoring.bundle_folder import Bundle
from recap.service.settings import ServerSettings, served_names
from recap.service.store import Store, mark

if TYPE_CHECKING:
    from recap.encoders.vit import Encoder
    from recap.scoring.detector import Detector

MOST_LOADED = 8


class Bundles:
    """Bundles by name; each is loaded once, and again when it changes. One encoder serves many."""

    def __init__(self, settings: ServerSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._served = served_names(settings.bundles)
        self._guard = threading.Lock()
        self._loaded: OrderedDict[Path, tuple[Card, Detector]] = OrderedDict()
        self._encoders: dict[str, Encoder] = {}

    def folders(self) -> dict[str, Path]:
        """List the folders of all bundles by their names."""
        found = dict(self._served)
        for row in self._store.rows("SELECT * FROM bundles ORDER BY created"):
            served = self._served.get(row["name"])
            # A calibration belongs to the very detector that it was made with.
            if served is None or read_card(served).fingerprint == row["replaces"]:
                found[row["name"]] = self._store.bundle_folder(row["folder"])
        return found

    def bundle(self, name: str) -> Bundle | None:
        """Find a bundle by its name; None if there is none."""
        folder = self.folders().get(name)
        return None if folder is None else Bundle(folder)

    def cards(self) -> dict[str, Card]:
        """Read the cards of all bundles, by their names."""
        return {name: read_card(folder) for name, folder in self.folders().items()}

    def first(self) -> str:
        """Name the bundle that the service was given first."""
        return next(iter(self._served))

    def card(self, name: str) -> Card | None:
        """Read the card of a bundle; None if there is none of that name."""
        folder = self.folders().get(name)
        return None if folder is None else read_card(folder)

    def refuse_other(self, name: str, fingerprint: str) -> None:
        """Refuse a bundle that is not the one a result is of; another may have its name by now."""
        card = self.card(name)
        if card is None or card.fingerprint != fingerprint:
            raise HTTPException(409, "The bundle of this job is not served any more.")

    def is_made_here(self, name: str) -> bool:
        """Tell if a bundle was fitted by this service."""
        return name not in self._served

    def remove(self, name: str) -> bool:
        """Forget a bundle, or a calibration, that was made here; false if there is none."""
        with self._store.transaction() as database:
            retired = retired_by(self._store, database, name)
            database.execute("DELETE FROM bundles WHERE name = ?", (name,))
        for folder in retired:
            with self._guard:
                self._loaded.pop(folder, None)
            self._store.discard(folder)
        return bool(retired)

    def load_served(self) -> None:
        """Load what was named at the start, so that a damaged bundle shows at once."""
        for name, folder in self._served.items():
            Bundle(folder).files()
            self.detector(name)

    def detector(self, name: str) -> "Detector":
        """Load a bundle's detector as its folder is now: answers are made by that."""
        folder = self.folders()[name]
        card = read_card(folder)
        with self._guard:
            known, detector = self._loaded.get(folder, (None, None))
            if detector is None or known != card:
                detector = self._load(folder)
                self._loaded[folder] = card, detector
            self._loaded.move_to_end(folder)
            while len(self._loaded) > max(MOST_LOADED, len(self._served)):
                self._loaded.popitem(last=False)
            return detector

    def _load(self, folder: Path) -> "Detector":
        from recap.methods.training import choose_device
        from recap.scoring.detector import load_detector

        settings = read_card(folder).settings
        # Peers may bring an encoder of their own kind.
        key = f"{settings.encoder.model_dump_json()} {settings.method}"
        device = str(choose_device(self._settings.device))
        detector = load_detector(
            folder, device, self._settings.random_weights, self._encoders.get(key)
        )
        self._encoders[key] = detector.model.encoder
        return detector


def free_name(database: sqlite3.Connection, wanted: str, taken: set[str]) -> str:
    """Choose a name that no bundle has: the wanted one, or that with a number behind it."""
    rows = database.execute("SELECT name FROM bundles").fetchall()
    taken = taken | {row["name"] for row in rows}
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted[:56]}-{number}", number + 1
    return name


def retired_by(store: Store, database: sqlite3.Connection, name: str) -> list[Path]:
    """Mark the folder of a bundle whose row is about to go, or to point at another."""
    rows = database.execute("SELECT folder FROM bundles WHERE name = ?", (name,)).fetchall()
    folders = [store.bundle_folder(row["folder"]) for row in rows]
    for folder in folders:
        with suppress(OSError):  # without room for the mark, this is what makes room
            mark(folder)
    return folders


def add_bundle(
    store: Store, database: sqlite3.Connection, name: str, folder: str, replaces: str = ""
) -> None:
    """Make a bundle known, in place of an older one of its name."""
    created = time.time()
    record = store.bundle_record(folder)
    told = {"name": name, "replaces": replaces, "created": created}
    record.write_text(json.dumps(told), encoding="utf-8")
    sync(record)
    database.execute(
        "INSERT OR REPLACE INTO bundles (name, folder, replaces, created) VALUES (?, ?, ?, ?)",
        (name, folder, replaces, created),
    )


def describe(name: str, card: Card, made_here: bool) -> dict[str, Any]:
    """Describe a bundle as the list shows it."""
    calibration = card.calibration
    return {
        "name": name,
        "mode": card.mode,
        "statement": card.statement,
        "method": card.settings.method,
        "preset": card.settings.preset,
        "encoder": Path(card.encoder.name).name,
        "input_px": card.settings.encoder.input_px,
        "fingerprint": card.fingerprint,
        "scale": list(card.drawn_scale),
        "support": support_counts(card),
        "support_pictures": card.thumbnails > 0,
        "made_here": made_here,
        "calibration": None if calibration is None else calibration.model_dump(mode="json"),
        "calibration_digest": "" if calibration is None else calibration.digest,
    }


def support_counts(card: Card) -> dict[str, int]:
    """Count the normal and the abnormal images that a detector was fitted on."""
    labels = [record.get("label") for record in card.support]
    return {label: labels.count(label) for label in ("normal", "abnormal")}
