"""Where `recap score` looks for images, and where it refuses to put results."""

import json
import shutil

import pytest
from PIL import Image as PillowImage

from recap.data.cases import Found
from recap.errors import InputError
from recap.results.folder import check_results_not_lost, digest_of
from recap.results.table import Row, write_rows


@pytest.fixture
def images(domains, tmp_path):
    """A folder of two images that a test may add to."""
    return shutil.copytree(domains[0].root / "test" / "good" / "img", tmp_path / "images")


def test_results_below_the_images_are_not_scored(command, bundle, images):
    score = ["score", bundle, images, "--out", images / "results"]
    first = command(*score).out
    assert first.startswith("Scored 2 of 2 cases")
    assert command(*score).out == first


def test_earlier_results_and_detectors_below_the_images_are_not_scored(
    command, bundle, images, tmp_path
):
    shutil.copytree(bundle, images / "own.recap")
    command("score", bundle, images, "--out", images / "monday")
    result = command("score", bundle, images, "--out", tmp_path / "tuesday")
    assert result.out.startswith("Scored 2 of 2 cases")
    manifest = json.loads((tmp_path / "tuesday" / "manifest.json").read_text())
    assert set(manifest["left_alone"]) == {str(images / "monday"), str(images / "own.recap")}
    assert "Left alone: 2 folders (" in result.err
    (images / "notes.txt").write_text("of no case")
    result = command("score", bundle, images, "--out", tmp_path / "tuesday")
    assert "Left alone: 2 folders and 1 other file (" in result.err


def test_ignore_masks_below_the_images_are_not_scored(command, bundle, images, tmp_path):
    names = [image.name for image in images.iterdir()]
    (images / "ignore").mkdir()
    for name in names:
        PillowImage.new("L", (70, 70), 255).save(images / "ignore" / name)
    out = ["--out", tmp_path / "out", "--ignore", images / "ignore"]
    assert command("score", bundle, images, *out).out.startswith("Scored 2 of 2 cases")


def test_results_of_several_detectors_below_the_images(command, bundle, images, tmp_path):
    twin = shutil.copytree(bundle, tmp_path / "twin.recap")
    score = ["score", bundle, twin, images, "--out", images]
    first = command(*score).out
    assert first.count("Scored 2 of 2 cases") == 2
    assert command(*score).out == first


def test_results_of_another_detector_are_refused_before_any_is_scored(
    command, bundle, images, tmp_path
):
    """Detectors are scored with one after the other."""
    twin, out = shutil.copytree(bundle, tmp_path / "twin.recap"), tmp_path / "out"
    assert command("score", twin, images, "--out", out / "twin").code == 0
    manifest = json.loads((out / "twin" / "manifest.json").read_text())
    manifest["bundle"]["fingerprint"] = "another"
    (out / "twin" / "manifest.json").write_text(json.dumps(manifest))
    result = command("score", bundle, twin, images, "--out", out)
    assert result.code == 2
    assert "twin holds the results of another detector" in result.err
    assert not (out / "brain").exists()


def test_results_among_the_images_are_refused(command, bundle, images):
    before = sorted(images.iterdir())
    result = command("score", bundle, images, "--out", images / "sub" / "..")
    assert result.code == 2
    assert "is also what to score" in result.err
    assert sorted(images.iterdir()) == before


@pytest.mark.parametrize("inside", [".", "results", "a/b"])
def test_results_within_a_detector_are_refused(inside, command, bundle, images, tmp_path):
    own = shutil.copytree(bundle, tmp_path / "own.recap")
    before = sorted(own.rglob("*"))
    result = command("score", bundle, images, "--out", own / inside)
    assert result.code == 2
    assert "lies in the detector" in result.err
    assert "Choose another --out" in result.err
    assert sorted(own.rglob("*")) == before


def test_the_folder_of_a_detector_may_be_one_of_them(command, bundle, images, tmp_path):
    """Results go to OUT/NAME, which may be where a detector of that name lies."""
    one, two = (shutil.copytree(bundle, tmp_path / name) for name in ("one", "two.recap"))
    result = command("score", one, two, images, "--out", tmp_path)
    assert result.code == 2
    assert f"--out {one} lies in the detector" in result.err


def test_results_of_other_files_are_not_lost(tmp_path):
    def found(folder, *names):
        files = {name: tmp_path / folder / name for name in names}
        for file in files.values():
            file.parent.mkdir(exist_ok=True)
            file.write_text(str(file))
        return [Found(name, (file,)) for name, file in files.items()]

    out, monday = tmp_path / "out", found("monday", "1.png", "2.png")
    check_results_not_lost(out, monday, [tmp_path / "monday"])  # nothing is there yet
    done = [Row(c.name, c.path, digest_of(c.files), "ok") for c in monday]
    write_rows(out / "scores.csv", done)
    for names in (["1.png", "2.png"], ["3.png"]):
        tuesday = found("tuesday", *names)
        with pytest.raises(InputError, match=r"holds results of other files, such as .*monday/1"):
            check_results_not_lost(out, tuesday, [tmp_path / "tuesday"])
    # More files and fewer of the same folder go on, and so does the folder elsewhere.
    check_results_not_lost(out, found("monday", "1.png", "3.png"), [tmp_path / "monday"])
    (tmp_path / "monday").rename(tmp_path / "moved")
    moved = [Found(name, (tmp_path / "moved" / name,)) for name in ("1.png", "2.png")]
    check_results_not_lost(out, moved, [tmp_path / "moved"])
