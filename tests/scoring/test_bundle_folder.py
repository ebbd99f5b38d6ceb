"""Bundles come from strangers: nothing in them may lead elsewhere, hang, or end in a traceback."""

import ast
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import recap
from recap.errors import BundleError
from recap.scoring.bundle import read_card
from recap.scoring.bundle_folder import Bundle

SOURCES = Path(recap.__file__).parent
CARD, HEAD = "bundle.json", "head.safetensors"


class HangsError(BaseException):
    """Raised out of what would take for ever; no `except Exception` holds it."""


@pytest.fixture(autouse=True)
def _in_time():
    def stop(*_):
        raise HangsError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def bundle(few_shot, tmp_path):
    few_shot.save(tmp_path / "brain.recap", thumbnails={0: b"a small picture"})
    return tmp_path / "brain.recap"


def link_to(target):
    def plant(path):
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return plant


def link_to_itself_outside(path):
    path.rename(path.parents[1] / "moved")
    path.symlink_to(path.parents[1] / "moved")


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path):
    path.unlink(missing_ok=True)
    path.mkdir()


def enormous(path):
    with path.open("r+b") as file:
        file.truncate(2**40)


PLANTED = [link_to("/dev/zero"), link_to_itself_outside, pipe, folder, enormous]
NAMES = ["device", "link", "pipe", "folder", "enormous"]


@pytest.mark.parametrize("plant", PLANTED, ids=NAMES)
@pytest.mark.parametrize("file", [CARD, HEAD])
def test_what_is_no_plain_file_is_refused(plant, file, bundle):
    plant(bundle / file)
    with pytest.raises(BundleError, match=str(bundle / file)):
        recap.load(bundle)


@pytest.mark.parametrize("plant", PLANTED, ids=NAMES)
def test_pictures_of_support_images_are_plain_files(plant, bundle):
    assert Bundle(bundle).thumbnail(0) == b"a small picture"
    assert Bundle(bundle).thumbnail(1) is None
    plant(bundle / "support" / "000000.png")
    with pytest.raises(BundleError, match=r"support/000000\.png"):
        Bundle(bundle).thumbnail(0)


def test_no_folder_on_the_way_is_a_link(bundle):
    (bundle / "support").rename(bundle.parent / "elsewhere")
    (bundle / "support").symlink_to(bundle.parent / "elsewhere")
    with pytest.raises(BundleError, match="support is a link"):
        Bundle(bundle).thumbnail(0)
    with pytest.raises(BundleError, match="support is a link"):
        Bundle(bundle).files()


@pytest.mark.parametrize("name", ["../secret", "support/../../secret", "/etc/passwd", "", "."])
def test_names_stay_in_the_bundle(name, bundle):
    (bundle.parent / "secret").write_text("of the host")
    with pytest.raises(BundleError, match="no file of a bundle"):
        Bundle(bundle).read(name)


def test_the_way_to_a_bundle_may_have_links(bundle, few_shot, tmp_path, pictures):
    (tmp_path / "current").symlink_to(bundle)
    expected = few_shot.score(pictures[0]).score
    assert recap.load(tmp_path / "current").score(pictures[0]).score == expected


@pytest.mark.parametrize("place", ["within", "beside"])
def test_an_encoder_that_came_with_a_bundle_is_no_trap(
    place, bundle, tiny_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    encoder = Path("brain.recap/encoder" if place == "within" else "beside/encoder")
    shutil.copytree(tiny_folder, encoder)
    settings = json.loads((bundle / CARD).read_text())["settings"]
    settings["encoder"]["name"] = str(encoder)
    change_card(bundle, settings=settings)
    if place == "beside":
        recap.load("brain.recap")
    pipe(encoder / "config.json")
    with pytest.raises(BundleError, match="encoder"):
        recap.load("brain.recap")


def change_card(bundle, **values):
    path = bundle / CARD
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(bundle, change):
    tensors = load_file(bundle / HEAD)
    change(tensors)
    save_file(tensors, bundle / HEAD)
    change_card(bundle, head_sha256=None)


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_card_that_is_nested_deeply(depth, bundle):
    card = json.loads((bundle / CARD).read_text()) | {"preprocessing": {"mean": "HERE"}}
    nested = json.dumps(card).replace('"HERE"', "[" * depth + "]" * depth)
    (bundle / CARD).write_text(nested)
    with pytest.raises(BundleError, match=r"bundle\.json is damaged \(nested too deep"):
        read_card(bundle)


@pytest.mark.parametrize("record", [{}, {"name": 3, "label": "normal", "sha256": "0"}])
def test_a_card_names_every_support_image(record, bundle):
    change_card(bundle, support=[record])
    with pytest.raises(BundleError, match="image 0 has no name"):
        read_card(bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.update({k: v.to(torch.int8) for k, v in t.items()}),
        lambda t: t.update({"sources.memory.rows": t["sources.memory.rows"].to(torch.int8)}),
        lambda t: t.update({"sources.memory.rows": torch.ones(3)}),
        lambda t: t.update({"sources.memory.rows": t["sources.memory.rows"][..., :5].contiguous()}),
        lambda t: t.update(
            {"sources.memory.rows": t["sources.memory.rows"][:, :, :0].contiguous()}
        ),
        lambda t: t.update({"sources.memory.normal": torch.ones(2, 9)}),
    ],
    ids=["int8", "int8 memory", "no memory", "narrow memory", "empty memory", "wrong statistics"],
)
def test_numbers_that_do_not_fit_each_other(change, bundle):
    change_tensors(bundle, change)
    with pytest.raises(BundleError, match=rf"{HEAD}.*Copy the bundle again"):
        recap.load(bundle)


@pytest.mark.parametrize("length", [2**62, 50_000_000])
def test_a_header_that_is_too_large(length, bundle):
    (bundle / HEAD).write_bytes(length.to_bytes(8, "little") + b"[" * min(length, 50_000_000))
    with pytest.raises(BundleError, match=rf"{HEAD} is missing or damaged"):
        recap.load(bundle)


@pytest.mark.parametrize("plant", [link_to("/etc/passwd"), pipe], ids=["link", "pipe"])
def test_saving_follows_no_link(plant, bundle, few_shot, tmp_path):
    plant(bundle / "notes.txt")
    with pytest.raises(BundleError, match=r"notes\.txt is a "):
        few_shot.save(tmp_path / "copy.recap", keep=bundle)
    assert not (tmp_path / "copy.recap").exists()


def test_folders_within_folders_end(bundle):
    deep = bundle.joinpath(*["deeper"] * 50)
    deep.mkdir(parents=True)
    with pytest.raises(BundleError, match="too deep"):
        Bundle(bundle).files()


def test_nothing_else_opens_what_lies_in_a_bundle():
    """A bundle is no path, and the names of its files stand in one place (and where searches for
    pictures leave detectors out)."""
    assert not isinstance(Bundle("x"), os.PathLike)
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in (CARD, HEAD):
                found.add(path.relative_to(SOURCES).as_posix())
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                words = ast.unparse(node.left).lower().replace(".", " ").split()
                assert "bundle" not in words, f"{path}:{node.lineno}"
    assert found == {"scoring/bundle_folder.py", "data/folder.py"}
