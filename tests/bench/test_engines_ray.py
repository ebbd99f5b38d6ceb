"""What is asked of a Ray cluster; `tests/cli/test_ray_cluster.py` runs one."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from recap import _cluster
from recap._cluster import RayCluster, Share, machine_count, share_of_cluster
from recap.bench.cells import plan_cells
from recap.bench.run import run_cells
from recap.data import write_phantoms
from recap.errors import InputError, RecapError
from recap.methods.registry import resolve_settings

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: extra `ray`")


class FakeRay:
    """A cluster of machines with so many processors (and GPUs)."""

    def __init__(self, *machines):
        self.machines = machines

    def nodes(self):
        dead = {"Alive": False, "Resources": {"CPU": 64.0}}
        return [{"Alive": True, "Resources": machine} for machine in self.machines] + [dead]

    def shutdown(self):
        pass


@pytest.mark.parametrize(
    ("machines", "workers", "share"),
    [
        ([{"CPU": 8.0}], 2, Share(4, 0, 2)),
        ([{"CPU": 8.0}], 3, Share(2, 0, 3)),
        ([{"CPU": 4.0}, {"CPU": 2.0}], 2, Share(2, 0, 2)),
        ([{"CPU": 4.0}, {"CPU": 4.0}], 1, Share(4, 0, 1)),
        ([{"CPU": 2.0}], 5, Share(1, 0, 2)),
        ([{"CPU": 8.0, "GPU": 2.0}], 2, Share(4, 1, 2)),
        ([{"CPU": 8.0, "GPU": 2.0}], 4, Share(2, 0.5, 4)),
        ([{}], 2, Share(1, 0, 1)),
    ],
)
def test_cells_share_the_machines(machines, workers, share):
    assert share_of_cluster(FakeRay(*machines), workers) == share


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({"ray_address": "head:6379"}, 2),
        ({"ray_address": "head:6379", "jobs": 3}, 3),
        ({}, 1),
    ],
)
def test_a_cluster_with_an_address_is_filled_unless_jobs_says_otherwise(
    grid, tmp_path, monkeypatch, options, slots
):
    shares = []
    cluster = FakeRay({"CPU": 4.0}, {"CPU": 4.0})
    monkeypatch.setattr(_cluster, "connect", lambda *_: cluster)
    monkeypatch.setattr("recap.bench.run.run_jobs", lambda todo, engine, *_: shares.append(engine))
    run_cells(*grid, tmp_path / "runs", engine="ray", **options)
    assert [engine.slots for engine in shares] == [slots]


def test_gpus_count_before_machines():
    assert machine_count(FakeRay({"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0})) == 3
    assert machine_count(FakeRay({"CPU": 8.0}, {"CPU": 8.0})) == 2


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RecapError, match=r"recap-ad\[ray\]"):
        RayCluster(None, 1, 1)


def test_ray_is_not_imported_unless_asked_for():
    modules = "recap._cluster, recap.bench.run, recap.cli.main"
    code = f"import sys, {modules}; print('ray' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.fixture
def grid(tiny_folder, tmp_path):
    """Two data sets, few-shot and zero-shot."""
    domains = write_phantoms(
        tmp_path / "data", pool=2, test=2, size_px=70, domains=["Brain", "Chest"]
    )
    encoder = {"name": str(tiny_folder), "input_px": 70}
    settings = resolve_settings(encoder=encoder, training={"epochs": 1, "augment": False})
    return plan_cells(dict.fromkeys(["recap"], settings), ["Brain", "Chest"], [0, 2], [0]), domains


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:9", "127.0.0.1", "ray://127.0.0.1:9", "head:99999"])
def test_an_address_without_a_cluster_is_told_at_once(address):
    with pytest.raises(InputError, match=f"--ray-address {address}: no Ray cluster answers"):
        RayCluster(address, 1, 1)
