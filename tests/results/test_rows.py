"""scores.csv while a run is under way, and after it ended early."""

from contextlib import suppress
from dataclasses import replace

import pytest

from recap.errors import InputError
from recap.results import table as tables
from recap.results.table import Row, appending, read_rows


def row(case, score="0.1"):
    return Row(case, f"in/{case}", "0" * 64, "ok", score=score)


EARLIER = {case: row(case) for case in ("a", "b", "c")}


def test_a_case_that_is_scored_again_has_one_row_after_a_kill(tmp_path):
    path = tmp_path / "scores.csv"
    with appending(path, EARLIER) as table:
        table.add(row("b", "0.9"))
        # What a kill leaves at this moment: the earlier row, and the new one behind it.
        path.with_name("killed.csv").write_bytes(path.read_bytes())
    killed = path.with_name("killed.csv")
    assert len(killed.read_text().splitlines()) == 1 + 4
    assert read_rows(killed) == [row("a"), row("b", "0.9"), row("c")]


def test_a_run_that_is_interrupted_leaves_one_row_of_each_case(tmp_path):
    """Spreadsheets and scripts read the file itself."""
    path = tmp_path / "scores.csv"
    with suppress(KeyboardInterrupt), appending(path, EARLIER) as table:
        table.keep("c", "elsewhere/c")
        table.add(row("b", "0.9"))
        table.add(row("d"))
        raise KeyboardInterrupt
    assert len(path.read_text().splitlines()) == 1 + 4
    moved = replace(row("c"), path="elsewhere/c")
    assert read_rows(path) == [row("a"), row("b", "0.9"), moved, row("d")]


def test_what_ended_a_run_is_told_also_where_the_table_cannot_be_written_anew(
    tmp_path, monkeypatch
):
    path = tmp_path / "scores.csv"

    def fail_on_a_full_disk():
        with appending(path, EARLIER) as table:
            table.add(row("b", "0.9"))
            monkeypatch.setattr(tables, "replacing", no_room)
            raise ZeroDivisionError

    def no_room(path):
        raise InputError("the disk is full")

    with pytest.raises(ZeroDivisionError):
        fail_on_a_full_disk()
    assert read_rows(path) == [row("a"), row("b", "0.9"), row("c")]
