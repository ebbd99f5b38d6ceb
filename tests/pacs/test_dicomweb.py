"""The DICOMweb client against a server of a few lines; test_orthanc.py has a real one."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pydicom
import pytest

pytest.importorskip("dicomweb_client")

from pacs_images import study
from recap.errors import InputError, SettingsError
from recap.service.pacs.dicomweb import DicomWeb
from recap.service.pacs.send import SendError, StuckError, WebArchive


class Answers(BaseHTTPRequestHandler):
    """Answers every request with the server's status and body, and keeps what it saw."""

    def do_GET(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = self.server.body
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(self.server.status)
        if self.server.status in range(300, 400):
            self.send_header("Location", "/sign-in")
            self.server.status = 200  # of the page that it leads to
        self.send_header("Content-Type", self.server.kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.status, server.body, server.seen = 200, {}, []
    server.kind = "application/dicom+json"
    server.url = f"http://127.0.0.1:{server.server_port}/dicom-web"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def image(tmp_path):
    (dataset,) = study(1, slices=1)
    dataset.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    return tmp_path / "a.dcm"


def failed(reason):
    """The answer of an archive that has not stored a file."""
    return {"00081198": {"vr": "SQ", "Value": [{"00081197": {"vr": "US", "Value": [reason]}}]}}


def stored(image):
    """The answer of an archive that has stored a file."""
    uid = pydicom.dcmread(image).SOPInstanceUID
    return {"00081199": {"vr": "SQ", "Value": [{"00081155": {"vr": "UI", "Value": [uid]}}]}}


def test_studies_are_found(server):
    server.body = [
        {
            "0020000D": {"vr": "UI", "Value": ["1.2.3"]},
            "00080020": {"vr": "DA", "Value": ["20240102"]},
            "00080061": {"vr": "CS", "Value": ["CT", "SR"]},
        }
    ]
    (found,) = DicomWeb(server.url, "secret").find_studies(PatientID="4711", limit=5)
    assert found == {
        "StudyInstanceUID": "1.2.3",
        "StudyDate": "20240102",
        "StudyDescription": "",
        "ModalitiesInStudy": "CT\\SR",
    }
    method, path, headers = server.seen[0]
    assert method == "GET"
    assert path.startswith("/dicom-web/studies?")
    assert "PatientID=4711" in path
    assert "limit=5" in path
    assert headers["Authorization"] == "Bearer secret"


def test_what_is_stored_and_what_is_refused(server, image):
    other = shutil.copy(image, image.with_name("b.dcm"))
    server.body = stored(image)
    assert DicomWeb(server.url).store([image, other]) == 2
    assert WebArchive(server.url).send(image) == "stored"
    server.body = failed(0x0122)
    assert WebArchive(server.url).send(image) == "refused"
    assert DicomWeb(server.url).store(image) == 0
    server.status = 409
    assert WebArchive(server.url).send(image) == "refused"


@pytest.mark.parametrize("status", [200, 409])
@pytest.mark.parametrize("body", [failed(0x0110), failed(0x0124), failed(0xC000), failed(None)])
def test_what_an_archive_does_not_take_now_waits(server, image, status, body):
    server.status, server.body = status, body
    with pytest.raises(StuckError, match="does not take it"):
        WebArchive(server.url).send(image)
    assert DicomWeb(server.url).store([image]) == 0


def test_a_conflict_without_a_reason_waits(server, image):
    server.status, server.body = 409, b"no reason"
    with pytest.raises(StuckError, match="gives no reason"):
        WebArchive(server.url).send(image)


def test_a_result_that_cannot_be_read_does_not_hold_up_the_others(server, tmp_path):
    with pytest.raises(StuckError, match=r"gone\.dcm: there is no such file"):
        WebArchive(server.url).send(tmp_path / "gone.dcm")
    (tmp_path / "bad.dcm").write_bytes(b"this is no image")
    with pytest.raises(StuckError, match=r"bad\.dcm: the DICOM file cannot be read"):
        WebArchive(server.url).send(tmp_path / "bad.dcm")
    assert server.seen == []


@pytest.mark.parametrize("status", [200, 202, 409])
def test_an_archive_that_is_full_may_take_it_later(server, image, status):
    server.status, server.body = status, failed(0xA700)
    with pytest.raises(SendError, match=r"has no room\. Make some, or wait\.") as error:
        WebArchive(server.url).send(image)
    assert error.type is SendError


def test_a_type_may_come_with_a_charset(server, image):
    server.body, server.kind = stored(image), "application/dicom+json; charset=utf-8"
    assert WebArchive(server.url).send(image) == "stored"


def test_an_answer_in_xml(server, image):
    item = (
        '<DicomAttribute tag="00081155" vr="UI" keyword="ReferencedSOPInstanceUID">'
        f'<Value number="1">{pydicom.dcmread(image).SOPInstanceUID}</Value></DicomAttribute>'
    )
    server.body = (
        '<NativeDicomModel><DicomAttribute tag="00081199" vr="SQ" keyword="ReferencedSOPSequence">'
        f'<Item number="1">{item}</Item></DicomAttribute></NativeDicomModel>'
    ).encode()
    server.kind = "application/dicom+xml"
    assert WebArchive(server.url).send(image) == "stored"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "text/plain"),
        (b"<html>Sign in</html>", "text/html"),
        ({}, "application/dicom+json"),
        (b"<NativeDicomModel/>", "application/dicom+xml"),
    ],
)
def test_an_answer_that_does_not_name_the_object_has_not_stored_it(server, image, body, kind):
    server.body, server.kind = body, kind
    with pytest.raises(SendError, match="does not say that it stored") as error:
        WebArchive(server.url).send(image)
    assert error.type is SendError
    other = image.with_name("other.dcm")
    (dataset,) = study(2, slices=1)
    dataset.save_as(other, enforce_file_format=True)
    server.body, server.kind = stored(other), "application/dicom+json"
    with pytest.raises(SendError, match="does not say that it stored"):
        WebArchive(server.url).send(image)


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_is_not_followed(server, image, status):
    server.status, server.body = status, stored(image)
    with pytest.raises(SendError, match=f"answered {status}"):
        WebArchive(server.url).send(image)
    server.status = status
    with pytest.raises(InputError, match=f"answered {status}"):
        DicomWeb(server.url).find_studies()
    assert [method for method, _, _ in server.seen] == ["POST", "GET"]


def test_a_folder_of_results_is_stored_file_by_file(server, image, tmp_path):
    """Folders of results are named after their cases, so that some end in .dcm."""
    server.body = stored(image)
    results = tmp_path / "results"
    for name in ("dx.dcm/map.dcm", "dx.dcm/report.dcm", "series-3/map.dcm"):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, results / name)
    (results / "notes.txt").write_text("not DICOM")
    assert DicomWeb(server.url).store(results) == 3
    assert len(server.seen) == 3
    assert DicomWeb(server.url).store(sorted(results.rglob("*.dcm"))) == 3
    assert len(server.seen) == 6  # none twice, though dx.dcm was given along with its files
    # Of several detectors, each has a folder of results below the one that is named.
    for name in ("scores.csv", "manifest.json"):
        (results / name).touch()
    assert DicomWeb(server.url).store(tmp_path) == 4


def test_local_files_that_cannot_be_read_are_told_by_name(server, image, tmp_path):
    web = DicomWeb(server.url)
    (tmp_path / "text.dcm").write_text("this is no image")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"text\.dcm: this is no DICOM file"):
        web.store([image, tmp_path / "text.dcm"])
    with pytest.raises(InputError, match=r"empty: there is no DICOM file"):
        web.store(tmp_path / "empty")
    with pytest.raises(InputError, match=r"missing\.dcm: there is no such file"):
        web.store([image, tmp_path / "missing.dcm"])
    assert server.seen == []


@pytest.mark.parametrize(
    ("status", "kind"), [(401, SendError), (503, SendError), (413, StuckError)]
)
def test_an_archive_that_fails_is_tried_again_later(server, image, status, kind):
    server.status = status
    with pytest.raises(SendError, match=f"answered {status}") as error:
        WebArchive(server.url).send(image)
    assert error.type is kind


def test_errors_do_not_repeat_the_query(server):
    server.status = 500
    with pytest.raises(InputError) as error:
        DicomWeb(server.url).find_studies(PatientName="Secret^Person")
    assert "Secret" not in str(error.value)
    assert server.url in str(error.value)


def test_an_archive_that_is_not_there():
    with pytest.raises(InputError, match="is not there"):
        DicomWeb("http://127.0.0.1:9/dicom-web").find_studies()


@pytest.mark.parametrize("url", ["localhost:8042", "ftp://host/", "http:///x"])
def test_addresses_are_checked(url):
    with pytest.raises(SettingsError, match="is no address"):
        DicomWeb(url)


def test_a_token_is_not_sent_in_the_open():
    with pytest.raises(SettingsError, match="only sent over https"):
        DicomWeb("http://pacs.example.org/dicom-web", "secret")
