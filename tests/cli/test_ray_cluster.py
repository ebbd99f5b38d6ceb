"""Grids and folders on a real Ray cluster of two workers; it takes its time, so all share one."""

import json
import os
from pathlib import Path

import pytest

from recap._cluster import RayCluster
from recap.bench.cells import plan_cells
from recap.bench.kept import read_results
from recap.bench.run import DIED, run_cells, run_jobs
from recap.methods.registry import resolve_settings
from scored_folders import read_table
from stub_jobs import Desk, stub_jobs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tiny_folder):
    """Two processors that were there before; their workers can import the stubs."""
    pytest.importorskip("ray", reason="Ray is not installed: extra `ray`")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 * 1024**2}
    with pytest.MonkeyPatch.context() as patch:
        stubs = str(Path(stub_jobs.__code__.co_filename).parent)
        patch.setenv("PYTHONPATH", stubs, prepend=os.pathsep)
        try:
            cluster = Cluster(initialize_head=True, head_node_args=head)
        except Exception as error:
            # Ray gives its processes 30 s; a machine busy with other work takes longer.
            if "timed out during startup" not in str(error):
                raise
            pytest.skip(f"the machine is too busy for Ray to start: {error}")
    yield cluster
    cluster.shutdown()


def contents(out):
    """Results without what a clock says, and by how many threads."""
    return [{**result, "seconds": None, "threads": None} for result in read_results(out)]


def test_two_workers_give_what_one_process_gives(
    cluster, domains, tiny_folder, tmp_path, monkeypatch
):
    """Few-shot and zero-shot. Paths from the current folder hold for workers too."""
    encoder = {"name": str(tiny_folder), "input_px": 70}
    settings = resolve_settings(encoder=encoder, training={"epochs": 1, "augment": False})
    cells = plan_cells({"recap": settings}, ["Brain", "Chest"], [0, 2], [0])
    monkeypatch.chdir(tmp_path)
    assert run_cells(cells, domains, tmp_path / "here") == {}
    out = Path("there")
    there = {"engine": "ray", "ray_address": cluster.address, "jobs": 2}
    assert run_cells(cells, domains, out, **there) == {}
    assert len(contents(out)) == 4
    assert contents(out) == contents(tmp_path / "here")


def test_a_folder_is_scored_as_by_one_process(
    cluster, command, bundle, domains, tmp_path, monkeypatch
):
    """Paths from the current folder hold for workers too; run again, nothing is scored."""
    images = domains[0].root / "test"
    assert command("score", bundle, images, "--out", tmp_path / "whole").code == 0
    (tmp_path / "broken.png").write_bytes(b"nothing")
    monkeypatch.chdir(tmp_path)
    score = ("score", bundle, images, "broken.png", "--out", "out")
    there = ("--engine", "ray", "--ray-address", cluster.address, "--jobs", 2)
    assert command(*score, *there).code == 1
    out = tmp_path / "out"
    rows = read_table(out / "scores.csv")
    expected = read_table(tmp_path / "whole" / "scores.csv")
    assert [row["status"] for row in rows] == [*["ok"] * len(expected), "error"]
    for row, same in zip(rows, expected, strict=False):
        assert (row["sha256"], row["score"]) == (same["sha256"], same["score"])
        assert (out / row["map"]).read_bytes() == (tmp_path / "whole" / same["map"]).read_bytes()
    shards = sorted(out.glob("manifest.*-of-*.json"))
    assert len(shards) > 1
    told = [json.loads(path.read_text()) for path in shards]
    assert sum(sum(one["cases"].values()) for one in told) == len(rows)
    written = {path: path.stat().st_mtime_ns for path in (out / "maps").rglob("*.npy")}
    assert command(*score).code == 1
    assert {path: path.stat().st_mtime_ns for path in (out / "maps").rglob("*.npy")} == written


def test_a_dead_worker_costs_its_own_cell_and_a_cluster_is_left_as_it_was(tmp_path, cluster):
    import ray

    desk = Desk()
    todo = stub_jobs(tmp_path, "die", "work", "die once", "fail")
    run_jobs(todo, RayCluster(cluster.address, 2, 2), desk.start, desk.end)
    problem = "chest.png: is damaged."
    assert desk.ended == {"die-0": DIED, "work-1": "", "die once-2": "", "fail-3": problem}
    assert [len(job.runs()) for job in todo] == [2, 1, 2, 1]
    assert not ray.is_initialized()

    def interrupted(job, problem):
        raise KeyboardInterrupt

    jobs = stub_jobs(tmp_path, "work", "sleep")
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, RayCluster(cluster.address, 2, 2), desk.start, interrupted)
    assert not ray.is_initialized()
    assert cluster.head_node.remaining_processes_alive()
