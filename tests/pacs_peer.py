"""Real peers on loopback: one that takes results and remembers them, one that sends images."""

import hashlib
import threading
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pydicom


class Archive:
    """A storage SCP; `received` has every C-STORE in order, repeats and all."""

    def __init__(self) -> None:
        from pynetdicom import AE, AllStoragePresentationContexts, evt

        self.received: list[tuple[str, str, str]] = []
        self.answer = 0x0000
        self.pause_s = 0.0
        self.arrived = threading.Condition()
        ae = AE(ae_title="ARCHIVE")
        ae.supported_contexts = AllStoragePresentationContexts
        self.server = ae.start_server(
            ("127.0.0.1", 0), block=False, evt_handlers=[(evt.EVT_C_STORE, self._store)]
        )

    def _store(self, event: Any) -> int:
        data = event.encoded_dataset()
        header = pydicom.dcmread(BytesIO(data), stop_before_pixels=True)
        time.sleep(self.pause_s)
        if self.answer == 0:
            with self.arrived:
                self.received.append(
                    (
                        str(header.StudyInstanceUID),
                        str(header.SOPInstanceUID),
                        hashlib.sha256(data).hexdigest(),
                    )
                )
                self.arrived.notify_all()
        return self.answer

    @property
    def address(self) -> str:
        return f"ARCHIVE@127.0.0.1:{self.server.socket.getsockname()[1]}"

    def wait_for(self, count: int, seconds: float = 60) -> None:
        with self.arrived:
            enough = self.arrived.wait_for(lambda: len(self.received) >= count, seconds)
        assert enough, f"only {len(self.received)} of {count} results arrived"


def send(port: int, datasets: list[pydicom.Dataset], *, calling: str = "SCANNER") -> list[int]:
    """Send images over one association; the status of each, -1 where none came."""
    from pynetdicom import AE

    ae = AE(ae_title=calling)
    for kind in {dataset.SOPClassUID for dataset in datasets}:
        ae.add_requested_context(kind)
    association = ae.associate("127.0.0.1", port, ae_title="RECAP")
    if not association.is_established:
        return []
    found = []
    for dataset in datasets:
        if not association.is_established:
            break
        status = association.send_c_store(dataset)
        found.append(int(status.Status) if "Status" in status else -1)
    if association.is_established:
        association.release()
    return found


def wait_until_empty(spool: Path, seconds: float = 30) -> None:
    """Wait until a listener has dealt with all that it was sent."""
    end = time.monotonic() + seconds
    while any((spool / "work").iterdir()) or any((spool / "incoming").iterdir()):
        assert time.monotonic() < end, "the spool did not empty"
        time.sleep(0.05)
