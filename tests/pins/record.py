"""Keeps what the code says now as what it shall go on saying; see CONTRIBUTING.md.

    python tests/pins/record.py [TOPIC …]

Only after `compare.py` has shown that nothing else has changed. Topics: cards, scores, metrics.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare import HERE, inputs_in, leaves, notes_of

RECORDED = HERE / "recorded"
TOPICS = ("cards", "scores", "metrics")
LEFT_OUT = {
    *("path", "versions"),
    # Hashes of numbers whose last digits differ between processors.
    *("sha256", "head_sha256", "mask_sha256", "fingerprint", "files"),
    # Sentences, which may be worded better at any time.
    *("rule", "statement"),
}


def portable(notes: Any) -> Any:
    """What is the same on every machine, but for last digits."""
    if isinstance(notes, dict):
        return {key: portable(value) for key, value in notes.items() if key not in LEFT_OUT}
    if isinstance(notes, list):
        return [portable(value) for value in notes]
    return float(f"{notes:.8g}") if isinstance(notes, float) else notes


def recorded() -> dict[str, Any]:
    """The notes that are kept in the repository."""
    return {
        topic: {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
        for topic in TOPICS
        if (paths := sorted((RECORDED / topic).glob("*.json")))
    }


def write(notes: dict[str, Any]) -> None:
    """Keep notes: a file for every topic and kind of detector, a line for every short list."""
    for topic, kinds in notes.items():
        shutil.rmtree(RECORDED / topic, ignore_errors=True)  # kinds may be gone
        for kind, content in kinds.items():
            path = RECORDED / topic / f"{kind}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_lines(portable(content)) + "\n", encoding="utf-8")


def _lines(tree: Any, indent: str = "") -> str:
    """JSON in few lines: what fits into one stays in one."""
    short = json.dumps(tree, ensure_ascii=False)
    if not isinstance(tree, dict) or len(indent) + len(short) < 96:
        return short
    inner = indent + " "
    entries = (f"{inner}{json.dumps(k)}: {_lines(v, inner)}" for k, v in tree.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def main(*topics: str) -> None:
    """Record what the tree around this file does."""
    with tempfile.TemporaryDirectory() as folder:
        inputs_in(Path(folder))
        notes = notes_of(HERE.parents[1], Path(folder))
    chosen = {topic: notes[topic] for topic in topics or TOPICS}
    write(chosen)
    print(f"Recorded {len(list(leaves(portable(chosen))))} values in {RECORDED}")


if __name__ == "__main__":
    main(*sys.argv[1:])
