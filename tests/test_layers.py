"""Keeps the layout: imports point one way, start-up stays light, files stay small."""

import ast
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "recap"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A layer may import itself and what stands before it.
LAYERS = [
    "errors",
    "progress",
    "_files",
    "_process",
    "_cluster",
    "_archive",
    "_download",
    "threads",
    "pipeline",
    "types",
    "config",
    "io",
    "data",
    "encoders",
    "metrics",
    "methods",
    "scoring",
    "results",
    "report",
    "testing",
    "demo",
    "runtime",
    "score_request",
    "api",
    "bench",
    "service",
    "cli",
]
ENTRY_POINTS = {"__init__", "__main__"}
HEAVY = {"torch", "transformers", "matplotlib", "onnx", "nrrd"}
LINE_LIMIT = 430
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def dotted(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts)


def layer_of(module):
    """The second part of recap.<layer>.…; the package itself has none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def imported_modules(source, module):
    """Every module a file imports, at any depth, with relative imports resolved."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names if origin == "recap")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant))


def violations(source, module):
    """Imports of a later layer, as readable lines."""
    own = layer_of(module)
    if own not in LAYERS:  # an entry point, or a stray that the test below names
        return []
    wrong = []
    for name in imported_modules(source, module):
        layer = layer_of(name) if name.split(".")[0] == "recap" else None
        if layer in LAYERS and LAYERS.index(layer) > LAYERS.index(own):
            wrong.append(f"{module} imports {name}: {own} stands before {layer}")
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=dotted)
def test_imports_point_one_way(path):
    assert violations(path.read_text(encoding="utf-8"), dotted(path)) == []


def test_every_file_belongs_to_a_layer():
    strays = {layer_of(dotted(path)) for path in SOURCES} - set(LAYERS) - ENTRY_POINTS
    assert strays == set(), "put the file into a layer, or add its layer to LAYERS in order"


@pytest.mark.parametrize(
    ("source", "module", "wrong"),
    [
        ("import recap.cli.main", "recap.methods.base", 1),
        ("def f():\n    from recap.report import html", "recap.scoring.detector", 1),
        ("from recap import methods", "recap.types", 1),
        ("from ..scoring import detector", "recap.data.folder", 1),
        ("from .. import scoring", "recap.data.__init__", 1),
        ("importlib.import_module('recap.cli.main')", "recap.io.raster", 1),
        ("from .folder import scan\nfrom ..types import Image", "recap.data.supports", 0),
        ("import torch\nfrom recap.errors import InputError", "recap.methods.base", 0),
        ("from recap import __version__", "recap.types", 0),
        ("import recap.cli.main", "recap.__init__", 0),
    ],
)
def test_the_walk_sees_every_kind_of_import(source, module, wrong):
    assert len(violations(source, module)) == wrong


@pytest.mark.parametrize("module", ["recap", "recap.cli.main"])
def test_start_up_is_light(module):
    if module != "recap" and find_spec(module) is None:
        pytest.skip(f"{module} does not exist")
    code = f"import sys, {module}; print(*({HEAVY!r} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [], f"import {module} loads a heavy package"


def test_files_are_small_and_named_for_what_they_hold():
    files = [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {path.name: n for path, n in counts.items() if n > LINE_LIMIT} == {}
    assert [path.name for path in files if path.stem in EMPTY_NAMES] == []


def tracked_files():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    run = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if run.returncode:
        pytest.skip(f"git cannot list the files: {run.stderr.strip()}")
    return [ROOT / name for name in run.stdout.split("\0") if name]


def test_tracked_files_name_no_local_folder():
    # Put together here, so that this file does not find itself.
    local = b"/" + b"work" + b"/"
    files = [path for path in tracked_files() if path.is_file()]
    assert [str(path.relative_to(ROOT)) for path in files if local in path.read_bytes()] == []
