"""Against Orthanc, a real archive: results go in by C-STORE and by DICOMweb, and come out again."""

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pydicom
import pytest

pytest.importorskip("pynetdicom")
pytest.importorskip("highdicom")
pytest.importorskip("dicomweb_client")

from pacs_images import RESULTS, mark, study
from recap.service.pacs.dicomweb import DicomWeb
from recap.service.pacs.listen import Listener, ListenSettings
from recap.service.pacs.send import DicomPeer, WebArchive, parse_address
from recap.service.pacs.spool import Spool

PROGRAM = shutil.which("Orthanc") or shutil.which("Orthanc", path="/usr/sbin")
DICOMWEB = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PROGRAM is None or not DICOMWEB.exists(),
        reason="needs Orthanc (Debian: orthanc, orthanc-dicomweb)",
    ),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def orthanc(tmp_path_factory):
    """An Orthanc with an empty store: where it listens for DICOM, and its address on the web."""
    folder = tmp_path_factory.mktemp("orthanc")
    dicom, http, recap = free_port(), free_port(), free_port()
    settings = {
        "StorageDirectory": str(folder / "db"),
        "IndexDirectory": str(folder / "db"),
        "DicomPort": dicom,
        "HttpPort": http,
        "DicomAet": "ORTHANC",
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": False,
        "Plugins": [str(DICOMWEB)],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
        "DicomModalities": {"recap": ["RECAP", "127.0.0.1", recap]},
    }
    (folder / "orthanc.json").write_text(json.dumps(settings))
    process = subprocess.Popen(
        [PROGRAM, folder / "orthanc.json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"},
    )
    url = f"http://127.0.0.1:{http}"
    try:
        wait_for(lambda: ask(f"{url}/system"))
        yield dicom, url, recap
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, data: bytes | None = None):
    with urllib.request.urlopen(url, data, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while True:
        try:
            if found := condition():
                return found
        except OSError:
            pass
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def test_orthanc_sends_a_study_and_gets_the_results(orthanc, tmp_path):
    """The whole way: a study in an archive is routed to recap, and its results come back."""
    dicom, url, port = orthanc
    for image in study(31):
        path = tmp_path / f"{image.SOPInstanceUID}.dcm"
        image.save_as(path, enforce_file_format=True)
        ask(f"{url}/instances", path.read_bytes())
    listener = Listener(
        Spool(tmp_path / "spool"),
        mark,
        DicomPeer(parse_address(f"ORTHANC@127.0.0.1:{dicom}")),
        ListenSettings(port=port, quiet_seconds=0.5, calling=("ORTHANC",)),
    )
    listener.start()
    worker = threading.Thread(target=listener.run)
    worker.start()
    try:
        (own,) = ask(f"{url}/studies")
        ask(f"{url}/modalities/recap/store", own.encode())
        wait_for(lambda: len(ask(f"{url}/studies/{own}/instances")) == 3 + RESULTS)
    finally:
        listener.stop()
        worker.join(30)
    (series,) = (ask(f"{url}/studies/{own}"),)
    kinds = {ask(f"{url}/series/{uid}")["MainDicomTags"]["Modality"] for uid in series["Series"]}
    assert kinds == {"CT", "OT", "SR"}
    assert len(ask(f"{url}/patients")) == 1


def test_results_by_dicomweb(orthanc, tmp_path):
    _, url, _ = orthanc
    images = study(32)
    for image in images:
        path = tmp_path / "images" / f"{image.SOPInstanceUID}.dcm"
        path.parent.mkdir(exist_ok=True)
        image.save_as(path, enforce_file_format=True)
    mark(tmp_path / "images", tmp_path / "results")
    results = sorted((tmp_path / "results").rglob("*.dcm"))
    sources = sorted((tmp_path / "images").iterdir())
    web = DicomWeb(f"{url}/dicom-web")
    assert web.store(sources) == 3
    archive = WebArchive(f"{url}/dicom-web")
    assert [archive.send(path) for path in results] == ["stored"] * RESULTS
    uid = images[0].StudyInstanceUID
    (found,) = web.find_studies(StudyInstanceUID=uid)
    assert found["StudyInstanceUID"] == uid
    fetched = {
        dataset.SOPInstanceUID: dataset
        for dataset in map(pydicom.dcmread, web.fetch(uid, tmp_path / "fetched"))
    }
    assert len(fetched) == 3 + RESULTS
    for path in results:
        before = pydicom.dcmread(path)
        after = fetched[before.SOPInstanceUID]
        for keyword in ("FloatPixelData", "PixelData", "ContentSequence"):
            assert before.get(keyword) == after.get(keyword)
