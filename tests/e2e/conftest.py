"""A real service in its own process, and a real browser that looks at it.

Whatever a page logs as an error, throws or fails to load fails the test that opened it.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")
pytest.importorskip("playwright", reason="needs playwright, to drive a browser")

import numpy as np
from PIL import Image as Pillow
from playwright.sync_api import Browser, BrowserContext, Page, expect

import recap
from recap.data import write_phantoms
from recap.data.benchmark import Domain
from recap.scoring.calibrate import calibrate

TOKEN = "only-for-the-tests-of-the-viewer"
# Scoring and fitting are quick; a machine that does other things meanwhile is not.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
# What a progress bar says is gone before a test can look: the page keeps it.
_KEEP_LABELS = """
window.labels = [];
new MutationObserver(() => {
  const label = document.querySelector(".progress-label");
  if (label && window.labels.at(-1) !== label.textContent) window.labels.push(label.textContent);
}).observe(document, { subtree: true, childList: true, characterData: true });
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Domain:
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=8, test=3, size_px=96, domains=["Brain"])[0]


@pytest.fixture(scope="session")
def pictures(domain: Domain) -> dict[str, list[Path]]:
    """Phantom pictures: those fitted on, and others, by their label."""
    found = {}
    for split in ("valid", "test"):
        for label, folder in (("normal", "good"), ("abnormal", "Ungood")):
            found[f"{split}-{label}"] = sorted((domain.root / split / folder / "img").iterdir())
    return found


@pytest.fixture(scope="session")
def bundles(
    tmp_path_factory: pytest.TempPathFactory, pictures: dict[str, list[Path]], tiny_folder: Path
) -> list[Path]:
    """`brain` is calibrated on images held out; `normals` estimates from its support set."""
    root = tmp_path_factory.mktemp("bundles")
    settings = recap.resolve_settings(
        encoder={"name": str(tiny_folder), "input_px": 70},
        training={"epochs": 1, "augment": False},
    )
    normal, abnormal = pictures["valid-normal"], pictures["valid-abnormal"]
    brain = recap.fit(normal[:3], abnormal[:3], settings=settings)
    calibrate(brain, normal[3:], abnormal[3:], fpr=0.2).detector.save(root / "brain.recap")
    recap.fit(normal[:3], settings=settings).save(root / "normals.recap")
    return [root / "brain.recap", root / "normals.recap"]


class Service:
    """The running service, asked past the browser."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> Any:
        """The answer of the API: JSON, or bytes for pictures and maps."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with urlopen(Request(f"{self.address}/api/v1/{path}", headers=headers)) as answer:
            body = answer.read()
        return json.loads(body) if "json" in answer.headers["Content-Type"] else body

    def map(self, job: str, case: int, number: int, size_hw: tuple[int, int]) -> np.ndarray:
        """A map's values."""
        raw = self.get(f"jobs/{job}/cases/{case}/map/{number}.f32")
        return np.frombuffer(raw, "<f4").reshape(size_hw)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, bundles: list[Path]) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "recap", "serve", *map(str, bundles), "--port", "0"]
    command += ["--data", str(folder / "data"), "--token-file", str(folder / "token")]
    log = folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stderr=stream, cwd=folder)
    try:
        yield Service(_address(process, log))
    finally:
        process.terminate()
        process.wait(30)


def _address(process: "subprocess.Popen[bytes]", log: Path, seconds: float = 180) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text()
        if "startup complete" in text:
            return re.findall(r"http://[\w.:]+", text)[0]
        time.sleep(0.1)
    raise AssertionError(f"The service did not start:\n{log.read_text()}")


def watched(context: BrowserContext) -> tuple[Page, list[str]]:
    """A page, and all that goes wrong on it."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.add_init_script(_KEEP_LABELS)
    wrong: list[str] = []
    page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(_failure(request)))
    page.on("response", lambda answer: answer.status >= 400 and wrong.append(answer.url))
    return page, wrong


def _failure(request: Any) -> str:
    # Events are left as soon as their job has ended, pictures of slices that are scrolled past.
    return "" if request.failure == "net::ERR_ABORTED" else f"{request.url} {request.failure}"


@pytest.fixture(scope="module")
def session(browser: Browser, service: Service) -> Any:
    """The cookie of a browser that gave the token, after it gave a wrong one."""
    context = browser.new_context()
    page, wrong = watched(context)
    page.goto(service.address)
    page.get_by_role("textbox", name="Token").fill("certainly-not-the-token")
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("This token is not right.").wait_for()
    assert all("401" in text or text.endswith("/session") for text in wrong), wrong
    page.get_by_role("textbox", name="Token").fill(TOKEN)
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("heading", name="Score").wait_for()
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def expected_errors() -> list[str]:
    """Parts of texts that a test provokes; everything else that goes wrong fails it."""
    return []


@pytest.fixture
def page(
    browser: Browser, service: Service, session: Any, expected_errors: list[str]
) -> Iterator[Page]:
    context = browser.new_context(
        storage_state=session, base_url=service.address, viewport={"width": 1280, "height": 800}
    )
    page, wrong = watched(context)
    page.goto("/")
    yield page
    context.close()
    left = [text for text in wrong if text and not any(part in text for part in expected_errors)]
    assert not left, left


@pytest.fixture
def mixed_picture(tmp_path: Path) -> Path:
    """A grey picture with some contrast everywhere, wider than high."""
    ramp = np.linspace(0, 255, 120)[None] * np.linspace(0.2, 1, 80)[:, None]
    noise = np.random.default_rng(0).normal(0, 20, (80, 120))
    path = tmp_path / "mixed <b>picture.png"
    Pillow.fromarray(np.clip(ramp + noise, 0, 255).astype(np.uint8)).save(path)
    return path
