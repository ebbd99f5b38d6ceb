"""What the listener waits for instead of giving up: a disk, an archive, a connection."""

import errno
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("pynetdicom")
pytest.importorskip("highdicom")

from pacs_images import DETECTOR, RESULTS, predict_marks, study
from pacs_peer import send, wait_until_empty
from recap.errors import InputError
from recap.service.pacs.listen import Listener, ListenSettings
from recap.service.pacs.score_study import study_scorer
from recap.service.pacs.send import DicomPeer, SendError, StuckError, parse_address
from recap.service.pacs.spool import Round, Spool


@pytest.fixture
def twice_stopped_by(monkeypatch):
    """twice_stopped_by(error): the first two rounds end with it, and little time is waited."""

    def stop_by(error):
        left, count = [error, error], Round.count_attempt

        def count_attempt(each):
            if left:
                raise left.pop()
            return count(each)

        monkeypatch.setattr(Round, "count_attempt", count_attempt)
        monkeypatch.setattr("recap.service.pacs.listen._LONGEST_WAIT_S", 0.05)

    return stop_by


def full_disk():
    """As `write_atomic` tells of one."""
    error = InputError("Cannot write attempts.txt: the disk is full.")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


def test_a_full_disk_is_waited_for(running, archive, twice_stopped_by, caplog):
    twice_stopped_by(full_disk())
    listener = running()
    send(listener.port, study(13))
    archive.wait_for(RESULTS)
    assert caplog.text.count("waiting 0 s: Cannot write attempts.txt") == 2


def two_sealed(tmp_path):
    """A listener whose spool holds two rounds, and the first of them."""
    spool = Spool(tmp_path / "spool")
    first, _ = (spool.seal(spool.store(name, "1", "a", b"x")) for name in ("1st", "2nd"))
    listener = Listener(spool, lambda images, results: [], SimpleNamespace(close=lambda: None))
    return listener, spool, first


def refuse(patch, unlucky, error):
    """Let one round fail whenever it is begun."""
    count = Round.count_attempt

    def count_attempt(each):
        if each == unlucky:
            raise error
        return count(each)

    patch.setattr(Round, "count_attempt", count_attempt)


def test_a_study_without_room_does_not_stop_those_behind_it(tmp_path, monkeypatch):
    listener, spool, first = two_sealed(tmp_path)
    with monkeypatch.context() as patch:
        refuse(patch, first, full_disk())
        with pytest.raises(InputError, match="disk is full"):
            listener.step()
    assert spool.rounds() == [first]
    listener.step()  # nor is it put off: there is room for it now
    assert spool.rounds() == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_while_results_are_written_is_waited_for(
    running, archive, tmp_path, monkeypatch, code
):
    """More often than a study is tried that brings the process down."""
    from recap.report.dicom import results as dicom_results
    from recap.service.pacs.listen import _MAX_ATTEMPTS

    full, write = [True] * (_MAX_ATTEMPTS + 2), dicom_results.replacing

    @contextmanager
    def replacing(path):
        with write(path) as file:
            yield file
            if path.name == "report.dcm" and full:
                full.pop()
                raise OSError(code, "No space left on device")

    monkeypatch.setattr("recap.scoring.predict.predict", predict_marks)
    monkeypatch.setattr(dicom_results, "replacing", replacing)
    monkeypatch.setattr("recap.service.pacs.listen._LONGEST_WAIT_S", 0.05)
    listener = running(score=study_scorer(DETECTOR))
    send(listener.port, study(26))
    archive.wait_for(RESULTS)
    wait_until_empty(tmp_path / "spool")
    assert not full
    assert list((tmp_path / "spool" / "failed").iterdir()) == []


def test_an_error_that_nobody_thought_of_does_not_end_the_listener(
    running, archive, twice_stopped_by, caplog
):
    twice_stopped_by(ValueError("Secret^Person"))
    listener = running()
    send(listener.port, study(24))
    archive.wait_for(RESULTS, seconds=20)
    assert "ValueError" in caplog.text
    assert "Secret" not in caplog.text


def test_a_connection_that_goes_just_before_a_result_is_opened_again(archive, tmp_path):
    (image,) = study(25, slices=1)
    image.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    image.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    peer = DicomPeer(parse_address(archive.address))

    def closed(dataset):
        raise RuntimeError("The association with a peer SCP must be established")

    peer._connected().send_c_store = closed
    with pytest.raises(SendError, match="was lost"):
        peer.send(tmp_path / "a.dcm")
    assert peer.send(tmp_path / "a.dcm") == "stored"
    peer.close()


@pytest.mark.parametrize("answer", [0x0110, 0x0124, 0xC000, 0x0117])
def test_what_an_archive_does_not_take_now_waits(archive, tmp_path, answer):
    """A right that is missing, a data base that hiccups: nothing of that is the object's fault."""
    (image,) = study(27, slices=1)
    image.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    image.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    peer = DicomPeer(parse_address(archive.address))
    archive.answer = answer
    with pytest.raises(StuckError, match=f"{answer:#06x}"):
        peer.send(tmp_path / "a.dcm")
    archive.answer = 0x0111  # it came before, and its confirmation was lost
    assert peer.send(tmp_path / "a.dcm") == "stored"
    archive.answer = 0xA900
    assert peer.send(tmp_path / "a.dcm") == "refused"
    peer.close()


def test_a_result_that_cannot_be_read_does_not_hold_up_the_others(archive, tmp_path):
    (tmp_path / "a.dcm").write_bytes(b"damaged")
    with pytest.raises(StuckError, match=r"a\.dcm: the DICOM file cannot be read"):
        DicomPeer(parse_address(archive.address)).send(tmp_path / "a.dcm")


def test_results_wait_for_an_archive_that_is_full(running, archive, tmp_path):
    archive.answer = 0xA700
    listener = running()
    send(listener.port, study(11))
    time.sleep(1)
    assert archive.received == []
    archive.answer = 0
    archive.wait_for(RESULTS)
    wait_until_empty(tmp_path / "spool")
    assert len({instance for _, instance, _ in archive.received}) == RESULTS


def test_studies_that_could_not_be_sealed_are_sealed_later(tmp_path, monkeypatch):
    """Those that are sealed go on, since what is done makes room."""
    spool = Spool(tmp_path / "spool")
    spool.seal(spool.store("before", "1", "a", b"x"))
    destination = SimpleNamespace(close=lambda: None)
    settings = ListenSettings(quiet_seconds=0)
    listener = Listener(spool, lambda images, results: [], destination, settings)
    for name in ("first", "second"):
        listener._arrivals.heard(spool.store(name, "1", "a", b"x"))

    def refuse(study):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(spool, "seal", refuse)
        with pytest.raises(OSError, match="No space"):
            listener.step()
    assert (len(spool.arriving()), spool.rounds()) == (2, [])
    listener.step()
    assert spool.arriving() == []


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), ValueError("Secret")])
def test_a_round_that_cannot_be_dealt_with_does_not_stop_those_behind_it(
    tmp_path, monkeypatch, caplog, error
):
    monkeypatch.setattr("recap.service.pacs.listen._LONGEST_WAIT_S", 0.0)
    listener, spool, first = two_sealed(tmp_path)
    with monkeypatch.context() as patch:
        refuse(patch, first, error)
        listener.step()
    assert spool.rounds() == [first]
    assert "Secret" not in caplog.text
    listener.step()
    assert spool.rounds() == []


def test_a_study_that_cannot_be_sealed_does_not_stop_those_behind_it(tmp_path, monkeypatch):
    spool = Spool(tmp_path / "spool")
    settings = ListenSettings(quiet_seconds=0)
    destination = SimpleNamespace(close=lambda: None)
    listener = Listener(spool, lambda images, results: [], destination, settings)
    first, second = (spool.store(name, "1", "a", b"x") for name in ("first", "second"))
    seal = spool.seal

    def refuse(study):
        if study == first:
            raise PermissionError(13, "Permission denied")
        return seal(study)

    for key in (first, second):
        listener._arrivals.heard(key)
    with monkeypatch.context() as patch:
        patch.setattr(spool, "seal", refuse)
        listener.step()
    assert spool.arriving() == [first]
    listener.step()
    assert (spool.arriving(), spool.rounds()) == ([], [])


def test_a_series_that_comes_again_is_not_scored_while_nobody_can_tell(tmp_path, monkeypatch):
    monkeypatch.setattr("recap.service.pacs.listen._LONGEST_WAIT_S", 0.0)
    spool, scored = Spool(tmp_path / "spool"), []

    def score(images, results):
        scored.append(images)
        return []

    destination = SimpleNamespace(close=lambda: None)
    listener = Listener(spool, score, destination, ListenSettings(quiet_seconds=0))

    def come():
        listener._arrivals.heard(spool.store("s", "1", "a", b"x"))
        listener.step()

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    come()
    with monkeypatch.context() as patch:
        patch.setattr("recap.service.pacs.spool._drop_known_series", refuse)
        come()
    assert len(spool.rounds()) == 1
    listener.step()
    assert (spool.rounds(), len(scored)) == ([], 1)


def test_an_object_that_is_too_large_does_not_hold_up_the_others(tmp_path, monkeypatch):
    class Proxy:
        limit, sent = "map", []

        def send(self, path):
            if path.stem == self.limit:
                raise StuckError("answered 413")
            self.sent.append(path.stem)
            return "stored"

        def close(self):
            pass

    def write(images, results):
        for name in ("map", "report"):
            (results / name).with_suffix(".dcm").write_bytes(b"x")
        return []

    monkeypatch.setattr("recap.service.pacs.listen._LONGEST_WAIT_S", 0.0)
    spool, proxy = Spool(tmp_path / "spool"), Proxy()
    listener = Listener(spool, write, proxy)
    for name in ("first", "second"):
        spool.seal(spool.store(name, "1", "a", b"x"))
    listener.step()
    assert (proxy.sent, len(spool.rounds())) == (["report", "report"], 2)
    proxy.limit = ""  # somebody has raised it
    listener.step()
    assert (proxy.sent[2:], spool.rounds()) == (["map", "map"], [])


def test_an_archive_that_stands_still_within_a_message_is_lost(archive, tmp_path, monkeypatch):
    from pynetdicom import evt

    monkeypatch.setattr("recap.service.pacs.send._TIMEOUT_S", 1.0)
    go_on = threading.Event()

    def read_no_more(event):
        if event.data[0] == 4:  # what is stored, not the association
            go_on.wait(30)

    archive.server.bind(evt.EVT_DATA_RECV, read_no_more)
    (image,) = study(30, slices=1, side=4000)  # more than the system keeps for a reader
    path = tmp_path / "result.dcm"
    image.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    image.save_as(path, enforce_file_format=True)
    peer = DicomPeer(parse_address(archive.address))
    started = time.monotonic()
    with pytest.raises(SendError, match="was lost"):
        peer.send(path)
    go_on.set()
    assert time.monotonic() - started < 20
