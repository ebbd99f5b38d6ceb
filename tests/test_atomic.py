"""What is said where the disk refuses: which file, why, and what to do."""

import errno
import os
from pathlib import Path

import pytest

from recap.atomic import check_file, check_place, in_words, write_atomic
from recap.errors import InputError, is_full


def refused(action):
    with pytest.raises(OSError, match="Errno") as caught:
        action()
    return in_words(caught.value)


def test_whole_files(tmp_path):
    write_atomic(tmp_path / "new" / "a.txt", "é")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "é".encode()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_what_must_outlive_a_power_cut_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, seen, put = tmp_path / "a", [], os.fsync

    def watched(handle):
        seen.append("named" if path.exists() else os.fstat(handle).st_size)
        put(handle)

    monkeypatch.setattr(os, "fsync", watched)
    write_atomic(path, "four", durable=True)
    assert seen == [4, "named"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "this is a folder, but a file is needed"),
        ("file/a.txt", "file is a file, but a folder is needed"),
        ("file/b/a.txt", "file is a file, but a folder is needed"),
        ("x" * 300, "the name is too long"),
    ],
)
def test_a_file_that_cannot_be_written_says_why(tmp_path, name, reason):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=rf"^Cannot write {tmp_path}.*: .*{reason}.*\. \w.*\.$"):
        write_atomic(tmp_path / name, "a")


def test_a_disk_that_can_only_be_read_says_so(tmp_path, monkeypatch):
    """It refuses to remove a file even where there is none."""

    def refuse(path, *_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(InputError, match=r"a\.txt: this disk can only be read"):
        write_atomic(tmp_path / "a.txt", "a")


@pytest.mark.parametrize("name", ["", "file/a.txt", "file/b/a.txt"])
def test_it_can_be_known_before(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Cannot write"):
        check_file(tmp_path / name)


def test_a_good_place_is_left_as_it_is(tmp_path):
    check_file(tmp_path / "new" / "a.txt")
    check_place(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_can_be_known_before(tmp_path):
    (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(InputError, match="no permission"):
        check_file(tmp_path / "shut" / "a.txt")


def test_what_the_system_says_in_words(tmp_path):
    file = tmp_path / "file"
    file.touch()
    folder = f"{file} is a file, but a folder is needed. Choose another place"
    assert refused(lambda: file.mkdir(exist_ok=True)).startswith(f"Cannot use {file}: {folder}")
    below = file / "x" / "y"
    assert refused(lambda: below.mkdir(parents=True)).startswith(f"Cannot use {below}: {folder}")
    assert "it exists already" in refused(tmp_path.mkdir)
    assert "there is no such file" in refused((tmp_path / "none").read_bytes)


def test_no_text_is_a_bare_number(tmp_path):
    for number in errno.errorcode:
        assert "[Errno" not in in_words(OSError(number, os.strerror(number), str(tmp_path)))


def test_errors_without_a_file_keep_their_words():
    assert "the disk is full. Make room" in in_words(OSError(errno.ENOSPC, "No space left"))
    assert in_words(OSError("urlopen error")) == "urlopen error"


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_that_leads_nowhere_is_no_place_for_a_folder(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("gone")
    with pytest.raises(InputError, match="link is a link that leads nowhere"):
        check_place(link)
    assert "is a link that leads nowhere" in refused(lambda: link.mkdir(exist_ok=True))
    check_file(link)  # a file takes the place of the link
    write_atomic(link, "text")
    assert link.read_text() == "text"


def test_a_full_disk_is_known_by_its_number_not_by_a_text_that_may_quote_a_file():
    full = OSError(errno.ENOSPC, "No space left on device")
    assert is_full(full)
    told = InputError("a.png: cannot be written.")
    told.__cause__ = full
    assert is_full(told)
    assert not is_full(OSError(errno.EFBIG, "File too large"))
    assert not is_full(InputError("scan (os error 28): damaged."))
