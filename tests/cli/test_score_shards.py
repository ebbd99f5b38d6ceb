"""`recap score` in shards, and what is said of those that do not go together."""

from importlib.util import find_spec

import pytest

from scored_folders import read_table

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: extra `ray`")


@pytest.fixture
def images(domains):
    return domains[0].root / "test"


def test_shards_then_joined(command, bundle, images, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert command("score", bundle, images, "--out", whole).code == 0
    score = ("score", bundle, images, "--out", out, "--workers", 1, "--batch", 2)
    first = command(*score, "--shard", "1/2")
    assert first.out.splitlines()[0].endswith(f"{out}/scores.1-of-2.csv")
    command(*score, "--shard", "2/2")
    parts = [row for n in (1, 2) for row in read_table(out / f"scores.{n}-of-2.csv")]
    written = {path: path.stat().st_mtime_ns for path in (out / "maps").rglob("*.npy")}
    assert command(*score).code == 0
    assert read_table(out / "scores.csv") == read_table(whole / "scores.csv")
    assert sorted(row["case"] for row in parts) == sorted(
        row["case"] for row in read_table(whole / "scores.csv")
    )
    assert {path: path.stat().st_mtime_ns for path in (out / "maps").rglob("*.npy")} == written


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--shard", "3/2"], "--shard 3/2: write I/N"),
        (["--shard", "1/2", "--report"], "without --shard when all shards are done"),
        (["--shard", "1/2", "--engine", "ray"], "makes shards of its own"),
        (["--engine", "cloud"], "No engine is called 'cloud'"),
        pytest.param(
            ["--engine", "ray", "--ray-address", "127.0.0.1:9"],
            "no Ray cluster answers",
            marks=needs_ray,
        ),
    ],
)
def test_what_does_not_go_together_is_told_first(options, told, command, bundle, images, tmp_path):
    result = command("score", bundle, images, "--out", tmp_path / "out", *options)
    assert result.code == 2
    assert told in " ".join(result.err.split())
    assert not list(tmp_path.glob("out/scores*"))
