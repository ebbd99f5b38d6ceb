import hashlib
import shutil

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from recap.errors import BundleError, InputError, SettingsError
from recap.scoring.calibrate import calibrate
from recap.scoring.detector import Detector


def picture(seed, lesion=False):
    values = np.random.default_rng(seed).integers(60, 120, (48, 64), np.uint8)
    if lesion:
        values[10:30, 20:40] = 255
    return values


@pytest.fixture(scope="module")
def normals():
    return [picture(seed) for seed in range(100, 125)]


@pytest.fixture(scope="module")
def abnormals():
    return [picture(seed, lesion=True) for seed in range(200, 208)]


@pytest.fixture(scope="module")
def plain(tiny_settings):
    """Fitted on four normal images."""
    return recap.fit([picture(seed) for seed in range(4)], settings=tiny_settings())


@pytest.fixture(scope="module")
def calibrated(plain, normals, abnormals):
    return calibrate(plain, normals, abnormals, fpr=0.1).detector


def test_scores_and_levels_are_those_of_the_images(plain, normals, abnormals, calibrated):
    calibration = calibrated.card.calibration
    predictions = [plain.score(image) for image in normals]
    assert calibration.source == "held-out"
    assert calibration.normal_scores == sorted(p.score for p in predictions)
    assert calibration.abnormal_scores == sorted(plain.score(image).score for image in abnormals)
    maxima = sorted(float(p.map.max()) for p in predictions)
    assert calibration.map_level == np.nextafter(maxima[-2], np.inf)  # 2 / 26 ≤ 0.1
    assert len(calibrated.descriptors) == len(calibrated.card.domain.distances) == 33
    assert plain.card.calibration.source == "leave-one-out"  # untouched
    low, high = calibrated.map_scale
    assert low == plain.map_scale[0]
    assert high == max(plain.card.map_scale[1], calibration.map_level)  # regions stand out


def test_every_prediction_carries_its_decision(calibrated, normals, abnormals):
    calibration = calibrated.card.calibration
    for image in [*normals[:3], *abnormals[:3]]:
        prediction = calibrated.score(image)
        decision = prediction.decision
        assert decision.abnormal == (prediction.score >= calibration.threshold)
        assert decision.p_value == calibration.p_value(prediction.score)
        assert 0 < decision.probability < 1
        assert decision.in_domain
        assert decision.rule == calibration.rule
    batch = calibrated.score_batch(normals[:4], batch_size=3)
    alone = [calibrated.score(image).decision for image in normals[:4]]
    assert [p.decision.abnormal for p in batch] == [d.abnormal for d in alone]


def test_a_saved_detector_decides_alike(calibrated, normals, abnormals, tmp_path):
    calibrated.save(tmp_path / "b")
    loaded = recap.load(tmp_path / "b")
    assert loaded.card == calibrated.card
    assert np.array_equal(loaded.descriptors, calibrated.descriptors)
    for image in [normals[0], abnormals[0]]:
        assert loaded.score(image).decision == calibrated.score(image).decision
    loaded.save(tmp_path / "c")
    for name in ("bundle.json", "head.safetensors"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()


def test_saving_may_carry_other_files_over(calibrated, plain, tmp_path):
    plain.save(tmp_path / "b")
    (tmp_path / "b" / "support").mkdir()
    (tmp_path / "b" / "support" / "0.png").write_bytes(b"thumbnail")
    calibrated.save(tmp_path / "b", keep=tmp_path / "b")
    assert (tmp_path / "b" / "support" / "0.png").read_bytes() == b"thumbnail"
    assert recap.load(tmp_path / "b").card.calibration == calibrated.card.calibration
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_descriptors_that_do_not_fit_the_card(calibrated, plain, tmp_path):
    calibrated.save(tmp_path / "b")
    Detector(calibrated.model, calibrated.card).save(tmp_path / "without")
    card = plain.card.model_copy(update={"domain": None})
    Detector(plain.model, card, calibrated.descriptors).save(tmp_path / "surplus")
    for name in ("without", "surplus"):
        with pytest.raises(BundleError, match=r"domain\.descriptors do not fit"):
            recap.load(tmp_path / name)


def test_support_images_are_refused_by_name(few_shot, domains):
    pool = domains[0].root / "valid" / "good" / "img"
    with pytest.raises(InputError, match=r"was fitted on 3 calibration images \(.*\.png"):
        calibrate(few_shot, pool)


def test_support_arrays_are_refused(plain, normals):
    with pytest.raises(InputError, match="fitted on 1 calibration image "):
        calibrate(plain, [*normals, picture(2)])


def test_an_image_counts_once(plain, normals):
    with pytest.raises(InputError, match=r"array 3 and array 0 are the same image"):
        calibrate(plain, [*normals[:3], normals[0]], fpr=0.5)
    with pytest.raises(InputError, match="are the same image"):
        calibrate(plain, normals, normals[:1])


def test_too_few_images_are_told_before_the_first_is_scored(plain, normals, monkeypatch):
    monkeypatch.setattr(Detector, "raw_output", lambda *a: pytest.fail("scored"))
    with pytest.raises(SettingsError, match=r"With 5 normal images .* 17 % at best, not 5 %"):
        calibrate(plain, normals[:5])


@pytest.mark.parametrize("wrong", [{"decide_by": "f1"}, {"sensitivity": 95.0}])
def test_what_cannot_be_asked_is_told_before_the_first_is_scored(
    plain, normals, monkeypatch, wrong
):
    monkeypatch.setattr(Detector, "raw_output", lambda *a: pytest.fail("scored"))
    with pytest.raises(SettingsError, match=r"needs abnormal images|between 0 and 1, not 95\.0"):
        calibrate(plain, normals, **wrong)


def test_files_that_cannot_be_read_are_left_out_and_named(plain, normals, tmp_path):
    for number, values in enumerate(normals[:4]):
        PillowImage.fromarray(values).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    found = calibrate(plain, tmp_path, fpr=0.2)
    assert list(found.unreadable) == [str(tmp_path / "bad.png")]
    assert len(found.calibration.normal_scores) == 4
    with pytest.raises(InputError, match=r"None of the normal .*bad\.png"):
        calibrate(plain, tmp_path / "bad.png", fpr=0.5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("inside", "wrong"),
    [
        ("abnormal/x.png", r"abnormal/ would count as normal"),
        ("p1/Masks/x.png", r"Masks/ would count as normal"),
        ("0_mask.png", r"0_mask\.png: looks like the mask of 0\.png"),
    ],
)
def test_lesions_and_masks_are_not_normal_images(plain, normals, tmp_path, inside, wrong, packed):
    """They would make the promised rate untrue."""
    folder = tmp_path / "given"
    (folder / inside).parent.mkdir(parents=True)
    for name, values in zip(("0.png", "1.png", "2.png", inside), normals, strict=False):
        PillowImage.fromarray(values).save(folder / name)
    given = shutil.make_archive(str(folder), "zip", folder) if packed else folder
    with pytest.raises(InputError, match=wrong):
        calibrate(plain, [normals_elsewhere(tmp_path, normals), given], fpr=0.2)


def normals_elsewhere(tmp_path, normals):
    """A file in a folder of any name may be given alone."""
    file = tmp_path / "masks" / "9.png"
    file.parent.mkdir()
    PillowImage.fromarray(normals[9]).save(file)
    return file


def test_masks_are_not_abnormal_images(plain, normals, abnormals, tmp_path):
    (tmp_path / "label").mkdir()
    PillowImage.fromarray(abnormals[0]).save(tmp_path / "0.png")
    PillowImage.fromarray(abnormals[1]).save(tmp_path / "label" / "0.png")
    with pytest.raises(InputError, match=r"label/ would count as abnormal"):
        calibrate(plain, normals[:4], tmp_path, fpr=0.2)


def test_files_and_arrays_give_the_same_scores(plain, normals, tmp_path):
    for number, values in enumerate(normals[:4]):
        PillowImage.fromarray(values).save(tmp_path / f"{number}.png")
    files, arrays = (calibrate(plain, g, fpr=0.2) for g in (str(tmp_path), normals[:4]))
    assert files.calibration == arrays.calibration


def test_progress_counts_all_images(plain, normals, abnormals):
    steps = []
    calibrate(plain, normals[:4], abnormals[:2], fpr=0.2, progress=lambda *s: steps.append(s))
    assert [step[1:3] for step in steps] == [(n, 6) for n in range(7)]


def test_volumes_are_calibrated_as_volumes(plain, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    rng = np.random.default_rng(0)
    for number in range(3):
        values = rng.integers(0, 255, (20, 24, 3), np.uint8)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / f"{number}.nii.gz")
    found = calibrate(plain, tmp_path, fpr=0.3)
    assert found.calibration.kind == "volume"
    case = found.detector.score_case(tmp_path / "0.nii.gz")
    assert case.decision.p_value == found.calibration.p_value(case.score)
    assert found.detector.score(picture(0)).decision is None
    assert "calibrated on volumes" in found.detector.undecided("image")
    image_wise = plain.score_case(tmp_path / "0.nii.gz")
    assert image_wise.decision is None
    known = found.detector.card.domain
    assert (known.kind, len(known.distances), len(found.detector.descriptors)) == ("volume", 3, 9)
    assert case.domain.in_domain
    assert case.domain.p_value == case.decision.domain_p_value == 1.0


def test_several_kinds_are_refused_by_name_before_all_is_scored(plain, tmp_path, monkeypatch):
    nibabel = pytest.importorskip("nibabel")
    values = np.random.default_rng(0).integers(0, 255, (20, 24, 3), np.uint8)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "b.nii.gz")
    for name in ("a", "c", "d"):
        PillowImage.fromarray(picture(ord(name))).save(tmp_path / f"{name}.png")
    scored = []

    original = Detector.raw_output

    def counted(detector, images):
        scored.extend(image.source for image in images)
        return original(detector, images)

    monkeypatch.setattr(Detector, "raw_output", counted)
    with pytest.raises(InputError, match=r"a\.png \(image\) and \S*b\.nii\.gz \(volume\)"):
        calibrate(plain, tmp_path, fpr=0.3)
    assert scored == [str(tmp_path / "a.png")]


def test_other_methods_are_calibrated_without_a_guard(plain, normals, monkeypatch):
    """They give no descriptors."""
    from dataclasses import replace

    original = Detector.raw_output
    monkeypatch.setattr(Detector, "raw_output", lambda *a: replace(original(*a), descriptor=None))
    found = calibrate(plain, normals[:4], fpr=0.2)
    assert found.detector.card.domain is None
    assert found.detector.descriptors is None
    assert found.detector.score(normals[0]).decision.domain_p_value is None


def test_the_digest_of_an_array_is_that_of_its_support_record(plain):
    image = recap.io.image_from_array(picture(0)).pixels
    digest = hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()
    assert digest == plain.card.support[0]["sha256"]


def test_images_may_come_one_by_one(plain, normals):
    one_by_one = recap.calibrate(plain, (image for image in normals[:4]), fpr=0.3)
    assert one_by_one.calibration == calibrate(plain, normals[:4], fpr=0.3).calibration
    with pytest.raises(recap.RecapError, match="list of calibration images is empty"):
        recap.calibrate(plain, iter([]))
    with pytest.raises(recap.RecapError, match="is one image, not a stack"):
        recap.calibrate(plain, np.zeros((70, 70, 3), np.uint8))
