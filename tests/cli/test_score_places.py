"""Where `recap score` looks for images, and where it refuses to put results."""

import shutil

import pytest


@pytest.fixture
def images(domains, tmp_path):
    """A folder of two images that a test may add to."""
    return shutil.copytree(domains[0].root / "test" / "good" / "img", tmp_path / "images")


def test_results_below_the_images_are_not_scored(command, bundle, images):
    score = ["score", bundle, images, "--out", images / "results"]
    first = command(*score).out
    assert first.startswith("Scored 2 of 2 cases")
    assert command(*score).out == first


def test_results_of_several_detectors_below_the_images(command, bundle, images, tmp_path):
    twin = shutil.copytree(bundle, tmp_path / "twin.recap")
    score = ["score", bundle, twin, images, "--out", images]
    first = command(*score).out
    assert first.count("Scored 2 of 2 cases") == 2
    assert command(*score).out == first


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
