import os
import shutil
import time

import pytest

from recap.errors import InputError
from recap.service.pacs.spool import Spool, Unscored, key_of


def take_up(spool, study):
    """A round of what is new of a study; None if nothing is."""
    sealed = spool.seal(study)
    return sealed if spool.sift(sealed) else None


def test_names_are_digests(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.store("../../etc", "a/b", "..", b"x")
    (path,) = (tmp_path / "spool").rglob("*.dcm")
    assert path.relative_to(tmp_path / "spool").parts[:2] == ("incoming", key_of("../../etc"))
    assert path.read_bytes() == b"x"
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0


def test_a_round_survives_the_process(tmp_path):
    study = Spool(tmp_path).store("s", "1", "i", b"x")
    assert Spool(tmp_path).arriving() == [study]
    sealed = Spool(tmp_path).seal(study)
    again = Spool(tmp_path)
    assert again.rounds() == [sealed]
    assert again.arriving() == []
    assert sealed.study == study
    again.finish(sealed)
    assert Spool(tmp_path).rounds() == []


def test_unchanged_series_are_known(tmp_path):
    spool = Spool(tmp_path)
    study = spool.store("s", "1", "a", b"x")
    spool.finish(take_up(spool, study))
    spool.store("s", "1", "a", b"x")
    assert take_up(spool, study) is None
    assert spool.rounds() == []
    spool.store("s", "1", "a", b"x")
    spool.store("s", "1", "b", b"y")
    spool.store("s", "2", "c", b"z")
    assert len(list(take_up(spool, study).images.iterdir())) == 3
    (again,) = spool.rounds()
    spool.finish(again)
    spool.store("s", "1", "a", b"x")
    spool.store("s", "2", "c", b"changed")
    (left,) = take_up(spool, study).images.iterdir()
    assert left.read_bytes() == b"changed"


def test_a_series_that_comes_again_while_its_results_wait_is_known(tmp_path):
    spool = Spool(tmp_path)
    study = spool.store("s", "1", "a", b"x")
    waiting = take_up(spool, study)
    spool.store("s", "1", "a", b"x")
    assert take_up(spool, study) is None
    assert spool.rounds() == [waiting]
    spool.store("s", "1", "a", b"changed")
    assert take_up(spool, study) is not None
    spool.store("other", "1", "a", b"x")
    assert take_up(spool, key_of("other")) is not None


def test_a_study_that_is_sealed_twice_is_sealed_once(tmp_path):
    spool = Spool(tmp_path)
    study = spool.store("s", "1", "a", b"x")
    assert spool.seal(study) is not None
    assert spool.seal(study) is None


@pytest.mark.parametrize("left", [b"", b"\0\0\0", b"\xff", b"null"])
def test_what_a_power_cut_has_emptied_is_begun_anew(tmp_path, left):
    spool = Spool(tmp_path)
    study = spool.store("s", "1", "a", b"x")
    sealed = spool.seal(study)
    assert [sealed.count_attempt(), sealed.count_attempt()] == [1, 2]
    (sealed.folder / "attempts.txt").write_bytes(left)
    assert [sealed.count_attempt(), sealed.count_attempt()] == [1, 2]
    (tmp_path / "done" / f"{study}.json").write_bytes(left)
    spool.finish(sealed)
    spool.store("s", "1", "a", b"x")
    assert take_up(spool, study) is None
    (tmp_path / "done" / f"{study}.json").write_bytes(left)
    spool.store("s", "1", "a", b"x")
    assert take_up(spool, study) is not None


def test_half_made_rounds_are_cleared(tmp_path):
    spool = Spool(tmp_path)
    (tmp_path / "work" / "abc-1").mkdir()
    assert spool.rounds() == []
    assert list((tmp_path / "work").iterdir()) == []


def test_sent_results_are_remembered(tmp_path):
    spool = Spool(tmp_path)
    sealed = spool.seal(spool.store("s", "1", "a", b"x"))
    partial = sealed.folder / "results.partial"
    (partial / "0001").mkdir(parents=True)
    for name in ("a.dcm", "b.dcm"):
        (partial / "0001" / name).write_bytes(b"r")
    sealed.keep_results(partial)
    first, second = sealed.unsent()
    sealed.note_answer(first, "refused")
    assert sealed.was_in_vain
    assert Spool(tmp_path).rounds()[0].unsent() == [second]
    sealed.note_answer(second, "stored")
    assert not sealed.was_in_vain
    assert sealed.unsent() == []


@pytest.mark.parametrize("answer", ["stored", "refused"])
def test_a_round_that_the_archive_took_nothing_of_is_not_remembered(tmp_path, answer):
    spool = Spool(tmp_path)
    sealed = spool.seal(spool.store("s", "1", "a", b"x"))
    partial = sealed.folder / "results.partial"
    partial.mkdir()
    for name in ("map.dcm", "report.dcm"):
        (partial / name).write_bytes(b"r")
    sealed.keep_results(partial)
    first, second = sealed.unsent()
    sealed.note_answer(first, "refused")
    sealed.note_answer(second, answer)
    spool.finish(sealed)
    again = take_up(spool, spool.store("s", "1", "a", b"x"))
    assert (again is None) == (answer == "stored")


def test_images_are_set_aside_whole_and_again(tmp_path):
    """A kill after it leaves the round as it was: scored again, it is set aside again."""
    spool = Spool(tmp_path)
    for name in ("a", "b", "c"):
        study = spool.store("s", "1", name, name.encode())
    sealed = spool.seal(study)
    files = sorted(sealed.images.iterdir())
    unscored = [Unscored((files[0],), "one"), Unscored((files[2],), "other")]
    spool.set_aside(sealed, unscored)
    spool.set_aside(Spool(tmp_path).rounds()[0], unscored)
    (kept,) = (tmp_path / "failed").iterdir()
    assert sorted(kept.rglob("*.dcm")) == [kept / "images" / files[n].name for n in (0, 2)]
    assert (kept / "reason.txt").read_text() == "one\nother\n"
    assert sorted(sealed.images.iterdir()) == files
    spool.finish(sealed)
    assert (kept / "images" / files[0].name).read_bytes() in (b"a", b"b", b"c")
    kept.rename(tmp_path / "work" / kept.name)
    (again,) = Spool(tmp_path).rounds()
    assert again.study == study
    assert len(list(again.images.iterdir())) == 2


def test_counts_and_bytes(tmp_path):
    spool = Spool(tmp_path)
    for data in (b"one", b"three"):
        study = spool.store("s", "1", "a", data)
    spool.store("s", "1", "b", b"two")
    assert spool.count("s") == 2
    assert Spool(tmp_path).count("s") == 2
    assert spool.count("other") == 0
    assert Spool(tmp_path).stored_bytes == 8
    spool.finish(spool.seal(study))
    assert spool.stored_bytes == 0
    assert spool.count("s") == 0


def test_room_is_looked_for_again_before_a_spool_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("recap.service.pacs.spool._MEASURE_S", 0.0)
    spool = Spool(tmp_path)
    study = spool.store("s", "1", "a", b"three")
    assert not spool.has_room(1, 5)
    (tmp_path / "incoming" / study).rename(tmp_path.with_name("elsewhere"))
    assert spool.has_room(5, 5)
    monkeypatch.setattr("recap.service.pacs.spool._MEASURE_S", 60.0)  # nor at every try
    spool.store("s", "1", "a", b"three")
    (tmp_path / "incoming" / study).rename(tmp_path.with_name("there"))
    assert not spool.has_room(5, 5)


def test_what_is_there_once_is_counted_once(tmp_path):
    spool = Spool(tmp_path)
    for data in (b"three", b"three", b"one"):  # an image that is sent again replaces itself
        study = spool.store("s", "1", "a", data)
    assert spool.stored_bytes == 3
    sealed = spool.seal(study)
    spool.set_aside(sealed, [Unscored(tuple(sealed.images.iterdir()), "why")])
    assert Spool(tmp_path).stored_bytes == 3  # two names of one file


def test_a_round_that_was_copied_back_and_fails_again_is_kept_beside_the_first(tmp_path):
    spool = Spool(tmp_path)
    sealed = spool.seal(spool.store("s", "1", "a", b"x"))
    spool.fail(sealed, "first")
    (kept,) = (tmp_path / "failed").iterdir()
    shutil.copytree(kept, sealed.folder)
    spool.fail(sealed, "again")
    assert spool.rounds() == []
    folders = sorted((tmp_path / "failed").iterdir())
    assert [(each / "reason.txt").read_text() for each in folders] == ["first\n", "again\n"]
    assert {each.name.partition("-")[0] for each in folders} == {sealed.study}


def test_a_kill_while_a_finished_round_goes_leaves_nothing_to_score(tmp_path, monkeypatch):
    spool = Spool(tmp_path)
    for name in ("a", "b"):
        study = spool.store("s", "1", name, b"x")
    sealed = spool.seal(study)

    def killed(folder):
        next(folder.rglob("*.dcm")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("recap.service.pacs.spool.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            spool.finish(sealed)
    assert Spool(tmp_path).rounds() == []
    assert list((tmp_path / "work").iterdir()) == []


def test_a_kill_while_a_known_series_goes_leaves_nothing_of_it_to_score(tmp_path):
    spool = Spool(tmp_path)
    for series, name in (("1", "a"), ("1", "b"), ("2", "c")):
        study = spool.store("s", series, name, b"x")
    spool.finish(spool.seal(study))
    spool.store("s", "2", "c", b"changed")
    sealed = take_up(spool, study)
    (new,) = sealed.images.iterdir()
    (sealed.images / f"{key_of('1')}-{key_of('b')}.dcm").write_bytes(b"x")
    assert spool.sift(sealed)
    assert list(sealed.images.iterdir()) == [new]
    # Of two rounds, the earlier is what the later one is compared with.
    spool.store("s", "3", "d", b"x")
    later = take_up(spool, study)
    (later.images / new.name).write_bytes(b"changed")
    assert spool.sift(sealed)
    assert spool.sift(later)
    assert list(sealed.images.iterdir()) == [new]
    assert len(list(later.images.iterdir())) == 1


def test_files_that_vanish_while_they_are_counted(tmp_path):
    """Whoever moves a round out of failed/ must not end the listener."""
    spool = Spool(tmp_path)
    spool.store("s", "1", "a", b"three")
    gone = tmp_path / "failed" / "abc-1" / "images"
    gone.mkdir(parents=True)
    (gone / "a.dcm").symlink_to(tmp_path / "moved away.dcm")  # listed, but not there
    assert Spool(tmp_path).stored_bytes == 5


def test_old_ledgers_go(tmp_path):
    spool = Spool(tmp_path)
    study = spool.store("s", "1", "a", b"x")
    spool.finish(spool.seal(study))
    (ledger,) = (tmp_path / "done").iterdir()
    long_ago = time.time() - 40 * 86400
    os.utime(ledger, (long_ago, long_ago))
    Spool(tmp_path)
    assert not ledger.exists()


def test_an_interrupted_write_is_no_image(tmp_path, monkeypatch):
    spool = Spool(tmp_path)

    def lost(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", lost)
    with pytest.raises(OSError, match="Input/output"):
        spool.store("s", "1", "a", b"x")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_a_kill_left_of_an_image_is_not_part_of_its_series(tmp_path):
    spool = Spool(tmp_path)
    study = spool.store("s", "1", "a", b"x")
    (tmp_path / "incoming" / study / "b.partial").write_bytes(b"half")
    (left,) = spool.seal(study).images.iterdir()
    assert left.read_bytes() == b"x"
    (tmp_path / "incoming" / "other").mkdir()
    (tmp_path / "incoming" / "other" / "b.partial").write_bytes(b"half")
    assert take_up(spool, "other") is None
    assert len(spool.rounds()) == 1


def test_two_listeners_do_not_share_a_spool(tmp_path):
    first, second = Spool(tmp_path), Spool(tmp_path)
    first.claim()
    with pytest.raises(InputError, match="in use by another listener"):
        second.claim()
    first.release()
    second.claim()
    second.release()
