"""What `import recap` offers, as somebody would use it from a notebook."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap


@pytest.fixture
def settings(tiny_folder):
    return recap.resolve_settings(
        encoder={"name": str(tiny_folder), "input_px": 70},
        training={"epochs": 1, "augment": False},
    )


def picture(seed):
    return np.random.default_rng(seed).integers(0, 200, (48, 64), np.uint8)


def lesion(seed):
    image, mask = picture(seed), np.zeros((48, 64), bool)
    mask[10:30, 20:40] = True
    image[mask] = 255
    return image, mask


@pytest.fixture
def folders(tmp_path):
    """Folders normal/, abnormal/ and masks/ with two images each."""
    for name in ("normal", "abnormal", "masks"):
        (tmp_path / name).mkdir()
    for index in range(2):
        image, mask = lesion(10 + index)
        PillowImage.fromarray(picture(index)).save(tmp_path / "normal" / f"{index}.png")
        PillowImage.fromarray(image).save(tmp_path / "abnormal" / f"{index}.png")
        PillowImage.fromarray(mask).save(tmp_path / "masks" / f"{index}_mask.png")
    return tmp_path


def head(detector):
    return {k: v for k, v in detector.model.state_dict().items() if not k.startswith("encoder.")}


def same_numbers(one, two):
    first, second = head(one), head(two)
    return first.keys() == second.keys() and all((first[k] == second[k]).all() for k in first)


def test_import_is_light():
    code = "import sys, recap; print(*({'torch', 'numpy', 'pydantic'} & sys.modules.keys()))"
    call = [sys.executable, "-c", code]
    result = subprocess.run(call, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_every_public_name_is_there_and_documented():
    functions = "fit load score_folder evaluate calibrate explain export read_image"
    classes = "Detector Prediction Case Image Settings RecapError"
    named = f"{functions} resolve_settings {classes} __version__".split()
    assert sorted(recap.__all__) == sorted(named) == dir(recap)
    for name in recap.__all__:
        value = getattr(recap, name)
        assert value is not None
        if name != "__version__":
            assert value.__doc__, f"{name} has no docstring"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        recap.fitt  # noqa: B018


def test_the_readme_example(folders, settings, tmp_path):
    detector = recap.fit(
        normal=f"{folders}/normal/",
        abnormal=f"{folders}/abnormal/",
        masks=f"{folders}/masks/",
        settings=settings,
    )
    prediction = detector.score(f"{folders}/normal/0.png")
    assert isinstance(prediction, recap.Prediction)
    assert 0 <= prediction.score <= 1
    assert prediction.map.shape == (48, 64)
    detector.save(f"{tmp_path}/brain.recap")
    assert recap.load(f"{tmp_path}/brain.recap").score(picture(0)).score == prediction.score


def test_folders_files_and_arrays_make_the_same_detector(folders, settings):
    images, masks = zip(*[lesion(10 + i) for i in range(2)], strict=True)
    from_arrays = recap.fit([picture(0), picture(1)], list(images), list(masks), settings=settings)
    from_folders = recap.fit(
        folders / "normal", folders / "abnormal", folders / "masks", settings=settings
    )
    from_files = recap.fit(
        sorted((folders / "normal").iterdir()),
        [str(path) for path in sorted((folders / "abnormal").iterdir())],
        folders / "masks",
        settings=settings,
    )
    assert same_numbers(from_folders, from_files)
    assert same_numbers(from_folders, from_arrays)
    assert from_folders.card == from_files.card


def test_a_single_normal_image_is_enough(settings):
    detector = recap.fit([picture(0)], settings=settings)
    assert detector.card.mode == "normal-only"
    assert detector.score(lesion(0)[0]).score > detector.score(picture(0)).score


def test_preset_and_seed_without_settings(monkeypatch, tiny_folder):
    from recap.scoring import fit as fitting

    seen = []
    monkeypatch.setattr(
        fitting, "fit_support", lambda support, settings, **rest: seen.append(settings)
    )
    recap.fit([picture(0)])
    assert seen.pop() == recap.resolve_settings("recap", seed=0)
    recap.fit([picture(0)], preset="paper", seed=9)
    assert (seen[0].preset, seen[0].seed, seen[0].model.write_back) == ("paper", 9, True)
    assert seen[0].encoder.name == "dinov2-small"


def test_preset_and_seed_beside_settings_are_refused(settings):
    for given, seen in (({"preset": "fast"}, "preset='fast'"), ({"seed": 0}, "seed=0")):
        with pytest.raises(recap.RecapError, match=f"{seen} beside settings="):
            recap.fit([picture(0)], settings=settings, **given)


def test_progress_tells_every_stage(settings):
    steps = []
    recap.fit(
        [picture(0), picture(1)],
        [lesion(2)[0]],
        settings=settings,
        progress=lambda stage, done, total, detail: steps.append((stage, done, total)),
    )
    encoded = [("encode", 0, 5), ("encode", 5, 5)]  # three images, two lesions made up on normals
    trained = [(stage, done, 1) for stage in ("train", "train_maps") for done in (0, 1)]
    assert steps == encoded + trained


def test_errors_have_one_root(settings, tmp_path):
    for mistake in (
        lambda: recap.fit(tmp_path / "nowhere", settings=settings),
        lambda: recap.load(tmp_path / "nowhere"),
        lambda: recap.resolve_settings("turbo"),
        lambda: recap.read_image(tmp_path / "nowhere.png"),
        lambda: recap.score_folder(tmp_path / "nowhere", tmp_path, tmp_path / "out"),
        lambda: recap.fit([picture(0)], settings=settings, device="banana"),
    ):
        with pytest.raises(recap.RecapError):
            mistake()
