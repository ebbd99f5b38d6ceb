"""What is taken and what is refused: sizes, kinds, archives, damaged forms."""

import io
import signal
import stat
import struct
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.errors import HTTP_STATUSES
from recap.service.inspection import Inspection
from recap.service.placing import Placer, in_client_words, shown_name
from service_calls import API, ended, png, upload, zipped

BOUNDARY = "xYzZY"


def send_raw(client, body, kind=f"multipart/form-data; boundary={BOUNDARY}"):
    return client.post(f"{API}/jobs", content=body, headers={"Content-Type": kind})


def part(content, disposition='form-data; name="file"; filename="a.png"'):
    head = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n\r\n".encode()
    return head + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


@pytest.fixture
def untouched(client, tmp_path):
    """After the test nothing of the upload is left."""
    yield client
    data = tmp_path / "data"
    assert list((data / "jobs").iterdir()) == []
    assert list((data / "incoming").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} <= {"data"}


def test_a_form_by_hand_is_taken(client):
    assert ended(client, send_raw(client, part(png()) + END))["status"] == "done"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (part(png()), 400),  # without its end
        (part(png())[:200], 400),
        (b"--other\r\n\r\n", 400),
        (part(png(), "form-data") + END, 400),
        (part(png(), 'form-data; name="file') + END, 422),
        (part(b"x" * 70_000, 'form-data; name="bundle"') + END, 413),
        (b"".join(part(b"", f'form-data; name="f{n}"') for n in range(40)) + END, 400),
        (b"\r\n".join([f"--{BOUNDARY}".encode(), b"A: " + b"b" * 20_000, b"", b""]) + END, 400),
        (part(b"chest", 'form-data; name="bundle"') + END, 422),
        (part(png()) + part(b"none", 'form-data; name="bundle"') + END, 422),
    ],
)
def test_damaged_forms(untouched, body, status):
    assert send_raw(untouched, body).status_code == status


@pytest.mark.parametrize(
    ("kind", "status"),
    [("application/json", 415), ("multipart/form-data", 400), ("", 415), ("x; boundary=", 415)],
)
def test_only_forms_are_read(untouched, kind, status):
    assert send_raw(untouched, part(png()) + END, kind).status_code == status


def test_an_upload_is_cut_off_at_the_limit(make_client, tmp_path):
    client = make_client(max_upload_mb=1)
    declared = upload(client, b"x" * 2_000_000)
    assert declared.status_code == 413

    def chunks():
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; '.encode()
        yield b'filename="a.png"\r\n\r\n'
        for _ in range(40):
            yield b"x" * 65536

    assert send_raw(client, chunks()).status_code == 413
    assert list((tmp_path / "data" / "incoming").iterdir()) == []


def huge_png():
    """A header, with a right checksum, that declares 60000 × 60000 pixels."""
    whole = png()
    header = whole[12:16] + struct.pack(">II", 60_000, 60_000) + whole[24:29]
    return whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:]


def huge_nifti():
    """A header that declares 800 million voxels; a billion are read elsewhere, but not here."""
    header = bytearray(352)
    header[:4], header[344:348] = struct.pack("<i", 348), b"n+1\0"
    header[40:48] = struct.pack("<4h", 3, 1000, 1000, 800)
    header[70:74] = struct.pack("<hh", 2, 8)
    header[108:112] = struct.pack("<f", 352)
    return bytes(header) + bytes(100)


def linked_zip():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        link = zipfile.ZipInfo("a.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    return stream.getvalue()


def bomb():
    """A zip whose two files declare six gigabytes."""
    content = bytearray(zipped({"a.png": png(), "b.png": png()}))
    at = 0
    for _ in range(2):
        at = content.index(b"PK\x01\x02", at) + 4
        content[at + 20 : at + 24] = struct.pack("<I", 3 * 10**9)
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("a.png", b"", 422),
        ("a.png", b"<script>alert(1)</script>", 415),
        ("a.exe", b"MZ" + bytes(100), 415),
        ("a.png", png()[:-40], 422),
        ("a.png", huge_png(), 413),
        ("a.nii", huge_nifti(), 413),
        ("a.dcm", bytes(128) + b"DICM" + bytes(40), 422),
        ("a.nrrd", b"NRRD0004\ntype: uint8\ndata file: /etc/passwd\n\n", 422),
        ("a.zip", zipped({}), 415),
        ("a.zip", zipped({"../../a.png": png()}), 422),
        ("a.zip", zipped({"/a.png": png()}), 422),
        ("a.zip", zipped({"c:\\a.png": png()}), 422),
        ("a.zip", zipped({"inner.zip": zipped({"a.png": png()})}), 422),
        ("a.zip", zipped({"note.txt": b"hello"}), 422),
        ("a.zip", linked_zip(), 422),
        ("a.zip", bomb(), 413),
        ("a.zip", zipped({"a.png": png()})[:-30], 422),
        ("a.mrxs", b"\xff\xd8\xff" + bytes(50), 422),
    ],
)
def test_bad_files_are_refused_and_leave_nothing(untouched, name, content, status):
    answer = upload(untouched, (name, content))
    assert answer.status_code == status, answer.text
    assert HTTP_STATUSES[answer.json()["code"]] == status
    assert "/data/" not in answer.text
    assert "incoming" not in answer.text


def test_strays_cost_the_others_nothing_loose_or_in_a_zip(client):
    files = {"hostname": b"box\n", "a.png": png(), "empty.png": b"", "IM9": b"", "bad.png": b"x"}
    found = []
    for sent in (files.items(), [("all.zip", zipped(files))]):
        job = ended(client, upload(client, *sent))
        cases = client.get(f"{API}/jobs/{job['id']}/cases").json()
        found.append({case["name"]: (case["status"], case["error"]) for case in cases})
        assert {(case["status"], case["code"]) for case in cases} == {
            ("ok", ""),
            ("error", "input"),
        }
    loose, packed = found
    assert loose == packed
    assert {name: status for name, (status, _) in loose.items()} == {
        "a.png": "ok",
        "empty.png": "error",
        "bad.png": "error",
    }
    assert loose["empty.png"][1].startswith("empty.png: the file is empty")


def test_an_upload_of_strays_alone_says_what_they_are(untouched):
    answer = upload(untouched, ("hostname", b"box\n"), ("bad.png", b"x"), ("empty.png", b""))
    assert answer.status_code == 415
    assert answer.json()["detail"].startswith("hostname: not a picture, DICOM")


def test_an_archive_of_too_many_files(make_client):
    client = make_client(max_files=3)
    archive = zipped({f"{n}.png": png(n) for n in range(4)})
    assert upload(client, ("a.zip", archive)).status_code == 413
    assert upload(client, *(png(n) for n in range(4))).status_code == 413


def test_too_many_pixels(make_client):
    client = make_client(max_megapixels=1)
    assert upload(client, png(size_hw=(1000, 1001))).status_code == 413
    assert upload(client, png(size_hw=(100, 100))).status_code == 202


@pytest.mark.parametrize("address", ["fits", "bundles/brain/calibrate"])
def test_too_many_pixels_of_images_with_labels(make_client, address):
    client = make_client(max_megapixels=1)
    client.app.state.service.jobs.claim = lambda lane, most=1: []

    def send(*fields):
        files = [(field, (f"{n}.png", png(n, (800, 800)))) for n, field in enumerate(fields)]
        return client.post(f"{API}/{address}", files=files)

    assert send("normals", "abnormals").status_code == 413
    assert send("normals", "normals").json()["detail"].startswith("The images have more than 1 ")
    assert send("normals").status_code == 202


def test_archives_share_the_limit_of_what_they_unpack_to(make_client):
    client = make_client(max_unpacked_mb=1)
    first, second = (zipped({f"{n}.png": png(n, (700, 1000))}) for n in range(2))
    assert upload(client, ("a.zip", first)).status_code == 202
    answer = upload(client, ("a.zip", first), ("b.zip", second))
    assert answer.status_code == 413
    assert "b.zip: unpacks to more than 1048576 bytes (all archives" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../../etc/<img src=x onerror=alert(1)>.png", "etc/<img src=x onerror=alert(1)>.png"),
        ("/etc/cron.d/mark.png", "etc/cron.d/mark.png"),
        ("a/../../mark.png", "a/mark.png"),
        ("..\\..\\mark.png", "mark.png"),
    ],
)
def test_client_names_are_shown_but_never_used(client, tmp_path, name, shown):
    job = ended(client, upload(client, (name, png())))
    assert job["names"] == [shown]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path).parts[0] for path in files} == {"data"}
    assert not [path for path in files if "img src" in path.name or "mark" in path.name]
    assert list((tmp_path / "data" / "jobs" / job["id"] / "upload").iterdir()) == [
        tmp_path / "data" / "jobs" / job["id"] / "upload" / "000000.png"
    ]


def test_a_folder_keeps_its_folders(client):
    """Scanners give the images of all patients the same names."""
    files = [("patient-A/IM1", png(1)), ("patient-B/IM1", png(2))]
    job = ended(client, upload(client, *files))
    cases = client.get(f"{API}/jobs/{job['id']}/cases").json()
    assert [case["name"] for case in cases] == ["patient-A/IM1", "patient-B/IM1"]


def test_slices_of_one_series_are_one_case(client, tmp_path):
    pytest.importorskip("pydicom")
    from dicom_files import save_series

    stack = np.random.default_rng(0).integers(0, 900, (4, 16, 18)).astype(np.int16)
    files = save_series(tmp_path / "series", stack)
    archive = zipped({f"Doe/{path.name}": path.read_bytes() for path in files})
    job = ended(client, upload(client, ("a.zip", archive)))
    (case,) = client.get(f"{API}/jobs/{job['id']}/cases").json()
    assert (case["kind"], case["images"], case["dicom"]) == ("volume", 4, True)
    assert case["name"].startswith("Doe/series-")


def test_a_nifti_pair_is_one_case(client):
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Pair(np.arange(60, dtype=np.int16).reshape(5, 4, 3), np.eye(4))
    files = nibabel.Nifti1Pair.make_file_map({"header": io.BytesIO(), "image": io.BytesIO()})
    image.to_file_map(files)
    pair = [
        ("v.img", files["image"].fileobj.getvalue()),
        ("v.hdr", files["header"].fileobj.getvalue()),
    ]
    job = ended(client, upload(client, *pair))
    (case,) = client.get(f"{API}/jobs/{job['id']}/cases").json()
    assert (case["kind"], case["name"]) == ("volume", "v.hdr")


def test_an_inspector_that_hangs_or_dies_is_replaced(tmp_path):
    inspection = Inspection(1, seconds=20, pixels=10**8)
    question = {"task": "score", "folder": str(tmp_path / "none"), "files": []}
    try:
        inspection.start()
        first = inspection._free[0]
        first._process.kill()
        assert inspection.check(question)["code"] == "input"
        assert inspection.check(question)["code"] == "input"
        second = inspection._free[0]
        assert second is not first
        second._process.send_signal(signal.SIGSTOP)
        inspection._seconds = 0.3
        assert "took too long" in inspection.check(question)["detail"]
        assert second._process.poll() is not None
    finally:
        inspection.stop()


@given(st.lists(st.text(min_size=1, max_size=40), max_size=30))
def test_names_of_ours_are_plain_and_unique(given_names):
    placer = Placer()
    placed = [placer.place(name) for name in given_names]
    assert len(set(placed)) == len(placed)
    for name in placed:
        assert name[:6].isdecimal()
        assert "/" not in name
        assert ".." not in name


@given(st.text(max_size=300))
def test_shown_names_are_one_printable_line(name):
    shown = shown_name(name)
    assert 0 < len(shown) <= 200
    assert shown.isprintable()
    assert not {"..", ""} & set(shown.split("/"))


def test_messages_speak_of_the_clients_files(tmp_path):
    names = {"000001.png": "scan.png", "000001": "other"}
    text = f"{tmp_path}/000001.png: damaged, unlike {tmp_path}/000001"
    assert in_client_words(text, tmp_path, names) == "scan.png: damaged, unlike other"
    assert in_client_words(text, tmp_path, names, hide=True) == "000001.png: damaged, unlike 000001"


def test_a_clients_name_that_looks_like_one_of_ours_is_left_alone(tmp_path):
    names = {f"00000{n}.png": f"00000{n + 1}.png" for n in range(3)}
    assert in_client_words(f"{tmp_path}/000000.png: damaged", tmp_path, names) == (
        "000001.png: damaged"
    )
