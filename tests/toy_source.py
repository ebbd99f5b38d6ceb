"""A raw source of text files, to try the engine of `recap data prepare` with."""

import hashlib
import os
import time
from functools import partial

from recap.data.prepare import Item, Output, Plan, Probe, Source


def toy(plan):
    return Source("toy", "Toy", "A folder of text files.", "  1.txt …", plan)


def write_numbers(raw, count=6):
    """1.txt … n.txt, each with its number."""
    raw.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        (raw / f"{number}.txt").write_text(str(number))
    return raw


def plan(raw, options):
    """Two files out of each text; `log.d` beside the raw folder counts the work done."""
    return Plan(tuple(item(path, raw.parent / "log.d") for path in texts(raw, options)))


def plan_odd(raw, options):
    """Only texts with an odd number, which is known after a look."""
    paths = texts(raw, options)
    probes = tuple(Probe(path.stem, (path,), partial(look, path)) for path in paths)

    def choose(facts):
        return Plan(tuple(item(p, raw.parent / "log.d") for p in paths if facts.get(p.stem)))

    return Plan(probes=probes, choose=choose, caveats=("odd only",))


def texts(raw, options):
    return sorted(raw.glob("*.txt"))[: options.limit]


def item(path, log):
    return Item(path.stem, (path,), partial(work, path, log.name))


def look(path):
    return int(path.read_text()) % 2 == 1


def work(path, log):
    text = path.read_text()
    if text == "die":
        os._exit(9)
    if text == "import":
        raise ImportError("a broken installation")
    if text == "slow":
        time.sleep(0.1)
    yield Output(f"test/good/img/{path.stem}.png", text.encode() * 100)
    if text == "half":
        raise ValueError("cannot go on")
    folder = path.parent.parent / log
    folder.mkdir(exist_ok=True)
    (folder / f"{path.stem}-{os.getpid()}-{time.monotonic_ns()}").touch()
    yield Output(f"valid/Ungood/img/{path.stem}.png", text.encode())


def worked(raw):
    """How often each text was worked on, and by which processes."""
    names = [path.name.split("-") for path in (raw.parent / "log.d").glob("*")]
    return sorted(name for name, _, _ in names), {int(pid) for _, pid, _ in names}


def tree(folder):
    """Every file below a folder and its hash."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


SOURCE = toy(plan)
ODD = toy(plan_odd)
