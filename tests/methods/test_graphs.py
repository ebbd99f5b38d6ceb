"""Every method becomes one graph, whatever was decided at fitting and however many images come."""

import pytest
import torch

from recap.errors import BundleError
from recap.methods.registry import resolve_settings
from recap.runtime.export import export_bundle
from recap.runtime.graph import Graph, trace
from recap.scoring.fit import fit_sources, fit_support

QUICK = {
    "visualad": {"epochs": 1},
    "uniadet": {"epochs": 1},
    "patchcore": {"coreset": 0.5},
    "anomalydino": {"rotations": 1},
    "april_gan": {"epochs": 1, "copies": False},
    "mediclip": {"epochs": 1, "variants": 1},
    "mvfa": {"epochs": 1, "batch_size": 22},
    "madclip": {"epochs": 1, "copies": 1},
    "dra": {"epochs": 1, "steps": 1, "batch_size": 4, "copies": False},
}
FLAGGED = ("april_gan", "mvfa", "madclip")
"""Whose score or map depends on whether there were masks, or images of the target."""
PX = 96


@pytest.fixture
def settings(peer_settings, resnet_folder):
    def make(method, **options):
        options = {**QUICK[method], **options}
        if method == "dra":
            encoder = {"name": str(resnet_folder), "input_px": PX}
            return resolve_settings(method=method, encoder=encoder, options=options)
        return peer_settings(method, options=options)

    return make


def check_graph(model):
    """A graph says what the model says, of one image as of several."""
    graph = trace(model).module()
    size = model.encoder.input_px
    for count in (1, 3):
        pixels = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(count))
        with torch.no_grad():
            found, expected = graph(pixels), Graph(model)(pixels)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "masks"),
    [*((method, True) for method in QUICK), *((method, False) for method in FLAGGED)],
)
def test_fitted_on_few_images(method, masks, settings, make_support):
    check_graph(fit_support(make_support(masks=masks), settings(method)).model)


@pytest.mark.parametrize("method", FLAGGED)
def test_fitted_on_other_domains(method, settings, phantoms):
    check_graph(fit_sources(phantoms[:2], settings(method)).model)


def test_operations_of_its_own_can_be_written_as_onnx(settings, make_support, tmp_path):
    """PatchCore's: a search by Euclidean distance, and neighbours of what was found."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra onnx is not installed")
    detector = fit_support(make_support(), settings("patchcore"))
    detector.save(tmp_path / "bundle")
    record = export_bundle(detector, tmp_path / "bundle", "onnx")
    assert max(record.largest_difference.values()) <= 1e-4


def test_masks_from_components_are_no_graph_and_that_is_told(settings, make_support):
    model = fit_support(make_support(), settings("anomalydino", masking="on")).model
    with pytest.raises(BundleError, match=r"AnomalyDINO cannot be made one graph.*--runtime torch"):
        trace(model)
