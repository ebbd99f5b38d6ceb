import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.data.folder import is_output, walk
from recap.errors import SettingsError
from recap.results.table import (
    MANIFEST,
    TABLE,
    WHOLE,
    Row,
    Shard,
    all_of,
    finished_rows,
    parse_shard,
    write_rows,
)


@settings(deadline=None)
@given(st.text(), st.integers(1, 12))
def test_every_case_is_in_exactly_one_shard(name, count):
    shards = [Shard(number, count) for number in range(1, count + 1)]
    assert sum(shard.holds(name) for shard in shards) == 1
    assert WHOLE.holds(name)


def test_where_a_case_belongs_never_changes():
    """Machines with other versions, and runs that go on years later, must agree."""
    # The first 16 digits of `printf %s NAME | sha256sum`, modulo 4.
    expected = {"a.png": 1, "c.png": 4, "sub/b.dcm": 1}
    assert all(Shard(number, 4).holds(name) for name, number in expected.items())


def test_shards_are_of_about_the_same_size():
    held = [sum(Shard(n, 4).holds(f"case-{i}.png") for i in range(2000)) for n in (1, 2, 3, 4)]
    assert sum(held) == 2000
    assert all(430 < count < 570 for count in held)


def test_names_of_files():
    assert Shard(2, 4).file("scores.csv") == "scores.2-of-4.csv"
    assert Shard(2, 4).file("parts") == "parts.2-of-4"
    assert WHOLE.file("scores.csv") == "scores.csv"


def test_parsed_as_written():
    assert parse_shard("3/4") == Shard(3, 4)
    assert parse_shard("1/1") == WHOLE
    assert str(Shard(3, 4)) == "3/4"


@pytest.mark.parametrize("text", ["0/4", "5/4", "1/0", "1", "a/b", "1/4/2", "-1/4", "", "²/4"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(SettingsError, match=r"--shard .*I/N"):
        parse_shard(text)


def row(case, score, status="ok"):
    return Row(case, f"in/{case}", "0" * 64, status, score=score)


def test_rows_of_all_tables_and_the_newest_of_each_case(tmp_path):
    shard = next(s for s in (Shard(1, 2), Shard(2, 2)) if s.holds("a"))
    tables = {
        "scores.csv": [row("a", "0.1"), row("b", "0.1"), row("c", "0.1")],
        shard.file("scores.csv"): [row("a", "0.2"), row("c", "", "error")],
        "scores.mine.csv": [row("a", "0.9")],
    }
    for age, (name, rows) in enumerate(tables.items()):
        write_rows(tmp_path / name, rows)
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    names = [path.name for path in all_of(tmp_path, "scores.csv")]
    assert names == ["scores.csv", shard.file("scores.csv")]
    assert {r.case: r.score for r in finished_rows(tmp_path, WHOLE).values()} == {
        "a": "0.2",
        "b": "0.1",
    }
    assert "a" in finished_rows(tmp_path, shard)
    other = Shard(3 - shard.number, 2)
    assert "a" not in finished_rows(tmp_path, other)


def test_a_folder_of_shards_alone_is_known_as_results(tmp_path):
    """Its overlays were taken for images where the tables had not been joined yet."""
    results = tmp_path / "scored"
    (results / "overlays").mkdir(parents=True)
    (results / "overlays" / "a.png").touch()
    (tmp_path / "b.png").touch()
    files = [Shard(1, 2).file(TABLE), Shard(1, 2).file(MANIFEST)]
    (results / files[0]).touch()
    assert not is_output(results)
    (results / files[1]).touch()
    assert is_output(results)
    assert [file.name for file in walk(tmp_path)] == ["b.png"]
    (results / "overlays").rename(results / "pictures")  # nobody's results look so
    assert not is_output(results)
