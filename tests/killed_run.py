"""A preparation in a process of its own that is killed by SIGKILL after some items."""

import signal
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import importlib, json, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
module, raw, root, after, workers, options = sys.argv[2:]

def progress(stage, done, total, detail):
    if stage == "Preparing" and done == int(after):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    from recap.data.prepare import PrepareOptions, prepare
    source = importlib.import_module(module).SOURCE
    options = PrepareOptions(**json.loads(options))
    prepare(source, Path(raw), Path(root), options, int(workers), progress)
"""


def prepare_and_die(module, raw, root, *, after, workers=1, options="{}"):
    arguments = [Path(__file__).parent, module, raw, root, after, workers, options]
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
