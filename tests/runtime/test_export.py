"""Exported graphs say what torch says, and are refused where they do not."""

import json
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import recap
from recap.errors import BundleError, InputError, RecapError
from recap.io import Case
from recap.runtime import export
from recap.runtime.choose import choose_runtime
from recap.runtime.export import export_bundle
from recap.runtime.record import RECORD, check_pixels, exports, file_digests, largest_differences
from recap.scoring.arrays import Arrays, named_arrays
from recap.scoring.bundle_folder import Bundle
from recap.scoring.detector import as_image
from recap.scoring.predict import Opened, fitting_batch, one_core_each, predict

GRAPHS = ["onnx", "openvino"]
GRAPH_FILES = {"onnx": "model.onnx", "openvino": "model.xml"}
FIELDS = ["score", "score_prototype", "score_memory"]


def copy_of(bundle, folder):
    return shutil.copytree(bundle, folder / "copy.recap")


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_says_what_torch_says(name, exported, pictures):
    torch, graph = recap.load(exported), recap.load(exported, runtime=name)
    assert graph.runtime.name == name
    for picture in pictures:
        expected, seen = torch.score(picture), graph.score(picture)
        for field in FIELDS:
            assert getattr(seen, field) == pytest.approx(getattr(expected, field), abs=1e-4)
        assert seen.map.shape == expected.map.shape
        assert np.abs(seen.map - expected.map).max() < 1e-4
        assert np.abs(seen.drift - expected.drift).max() < 1e-4
        assert np.abs(seen.descriptor - expected.descriptor).max() < 1e-4


@pytest.mark.parametrize("name", GRAPHS)
def test_the_batch_changes_no_bit(name, exported, pictures):
    detector = recap.load(exported, runtime=name, threads=1)
    alone = [detector.score(picture) for picture in pictures]
    order = [2, 0, 1]
    together = detector.score_batch([pictures[i] for i in order], batch_size=3)
    for index, seen in zip(order, together, strict=True):
        assert seen.score == alone[index].score
        assert np.array_equal(seen.map, alone[index].map)


@pytest.mark.parametrize("name", ["torch", "onnx", "openvino"])
def test_images_side_by_side_change_no_bit(name, exported, pictures):
    one = recap.load(exported, runtime=name, threads=1)
    several = recap.load(exported)
    choose_runtime(several, name, exported, threads=3, side_by_side=True)
    facts = several.runtime.describe()
    assert (facts["threads"], facts["images_at_a_time"], fitting_batch(several)) == (3, 3, 3)
    images = [as_image(picture, one.card.settings.reading) for picture in pictures] * 5
    with one_core_each(several):
        cases = [Opened(Case("image", image.source, [image])) for image in images]
        scored = list(predict(several, cases, batch=3))
    for image, (_, _, prediction) in zip(images, scored, strict=True):
        expected = one.score(image)
        assert prediction.score == expected.score
        assert np.array_equal(prediction.map, expected.map)


def test_the_onnx_file_takes_any_batch(exported):
    import onnxruntime

    detector = recap.load(exported)
    pixels = check_pixels(detector)[:3]
    session = onnxruntime.InferenceSession(exported / "onnx" / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    assert [given.name for given in session.get_inputs()] == ["pixels"]
    values = session.run(None, {"pixels": pixels})
    together = named_arrays(dict(zip(names, values, strict=True)))
    expected = recap.load(exported, runtime="torch").runtime.run(pixels)
    assert max(largest_differences(expected, together).values()) < 1e-4


def test_the_openvino_file_takes_any_batch(exported):
    import openvino

    detector = recap.load(exported, runtime="torch")
    pixels = check_pixels(detector)[:3]
    model = openvino.Core().read_model(exported / "openvino" / "model.xml")
    names = [output.get_any_name() for output in model.outputs]
    values = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(pixels)
    together = named_arrays({name: values[i] for i, name in enumerate(names)})
    assert max(largest_differences(detector.runtime.run(pixels), together).values()) < 1e-4


def test_the_record_says_what_was_measured(exported):
    records = exports(Bundle(exported))
    assert list(records) == GRAPHS
    for name, record in records.items():
        assert record.runtime == name
        assert record.checked_on == 9
        assert set(record.largest_difference) == set(record.outputs)
        assert 0 < record.largest_difference["map"] <= 1e-4
        assert record.files == file_digests(Bundle(exported), name)
        assert record.int8 is None
    assert records["onnx"].opset >= 18
    assert not list(exported.glob(".exporting*"))


def test_built_in_images_are_various_and_always_the_same(exported):
    pixels = check_pixels(recap.load(exported))
    assert pixels.shape[1:] == (3, 56, 56)
    assert pixels.dtype == np.float32
    assert 0 <= pixels.min() < pixels.max() <= 1
    assert len(np.unique(pixels.reshape(len(pixels), -1), axis=0)) == len(pixels)
    assert np.array_equal(pixels, check_pixels(recap.load(exported)))


def test_a_graph_that_is_too_far_off_is_not_kept(exported, tmp_path, monkeypatch):
    bundle = copy_of(exported, tmp_path)
    shutil.rmtree(bundle / "onnx")
    monkeypatch.setattr(export, "ALLOWED", 0.0)
    monkeypatch.setattr(export, "trace", lambda model, decisions: None)
    monkeypatch.setattr(
        export,
        "write_onnx",
        lambda program, names, folder: (
            shutil.copytree(exported / "onnx", folder, dirs_exist_ok=True) and 18
        ),
    )
    with pytest.raises(BundleError, match=r"differs from torch by .* it was not kept"):
        export_bundle(recap.load(bundle), bundle, "onnx")
    assert sorted(p.name for p in bundle.iterdir()) == [
        "bundle.json",
        "head.safetensors",
        "openvino",
    ]


def test_differences_see_what_is_missing_or_not_a_number():
    score, map = np.zeros(2, np.float32), np.zeros((2, 3, 3), np.float32)
    whole = Arrays(score, map, drift=score)
    seen = largest_differences(whole, Arrays(score + 0.5, map * np.nan))
    assert seen == {"score": 0.5, "map": np.inf, "drift": np.inf}
    assert largest_differences(whole, whole) == {"score": 0, "map": 0, "drift": 0}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_of_another_detector_is_refused(name, exported, tmp_path):
    bundle = copy_of(exported, tmp_path)
    detector = recap.load(bundle)
    detector.model.scores.theta.data += 1
    detector.save(bundle, keep=bundle)
    with pytest.raises(BundleError, match=f"another detector.*recap export .* --to {name}"):
        recap.load(bundle, runtime=name)


def test_a_calibration_leaves_graphs_valid(exported, tmp_path):
    bundle = copy_of(exported, tmp_path)
    detector = recap.load(bundle)
    detector.card = detector.card.model_copy(update={"statement": "Calibrated."})
    detector.save(bundle, keep=bundle)
    assert recap.load(bundle, runtime="onnx").runtime.name == "onnx"


def test_a_damaged_graph_is_refused(exported, tmp_path):
    bundle = copy_of(exported, tmp_path)
    with (bundle / "onnx" / "model.onnx").open("ab") as file:
        file.write(b"x")
    with pytest.raises(BundleError, match="is damaged: its files"):
        recap.load(bundle, runtime="onnx")
    (bundle / "openvino" / RECORD).write_text("{}", encoding="utf-8")
    with pytest.raises(BundleError, match=r"export\.json is missing or damaged"):
        recap.load(bundle, runtime="openvino")


def test_a_graph_that_is_not_there_names_the_command(saved):
    with pytest.raises(BundleError, match=r"recap export .*plain\.recap --to openvino --int8"):
        recap.load(saved, runtime="openvino-int8")


def test_int8_is_for_openvino(saved, tmp_path):
    with pytest.raises(InputError, match="--to openvino --int8"):
        export_bundle(recap.load(saved), saved, "onnx", calibration=tmp_path)


def test_a_missing_package_names_the_extra(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RecapError, match=r"recap-ad\[onnx\]"):
        recap.load(exported, runtime="onnx")


@pytest.mark.parametrize(
    ("to", "package"), [("onnx", "onnxruntime"), ("openvino", "onnxscript"), ("openvino", "onnx")]
)
def test_a_missing_package_is_told_before_the_work(to, package, saved, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(export, "trace", lambda model, decisions: pytest.fail("traced"))
    with pytest.raises(RecapError, match=rf"'{package}'.*recap-ad\[{to}\]"):
        export_bundle(recap.load(saved), saved, to)


def test_every_extra_of_a_runtime_brings_what_its_export_needs():
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for to, needed in export._NEEDED.items():
        assert set(needed) <= {line.partition(">")[0] for line in extras[to]}


def test_real_graphs_are_measured(exported, tmp_path, monkeypatch, pictures):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path))
    detector = recap.load(exported, runtime="auto", threads=1)
    assert set(detector.runtime.milliseconds) == {"torch", "onnx", "openvino"}
    expected = recap.load(exported).score(pictures[1])
    assert detector.score(pictures[1]).score == pytest.approx(expected.score, abs=1e-4)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("file", ["model", "export.json", "folder"])
def test_a_graph_that_leads_elsewhere_is_refused(name, file, exported, tmp_path):
    """Though its digests are right: what lies elsewhere may be another file by the time it runs."""
    bundle = copy_of(exported, tmp_path)
    place = bundle / name
    if file != "folder":
        place = place / {"model": GRAPH_FILES[name]}.get(file, file)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="is a link"):
        recap.load(bundle, runtime=name)


def test_a_graph_reads_no_weights_from_elsewhere(exported, tmp_path, monkeypatch):
    """An ONNX file may name any file as its weights; one that lies in the bundle is used."""
    import onnx

    bundle = copy_of(exported, tmp_path)
    model, record = onnx.load(str(bundle / "onnx" / "model.onnx")), bundle / "onnx" / "export.json"
    onnx.save(model, bundle / "onnx" / "model.onnx", save_as_external_data=True, location="weights")
    digests = file_digests(Bundle(bundle), "onnx")
    assert set(digests) == {"model.onnx", "weights"}
    record.write_text(json.dumps({**json.loads(record.read_text()), "files": digests}))
    image = np.zeros((56, 56), np.uint8)
    expected = recap.load(exported, runtime="onnx").score(image).score
    assert recap.load(bundle, runtime="onnx").score(image).score == expected
    (bundle / "onnx" / "weights").rename(tmp_path / "weights")
    digests.pop("weights")
    record.write_text(json.dumps({**json.loads(record.read_text()), "files": digests}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BundleError, match="onnx cannot be opened"):
        recap.load(bundle, runtime="onnx")


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_is_none_is_refused(name, exported, tmp_path):
    bundle = copy_of(exported, tmp_path)
    (bundle / name / GRAPH_FILES[name]).write_bytes(b"no graph")
    record = bundle / name / "export.json"
    files = file_digests(Bundle(bundle), name)
    record.write_text(json.dumps({**json.loads(record.read_text()), "files": files}))
    with pytest.raises(BundleError, match=f"{name} cannot be opened"):
        recap.load(bundle, runtime=name)
