"""The engine of `recap data prepare`, on a source of text files."""

import hashlib
import json
import os
import shutil
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import recap.data.prepare.run as run_module
from killed_run import prepare_and_die
from recap.data.prepare import Item, Output, Plan, PrepareOptions, prepare
from recap.data.prepare.plan import draw, rank, share_out
from recap.errors import InputError, SettingsError
from toy_source import ODD, SOURCE, toy, tree, work, worked, write_numbers


@pytest.fixture
def raw(tmp_path):
    return write_numbers(tmp_path / "raw")


def manifest(root):
    return json.loads((root / "Toy_AD/manifest.json").read_text())


def test_two_runs_give_the_same_tree_and_a_third_repeats_nothing(raw, tmp_path):
    first = prepare(SOURCE, raw, tmp_path / "a")
    prepare(SOURCE, raw, tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert (first.made, first.reused, first.counts) == (6, 0, {"test/good": 6, "valid/Ungood": 6})
    before = worked(raw)
    again = prepare(SOURCE, raw, tmp_path / "a")
    assert (again.made, again.reused) == (0, 6)
    assert worked(raw) == before
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_the_tree_does_not_depend_on_workers_or_where_the_raw_folder_lies(raw, tmp_path):
    prepare(SOURCE, raw, tmp_path / "a")
    shutil.copytree(raw, tmp_path / "elsewhere/raw")
    prepare(SOURCE, tmp_path / "elsewhere/raw", tmp_path / "b", workers=2)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert str(tmp_path) not in (tmp_path / "a/Toy_AD/manifest.json").read_text()
    _, processes = worked(tmp_path / "elsewhere/raw")
    assert os.getpid() not in processes


def test_the_manifest_has_the_hash_of_every_input_and_output(raw, tmp_path):
    prepare(SOURCE, raw, tmp_path / "a")
    found = manifest(tmp_path / "a")
    inputs = {
        name: digest for unit in found["items"].values() for name, digest in unit["inputs"].items()
    }
    outputs = {
        name: digest for unit in found["items"].values() for name, digest in unit["outputs"].items()
    }
    assert inputs == tree(raw)
    assert outputs == {k: v for k, v in tree(tmp_path / "a/Toy_AD").items() if k != "manifest.json"}
    assert found["made_by"]["source"] == "toy"
    assert found["made_by"]["versions"].keys() >= {"recap-ad", "numpy", "pillow", "zlib"}


@pytest.mark.parametrize("text", ["half", "die"])
def test_a_broken_input_is_named_and_leaves_nothing_behind(raw, tmp_path, text):
    (raw / "3.txt").write_text(text)
    summary = prepare(SOURCE, raw, tmp_path / "a", workers=2)
    assert [note.key for note in summary.errors] == ["3"]
    reason = "ValueError: cannot go on" if text == "half" else "the process that worked on it died"
    assert summary.errors[0].reason.startswith(reason)
    assert summary.made == 5
    assert not list((tmp_path / "a").rglob("3.png"))
    assert manifest(tmp_path / "a")["errors"][0]["key"] == "3"
    write_numbers(raw)
    mended = prepare(SOURCE, raw, tmp_path / "a")
    assert (mended.made, mended.reused, mended.errors) == (1, 5, ())
    prepare(SOURCE, raw, tmp_path / "fresh")
    assert tree(tmp_path / "a") == tree(tmp_path / "fresh")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_broken_installation_is_not_blamed_on_the_inputs(raw, tmp_path, workers):
    (raw / "3.txt").write_text("import")
    with pytest.raises(ImportError, match="a broken installation"):
        prepare(SOURCE, raw, tmp_path / "a", workers=workers)


def test_an_input_that_vanishes_is_named(raw, tmp_path):
    def plan(raw, options):
        found = SOURCE.plan(raw, options)
        (raw / "2.txt").unlink()
        return found

    summary = prepare(toy(plan), raw, tmp_path / "a")
    assert [(note.key, note.reason) for note in summary.errors] == [
        ("2", "2.txt: No such file or directory.")
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_started_again(raw, tmp_path, workers):
    for path in raw.iterdir():
        path.write_text("slow" if workers > 1 else path.stem)
    prepare_and_die("toy_source", raw, tmp_path / "a", after=2, workers=workers)
    folder = tmp_path / "a/Toy_AD"
    assert not (folder / "manifest.json").exists()
    _, *lines = (folder / ".prepare.jsonl").read_text().splitlines()
    finished = [json.loads(line)[1] for line in lines]
    assert len(finished) == 2
    _, processes = worked(raw)
    summary = prepare(SOURCE, raw, tmp_path / "a")
    assert (summary.made, summary.reused) == (4, 2)
    times, _ = worked(raw)
    assert all(times.count(key) == 1 for key in finished)
    prepare(SOURCE, raw, tmp_path / "fresh")
    assert tree(tmp_path / "a") == tree(tmp_path / "fresh")
    assert not any(_alive(process) for process in processes)


def _alive(process, patience_s=5.0):
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def test_a_torn_last_line_and_a_half_written_file_do_no_harm(raw, tmp_path):
    prepare_and_die("toy_source", raw, tmp_path / "a", after=3)
    folder = tmp_path / "a/Toy_AD"
    with (folder / ".prepare.jsonl").open("a") as stream:
        stream.write('["items", "4", {"work": "12')
    (folder / "test/good/img/.1f.partial").write_text("ha")
    assert prepare(SOURCE, raw, tmp_path / "a").reused == 3
    prepare(SOURCE, raw, tmp_path / "fresh")
    assert tree(tmp_path / "a") == tree(tmp_path / "fresh")


def test_changes_are_followed(raw, tmp_path):
    prepare(SOURCE, raw, tmp_path / "a")
    folder = tmp_path / "a/Toy_AD"
    (raw / "1.txt").write_text("other")
    (raw / "2.txt").unlink()
    (folder / "test/good/img/3.png").write_text("damaged")
    (folder / "test/good/img/4.png").unlink()
    summary = prepare(SOURCE, raw, tmp_path / "a")
    assert (summary.made, summary.reused) == (3, 2)
    prepare(SOURCE, raw, tmp_path / "fresh")
    assert tree(tmp_path / "a") == tree(tmp_path / "fresh")
    assert not list(folder.rglob("2.png"))


def test_another_version_makes_everything_anew(raw, tmp_path, monkeypatch):
    prepare(SOURCE, raw, tmp_path / "a")
    monkeypatch.setattr(run_module, "_version", lambda name: "99")
    assert prepare(SOURCE, raw, tmp_path / "a").made == 6
    assert prepare(SOURCE, raw, tmp_path / "a").made == 0


def test_a_smaller_run_may_grow_but_other_options_are_refused(raw, tmp_path):
    prepare(SOURCE, raw, tmp_path / "a", PrepareOptions(limit=2))
    grown = prepare(SOURCE, raw, tmp_path / "a")
    assert (grown.made, grown.reused) == (4, 2)
    before = tree(tmp_path / "a")
    with pytest.raises(InputError, match=r"Toy_AD: was prepared with another train\. Remove it"):
        prepare(SOURCE, raw, tmp_path / "a", PrepareOptions(train=False))
    assert tree(tmp_path / "a") == before


def moving(raw, options):
    """With a limit all texts are of the pool, without one of test."""
    from functools import partial

    split = "test" if options.limit is None else "valid"
    paths = sorted(raw.glob("*.txt"))
    return Plan(tuple(Item(p.stem, (p,), partial(one_file, p, split)) for p in paths))


def one_file(path, split):
    return [Output(f"{split}/good/img/{path.stem}.png", path.read_bytes())]


def test_nothing_stays_in_the_split_that_it_was_moved_from_by_a_killed_run(raw, tmp_path):
    def die(stage, done, total, name):
        if done == 2:
            raise KeyboardInterrupt

    prepare(toy(moving), raw, tmp_path / "a", PrepareOptions(limit=6))
    with pytest.raises(KeyboardInterrupt):
        prepare(toy(moving), raw, tmp_path / "a", progress=die)
    prepare(toy(moving), raw, tmp_path / "a")
    prepare(toy(moving), raw, tmp_path / "fresh")
    assert tree(tmp_path / "a") == tree(tmp_path / "fresh")


def test_what_others_wrote_is_left_alone(raw, tmp_path):
    (tmp_path / "a/Toy_AD/test").mkdir(parents=True)
    with pytest.raises(InputError, match="not made by `recap data prepare`"):
        prepare(SOURCE, raw, tmp_path / "a")
    (tmp_path / "a/Toy_AD/manifest.json").write_text('{"items": []}')
    with pytest.raises(InputError, match="not a manifest of `recap data prepare`"):
        prepare(SOURCE, raw, tmp_path / "a")


def test_probes_choose_and_are_not_repeated(raw, tmp_path):
    (raw / "5.txt").write_text("five")
    summary = prepare(ODD, raw, tmp_path / "a", workers=2)
    assert summary.counts["test/good"] == 2
    assert summary.caveats == ("odd only",)
    assert [note.key for note in summary.errors] == ["5"]
    assert "invalid literal for int()" in summary.errors[0].reason
    found = manifest(tmp_path / "a")
    assert {key: unit["facts"] for key, unit in found["probes"].items()} == {
        "1": True, "2": False, "3": True, "4": False, "6": False,
    }  # fmt: skip
    (raw / "5.txt").write_text("5")
    assert prepare(ODD, raw, tmp_path / "a").made == 1
    prepare(ODD, raw, tmp_path / "fresh")
    assert tree(tmp_path / "a") == tree(tmp_path / "fresh")


def clash(raw, options):
    from functools import partial

    path = raw / "1.txt"
    return Plan(tuple(Item(key, (path,), partial(work, path, "log.d")) for key in "ab"))


def unwritable(raw, options):
    from functools import partial

    return Plan((Item("x", (), partial(file_below_a_file, 1)),))


def file_below_a_file(number):
    return [Output("a", b"1"), Output("a/b", b"2")]


def test_plans_that_cannot_be_followed(raw, tmp_path):
    with pytest.raises(InputError, match=r"2 inputs become the same test/good/img/1\.png"):
        prepare(toy(clash), raw, tmp_path / "a")
    with pytest.raises(InputError, match=r"Cannot write .*a/b.*What is finished stays"):
        prepare(toy(unwritable), raw, tmp_path / "b")
    with pytest.raises(InputError, match=r"nowhere: there is no such folder\. For 'toy' give"):
        prepare(SOURCE, tmp_path / "nowhere", tmp_path / "c")
    options = PrepareOptions(patient_split=True, pool_normal=("1.png",))
    with pytest.raises(SettingsError, match="do not go together with --patient-split"):
        prepare(SOURCE, raw, tmp_path / "c", options)
    assert not (tmp_path / "c").exists()


@given(st.integers(0, 60), st.dictionaries(st.text(max_size=3), st.integers(1, 20), min_size=1))
def test_shares_add_up_and_nobody_goes_without(total, published):
    given_out = share_out(total, published)
    wanted = sum(published.values())
    assert sum(given_out.values()) == min(total, wanted)
    assert total < len(published) or min(given_out.values()) >= 1
    assert total < wanted or given_out == published


def test_names_that_are_not_utf8_have_a_rank_too():
    assert rank(os.fsdecode(b"caf\xe9"), "x") == hashlib.sha256(b"x:caf\xe9").digest()


@given(st.sets(st.text(max_size=4)), st.integers(0, 9), st.sets(st.text(max_size=4), max_size=3))
def test_draws_grow_and_keep_what_was_asked_for(names, count, first):
    drawn = draw(names, count, "x", first)
    assert {*drawn} >= names & first
    assert len(drawn) == min(len(names), max(count, len(names & first)))
    assert draw(sorted(names), count + 1, "x", first)[: len(drawn)] == drawn
