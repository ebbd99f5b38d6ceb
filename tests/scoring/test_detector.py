import json
import shutil

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from recap.config import ReadingSettings
from recap.errors import BundleError
from recap.scoring.detector import Detector, as_image

KINDS = ["few-shot", "write-back", "normal-only", "zero-shot", "static", "shared anchors"]


def same(one, two):
    """Whether two predictions agree to the last bit."""
    numbers = ("score", "score_prototype", "score_memory")
    return (
        all(getattr(one, name) == getattr(two, name) for name in numbers)
        and np.array_equal(one.map, two.map)
        and (one.drift is None) == (two.drift is None)
        and (one.drift is None or np.array_equal(one.drift, two.drift))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_detector_says_the_same(kind, detectors, pictures, tmp_path):
    detector = detectors[kind]
    detector.save(tmp_path / "saved.recap")
    loaded = recap.load(tmp_path / "saved.recap")
    assert loaded.card == detector.card
    assert loaded.map_scale == detector.map_scale
    for picture in pictures:
        assert same(detector.score(picture), loaded.score(picture))


def test_saving_what_was_loaded_gives_the_same_bytes(few_shot, tmp_path):
    few_shot.save(tmp_path / "one")
    recap.load(str(tmp_path / "one")).save(str(tmp_path / "two"))
    for name in ("bundle.json", "head.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_neither_batch_size_nor_order_matters(kind, together, detectors, pictures, monkeypatch):
    detector = detectors[kind]
    monkeypatch.setattr(Detector, "on_gpu", together)  # batches as one, as on a GPU
    alone = [detector.score(picture) for picture in pictures]
    for size in (1, 2, 5, 7):
        for order in ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1]):
            batch = detector.score_batch((pictures[i] for i in order), batch_size=size)
            for index, prediction in zip(order, batch, strict=True):
                expected = alone[index]
                if not together:
                    assert same(prediction, expected)
                assert prediction.score == pytest.approx(expected.score, abs=1e-5)
                assert np.allclose(prediction.map, expected.map, atol=2e-5)
                assert prediction.map.shape == expected.map.shape


def test_neighbours_in_the_batch_do_not_matter(few_shot, pictures, monkeypatch):
    monkeypatch.setattr(Detector, "on_gpu", True)
    first = np.zeros_like(pictures[0])
    blank, noise = (
        next(few_shot.score_batch([pictures[0], other], batch_size=2))
        for other in (first, 1 - first)
    )
    assert same(blank, noise)


def test_batches_come_as_they_are_ready(few_shot, pictures):
    taken = []

    def stream():
        for picture in pictures:
            taken.append(1)
            yield picture

    predictions = few_shot.score_batch(stream(), batch_size=2)
    next(predictions)
    assert len(taken) <= 2
    assert len(list(predictions)) == 4
    assert list(few_shot.score_batch([])) == []


@pytest.mark.parametrize("kind", KINDS)
def test_maps_have_the_size_of_their_source(kind, detectors, pictures):
    for picture in pictures:
        prediction = detectors[kind].score(picture)
        assert prediction.map.shape == picture.shape[:2]
        assert prediction.map.dtype == np.float32
        assert 0 <= prediction.map.min() <= prediction.map.max() <= 1
        assert 0 <= prediction.score <= 1


def test_which_branches_there_are(detectors, pictures):
    both = detectors["few-shot"].score(pictures[0])
    weight = detectors["few-shot"].card.settings.memory.weight
    fused = (1 - weight) * both.score_prototype + weight * both.score_memory
    assert both.score == pytest.approx(fused, abs=1e-6)
    assert both.drift.shape == (2, 4, 2)
    memory = detectors["normal-only"].score(pictures[0])
    assert (memory.score_prototype, memory.drift) == (None, None)
    zero = detectors["zero-shot"].score(pictures[0])
    assert zero.score_memory is None
    assert zero.drift.shape == (2, 4, 2)


def test_files_arrays_and_images_are_the_same(few_shot, tmp_path):
    values = np.random.default_rng(1).integers(0, 256, (50, 41), np.uint8)
    path = tmp_path / "case.png"
    PillowImage.fromarray(values).save(path)
    sources = [str(path), path, values, recap.read_image(path)]
    predictions = [few_shot.score(source) for source in sources]
    assert all(same(predictions[0], other) for other in predictions[1:])
    assert predictions[0].source == str(path)
    assert predictions[2].source == "array"


def test_a_bad_source_is_an_input_error(few_shot, tmp_path):
    with pytest.raises(recap.RecapError, match=r"nothing\.png"):
        few_shot.score(tmp_path / "nothing.png")
    with pytest.raises(recap.RecapError, match="shape"):
        few_shot.score(np.zeros((2, 3, 4, 5)))
    with pytest.raises(recap.RecapError, match="value of type float"):
        as_image(3.0, ReadingSettings())


@pytest.fixture(scope="module")
def flat_detector(tiny_settings):
    """Remembers flat grey, so that whatever is not grey stands out."""
    return recap.fit([np.full((70, 70), 0.5, np.float32)], settings=tiny_settings())


@pytest.mark.parametrize("size_hw", [(70, 70), (140, 210), (301, 97), (35, 50)])
def test_the_map_peaks_where_a_dot_is(size_hw, flat_detector):
    """Through the whole chain: resize, encoder, memory, map, back to the source's own pixels."""
    height, width = size_hw
    patch_y, patch_x = height / 5, width / 5
    for y in np.linspace(0.05, 0.95, 7) * height:
        for x in np.linspace(0.05, 0.95, 7) * width:
            image = np.full(size_hw, 0.5, np.float32)
            rows, columns = np.ogrid[:height, :width]
            dot = (np.abs(rows + 0.5 - y) <= patch_y / 4) & (
                np.abs(columns + 0.5 - x) <= patch_x / 4
            )
            image[dot] = 1
            peak = flat_detector.score(image).map
            peak_y, peak_x = np.argwhere(peak == peak.max()).mean(axis=0) + 0.5
            assert abs(peak_y - y) <= patch_y
            assert abs(peak_x - x) <= patch_x


def test_what_a_notebook_shows_fits_on_a_line(few_shot, pictures):
    shown = repr(few_shot)
    assert shown.startswith("Detector(few-shot, encoder=")
    assert "3 normal, 3 abnormal, abnormal from 0." in shown
    prediction = few_shot.score(pictures[0])
    assert repr(prediction).startswith(f"Prediction(score={prediction.score:.4f}, ")
    assert f"p={prediction.decision.p_value:.3g}, map={pictures[0].shape[:2]}" in repr(prediction)
    image = as_image(pictures[0], ReadingSettings())
    assert repr(image) == f"Image('array', shape={pictures[0].shape})"


def test_images_and_predictions_can_be_compared_and_kept_in_sets(few_shot, pictures):
    one, two = few_shot.score(pictures[0]), few_shot.score(pictures[0])
    assert one != two
    assert len({one, two, as_image(pictures[0], ReadingSettings())}) == 3


def test_several_images_go_to_score_batch(few_shot, pictures, tmp_path):
    with pytest.raises(recap.RecapError, match="Score several with score_batch"):
        few_shot.score(["a.png", "b.png"])
    with pytest.raises(recap.RecapError, match=r"a folder is not one image.*score_batch"):
        few_shot.score(tmp_path)
    with pytest.raises(recap.RecapError, match="healthy: score_batch takes a list"):
        next(few_shot.score_batch("healthy"))
    with pytest.raises(recap.RecapError, match="is one image, not a stack"):
        next(few_shot.score_batch(np.zeros((70, 70, 3), np.uint8)))


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("preprocessor_config.json", {"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}, "mean = "),
        ("config.json", {"hidden_act": "relu"}, "hidden_act = gelu"),
        ("config.json", {"layer_norm_eps": 0.1}, "layer_norm_eps = 1e-06"),
    ],
)
def test_an_encoder_with_other_surroundings_is_refused(
    file, change, told, tiny_folder, tiny_settings, pictures, tmp_path
):
    """The weights are the same, their digest too; the tokens are not."""
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_folder, folder)
    settings = tiny_settings(encoder={"name": str(folder)})
    recap.fit(pictures[:2], settings=settings).save(tmp_path / "a.recap")
    assert recap.load(tmp_path / "a.recap").card.mode == "normal-only"
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **change}))
    (folder / "model.safetensors").touch()  # read again, see quick_encoder
    with pytest.raises(BundleError, match=f"{told}.*Bring its original config.json"):
        recap.load(tmp_path / "a.recap")
