import logging
import socket
import struct
import threading
import time

import pydicom
import pytest

pytest.importorskip("pynetdicom")
pytest.importorskip("highdicom")

from pacs_images import DETECTOR, RESULTS, mark, predict_marks, study
from pacs_peer import send, wait_until_empty
from recap.errors import InputError, SettingsError
from recap.service.pacs.listen import Listener, ListenSettings
from recap.service.pacs.score_study import study_scorer
from recap.service.pacs.send import DicomPeer, parse_address
from recap.service.pacs.spool import Spool

HALF_A_MESSAGE = struct.pack(">BBL", 4, 0, 2**14) + bytes(100)


def test_results_of_a_series_come_back(running, archive, tmp_path, caplog):
    listener = running()
    with caplog.at_level(logging.DEBUG):
        assert send(listener.port, study(1)) == [0, 0, 0]
        archive.wait_for(RESULTS)
        wait_until_empty(tmp_path / "spool")
    assert len(archive.received) == RESULTS
    assert {study for study, _, _ in archive.received} == {study(1)[0].StudyInstanceUID}
    for secret in ("Secret", "Person", "HIDDEN"):
        assert secret not in caplog.text
        assert not any(secret in str(path) for path in (tmp_path / "spool").rglob("*"))


def test_a_study_over_two_associations_is_scored_once(running, archive, tmp_path):
    listener = running(quiet_seconds=1.0)
    images = study(2, slices=4)
    send(listener.port, images[:2])
    send(listener.port, images[2:])
    archive.wait_for(RESULTS)
    wait_until_empty(tmp_path / "spool")
    assert len(archive.received) == RESULTS


def test_a_sender_that_hangs_up_during_an_image_does_not_hold_up_its_study(
    running, archive, tmp_path, monkeypatch
):
    from pynetdicom import AE

    keep = Spool.store
    storing, gone = threading.Event(), threading.Event()

    def slow_store(*args):
        storing.set()
        assert gone.wait(30)
        return keep(*args)

    monkeypatch.setattr(Spool, "store", slow_store)
    listener = running()
    (image,) = study(22, slices=1)
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(image.SOPClassUID)
    association = ae.associate("127.0.0.1", listener.port, ae_title="RECAP")
    sender = threading.Thread(target=association.send_c_store, args=(image,))
    sender.start()
    assert storing.wait(30)
    (accepted,) = listener._server.active_associations
    association.dul.socket.close()
    accepted.dul.join(30)  # it has heard that the connection is closed
    gone.set()
    sender.join(30)
    archive.wait_for(RESULTS, seconds=30)
    wait_until_empty(tmp_path / "spool")


def test_a_sender_that_stands_still_within_a_message_does_not_hold_up_its_study(
    running, archive, tmp_path, monkeypatch
):
    from pynetdicom import AE

    monkeypatch.setattr("recap.service.pacs.listen._SILENCE_S", 1.0)
    listener = running(max_associations=1)
    (image,) = study(24, slices=1)
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(image.SOPClassUID)
    association = ae.associate("127.0.0.1", listener.port, ae_title="RECAP")
    assert association.send_c_store(image).Status == 0
    association.dul.socket.socket.send(HALF_A_MESSAGE)
    archive.wait_for(RESULTS, seconds=30)
    wait_until_empty(tmp_path / "spool")
    assert send(listener.port, study(25, slices=1)) == [0]


def test_a_message_is_cut_off_before_it_is_in_memory(running):
    listener = running(max_instance_bytes=100_000)
    announced = struct.pack(">BBL", 1, 0, 2**31)
    with (
        socket.create_connection(("127.0.0.1", listener.port), timeout=30) as peer,
        pytest.raises((ConnectionResetError, BrokenPipeError)),
    ):
        peer.sendall(announced + bytes(2**28))


def test_a_study_is_not_scored_while_its_association_is_open(running, archive):
    from pynetdicom import AE

    listener = running(quiet_seconds=0.1)
    images = study(23)
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(images[0].SOPClassUID)
    association = ae.associate("127.0.0.1", listener.port, ae_title="RECAP")
    association.send_c_store(images[0])
    time.sleep(1)
    assert archive.received == []
    for image in images[1:]:
        association.send_c_store(image)
    association.release()
    archive.wait_for(RESULTS)
    assert len(archive.received) == RESULTS


def test_what_comes_again_unchanged_is_not_scored_again(running, archive, tmp_path):
    listener = running()
    send(listener.port, study(3))
    archive.wait_for(RESULTS)
    wait_until_empty(tmp_path / "spool")
    assert send(listener.port, study(3)) == [0, 0, 0]
    wait_until_empty(tmp_path / "spool")
    assert len(archive.received) == RESULTS
    send(listener.port, study(3, slices=4))  # one slice more: the series anew, and whole
    archive.wait_for(2 * RESULTS)


def test_own_results_are_taken_and_left_alone(running, archive, tmp_path):
    """An archive that passes on all it gets sends our results back to us."""
    for dataset in study(4):
        path = tmp_path / "images" / f"{dataset.SOPInstanceUID}.dcm"
        path.parent.mkdir(exist_ok=True)
        dataset.save_as(path, enforce_file_format=True)
    mark(tmp_path / "images", tmp_path / "results")
    own = [pydicom.dcmread(path) for path in (tmp_path / "results").rglob("*.dcm")]
    listener = running()
    assert send(listener.port, own) == [0] * RESULTS
    assert list((tmp_path / "spool" / "incoming").iterdir()) == []


def test_unknown_callers_are_turned_away(running):
    listener = running(calling=("SCANNER",))
    assert send(listener.port, study(5), calling="STRANGER") == []
    assert send(listener.port, study(5)[:1]) == [0]


def test_beyond_this_machine_callers_must_be_named(tmp_path, archive):
    settings = ListenSettings(host="0.0.0.0", port=0)
    with pytest.raises(SettingsError, match="--calling"):
        Listener(Spool(tmp_path), mark, DicomPeer(parse_address(archive.address)), settings).start()


def test_a_taken_port_is_told(running):
    listener = running()
    with pytest.raises(InputError, match="Choose another --port"):
        running(spool="other", port=listener.port)


def test_whatever_ends_it_no_image_is_taken_after_that(tmp_path, archive, monkeypatch):
    """Nobody would score it; and the next listener can begin."""
    from pynetdicom import AE

    def end():
        raise KeyboardInterrupt

    destination = DicomPeer(parse_address(archive.address))
    listener = Listener(Spool(tmp_path), mark, destination, ListenSettings(port=0))
    listener.start()
    (image,) = study(29, slices=1)
    port = listener.port
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(image.SOPClassUID)
    association = ae.associate("127.0.0.1", port, ae_title="RECAP")
    assert association.send_c_store(image).Status == 0
    monkeypatch.setattr(listener, "step", end)
    try:
        with pytest.raises(KeyboardInterrupt):
            listener.run()
        association.join(10)
        assert association.is_aborted
        assert send(port, [image]) == []
        Spool(tmp_path).claim()
    finally:
        association.abort()


def test_too_many_images_are_refused(running):
    listener = running(max_instances=2, quiet_seconds=30)
    assert send(listener.port, study(6, slices=3)) == [0, 0, 0xA700]


def test_a_full_spool_refuses(running):
    listener = running(max_spool_bytes=100)
    assert send(listener.port, study(6)[:1]) == [0xA700]


def test_a_huge_image_is_cut_off(running):
    listener = running(max_instance_bytes=100_000)
    assert send(listener.port, study(7, slices=1, side=1000)) == [-1]
    assert send(listener.port, study(7, slices=1)) == [0]


def test_images_without_names_are_not_taken(running):
    listener = running()
    (image,) = study(8, slices=1)
    del image.StudyInstanceUID
    assert send(listener.port, [image]) == [0xC000]


def test_a_deflated_image_is_not_unpacked_for_its_names(running, monkeypatch):
    from pynetdicom import AE

    monkeypatch.setattr("recap.io.dicom.file._MAX_SCANNED", 2**12)
    monkeypatch.setattr("zlib.decompress", None)  # that of pydicom, which knows no limit
    listener = running(quiet_seconds=60)
    (image,) = study(28, slices=1, side=1000)
    image.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(image.SOPClassUID, image.file_meta.TransferSyntaxUID)
    association = ae.associate("127.0.0.1", listener.port, ae_title="RECAP")
    assert association.send_c_store(image).Status == 0
    association.release()
    assert listener._spool.count(image.StudyInstanceUID) == 1


def test_a_study_that_cannot_be_scored_is_set_aside(running, archive, tmp_path):
    def fail(images, results):
        raise InputError("cannot be read")

    listener = running(score=fail)
    send(listener.port, study(9))
    wait_until_empty(tmp_path / "spool")
    (reason,) = (tmp_path / "spool" / "failed").rglob("reason.txt")
    assert reason.read_text() == "cannot be read\n"
    assert archive.received == []


def test_a_study_that_breaks_scoring_does_not_stop_the_next(running, archive, tmp_path, caplog):
    def crash_once(images, results):
        if not archive.received and not any((tmp_path / "spool" / "failed").iterdir()):
            raise ValueError("Secret^Person")
        return mark(images, results)

    listener = running(score=crash_once)
    send(listener.port, study(10))
    wait_until_empty(tmp_path / "spool")
    (failed,) = (tmp_path / "spool" / "failed").iterdir()
    assert (failed / "reason.txt").read_text() == "scoring failed (ValueError)\n"
    assert f"scoring study {failed.name} failed: ValueError at test_listen.py:" in caplog.text
    assert "Secret" not in caplog.text
    assert len(list((failed / "images").iterdir())) == 3
    send(listener.port, study(20))
    archive.wait_for(RESULTS)
    failed.rename(tmp_path / "spool" / "work" / failed.name)
    archive.wait_for(2 * RESULTS)


def test_images_that_cannot_be_scored_are_kept_while_the_others_are_answered(
    running, archive, tmp_path, monkeypatch
):
    """Two series, of which one holds a slice without its pixels."""

    monkeypatch.setattr("recap.scoring.predict.predict", predict_marks)
    spool, broken = tmp_path / "spool", study(21)
    for image in broken:
        image.SeriesInstanceUID += ".2"
        image.SOPInstanceUID += ".2"
    broken[1].PixelData = broken[1].PixelData[:10]
    listener = running(score=study_scorer(DETECTOR))
    send(listener.port, [*study(21), *broken])
    archive.wait_for(RESULTS)
    wait_until_empty(spool)
    assert len(archive.received) == RESULTS
    (failed,) = (spool / "failed").iterdir()
    assert "ends early" in (failed / "reason.txt").read_text()
    kept = {pydicom.dcmread(path).SOPInstanceUID for path in (failed / "images").iterdir()}
    assert kept == {image.SOPInstanceUID for image in broken}
    # Back in work they are tried again; as they are, to the same end, with a reason for all.
    failed.rename(spool / "work" / failed.name)
    wait_until_empty(spool)
    (again,) = (spool / "failed").iterdir()
    assert again.name == failed.name
    assert len(list((again / "images").iterdir())) == 3
    # Sent again, they are tried again, while the series that was answered is known.
    send(listener.port, [*study(21), *broken])
    wait_until_empty(spool)
    assert len(list((spool / "failed").iterdir())) == 2
    assert len(archive.received) == RESULTS


def test_what_an_archive_will_never_take_is_dropped(running, archive, tmp_path):
    archive.answer = 0x0122
    listener = running()
    send(listener.port, study(12))
    wait_until_empty(tmp_path / "spool")
    assert archive.received == []
    archive.answer = 0  # somebody has taught it our kinds, and sends the study again
    send(listener.port, study(12))
    archive.wait_for(RESULTS)


@pytest.mark.parametrize("text", ["PACS", "PACS@host", "@host:1", "A@h:0", "A@h:70000", "a@b:c"])
def test_addresses_are_checked(text):
    with pytest.raises(SettingsError, match="AE@HOST:PORT"):
        parse_address(text)


def test_addresses():
    found = parse_address("PACS@[::1]:104")
    assert (found.title, found.host, found.port) == ("PACS", "::1", 104)
