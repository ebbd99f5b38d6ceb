"""How torch's threads wait: passively, unless the user says otherwise, in every process."""

import json
import os
import subprocess
import sys

import pytest

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SEEN_BY_TORCH = f"""
import json, os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(json.dumps([os.environ.get(n) for n in {NAMES!r}]))
            sys.meta_path.remove(self)

sys.meta_path.insert(0, Watch())
"""
START = {
    "command": "from recap.cli.main import app\napp(['info'], standalone_mode=False)",
    "package": "import recap\nrecap.fit",
    "worker": "import recap._process\nfrom recap.encoders import vit",
}


def environment(**given):
    kept = {name: value for name, value in os.environ.items() if name not in NAMES}
    return {**kept, **given}


def run(code, **given):
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(**given), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", START)
def test_threads_wait_passively_before_torch_is_loaded(way):
    policy, spins, blocktime = json.loads(run(SEEN_BY_TORCH + START[way]).splitlines()[0])
    assert policy == "PASSIVE"
    assert int(spins) <= 10_000  # by default 300,000: several milliseconds of nothing
    assert blocktime == "0"


@pytest.mark.parametrize(
    "given", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}, {"KMP_BLOCKTIME": "7"}]
)
def test_what_the_user_said_stays_and_nothing_is_added(given):
    assert json.loads(run(SEEN_BY_TORCH + START["package"], **given).splitlines()[0]) == [
        given.get(name) for name in NAMES
    ]


def test_a_worker_process_waits_as_its_parent_does():
    code = (
        "import os\nfrom recap._process import process_pool\n"
        "if __name__ == '__main__':\n"
        "    with process_pool(1, 'recap.errors') as pool:\n"
        "        print(pool.submit(os.getenv, 'OMP_WAIT_POLICY').result())\n"
    )
    assert run(code).split() == ["PASSIVE"]
