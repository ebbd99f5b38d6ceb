"""A tiny random encoder, in memory and on disk, and a browser: what tests of many folders need."""

import gc
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from recap._process import collect_seldom
from recap.encoders._cache import cache_dir

TINY_PX = 70  # a grid of 5 × 5 patches of 14 px

# Tiny tensors gain nothing from threads, and threads that wait for a busy core cost tenfold.
# Set before torch is imported; a value from outside stands.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's workers step back for all others, and would wait until the other tests are done.
os.environ.setdefault("RAY_worker_niceness", "0")


# `make test-fast` tries fewer examples of each property than `make test`.
# No deadlines: a machine that does other things meanwhile would fail a test.
hypothesis.settings.register_profile("default", max_examples=60, deadline=None)
hypothesis.settings.register_profile("quick", max_examples=20, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# What these folders share is dear to make, a service or an exported graph: one process takes each.
MADE_ONCE = {"e2e", "runtime"}
# Tests of these folders fit detectors, run commands or start services: many are quick, but there
# are hundreds. What is left for `make test-fast` are the tests of single functions.
WHOLE_PROGRAMS = {
    *("bench", "cli", "methods", "pacs", "pins", "report"),
    *("results", "runtime", "scoring", "service"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: a third of the time tests wait, for services and clusters."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but for the folders that stay together."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            folder = Path(file).parent
            return folder.as_posix() if folder.name in MADE_ONCE else file

    return Scheduler(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: no garbage is looked for in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        collect_seldom()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that none of it is left to one process at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda i: (i.path.parent.name not in MADE_ONCE, i.path not in slow))
    for item in items:
        if item.path.parent.name in WHOLE_PROGRAMS:
            item.add_marker("slow")


def tiny_model(blocks: int) -> Any:
    """A random DINOv2: width 32, 2 heads."""
    import torch
    import transformers

    config = transformers.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=blocks,
        num_attention_heads=2,
        intermediate_size=64,
        patch_size=14,
        image_size=TINY_PX,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.Dinov2Model(config).eval()
        for parameter in model.parameters():  # zero-initialised tokens would hide mistakes
            if parameter.abs().max() == 0:
                torch.nn.init.normal_(parameter, std=0.02)
    return model


@pytest.fixture(scope="session")
def tiny_encoder() -> Any:
    """A tiny model as a frozen encoder at 70 px; shared, so never to be changed in place.

    There is a block between each two of its layers.
    """
    from recap.encoders.vit import Encoder

    return Encoder(tiny_model(8), name="tiny", checksum="tiny", input_px=TINY_PX)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny model as a folder that `encoder.name` may point at (with `encoder.input_px=70`).

    Hundreds of detectors are fitted on it: every one of its blocks is a layer.
    """
    folder = tmp_path_factory.mktemp("tiny") / "encoder"
    tiny_model(4).save_pretrained(folder, safe_serialization=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECAP_CACHE", str(_cache_without_digests(tmp_path_factory.mktemp("cache"))))
        yield folder


def _cache_without_digests(cache: Path) -> Path:
    """The user's cache as seen through links: what tests note about files stays out of it."""
    own = cache_dir()
    for entry in own.iterdir() if own.is_dir() else ():
        if entry.name != "digests":
            (cache / entry.name).symlink_to(entry)
    return cache


# Debian's shell draws the same pages without the windows around them, which take their time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")


# Per file: a Playwright that stays open would keep other files of the same process from one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"needs a browser (Debian: apt install {BROWSERS[0]})")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
