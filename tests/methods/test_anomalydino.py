"""AnomalyDINO against a slow reading of its equations, and as a detector among others."""

import numpy as np
import pytest
import torch
from holds import check_batches, check_saved
from scipy.ndimage import binary_dilation, binary_erosion, gaussian_filter
from scipy.ndimage import rotate as scipy_rotate
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_distances

from recap.encoders.load import load_encoder
from recap.errors import InputError, SettingsError
from recap.methods._tokens import rotate
from recap.methods.anomalydino import Options, build, first_component, foreground, shows_an_object
from recap.methods.recap.maps import interpolation_matrix
from recap.methods.registry import resolve_settings
from recap.scoring.fit import fit_sources, fit_support


@pytest.fixture
def make_settings(peer_settings, tiny_folder):
    """Settings on the tiny DINOv2: masks are for that family."""

    def make(**options):
        return peer_settings("anomalydino", encoder={"name": str(tiny_folder)}, options=options)

    return make


def slow_mask(tokens, threshold):
    """(25, C) -> (25,): scikit-learn's component, scipy's morphology."""
    component = PCA(1).fit_transform(tokens).reshape(5, 5)
    if component[1:4, 1:4].mean() < 0:
        component = -component
    kept = component > threshold
    if kept[1:4, 1:4].mean() <= 0.35:
        kept = -component > threshold
    square = np.ones((3, 3), bool)
    closed = binary_dilation(binary_dilation(kept, square), square)
    return binary_erosion(closed, square, border_value=1).flatten()


def slow_output(model, pixels):
    encoder = model.encoder
    inputs = (pixels - encoder.mean) / encoder.std
    tokens = encoder.model(inputs).last_hidden_state[0, 1:].double().numpy()  # normed
    farness = cosine_distances(tokens, model.memory.double().numpy()).min(axis=1)
    if model.masked:
        farness = farness * slow_mask(tokens, model.options.mask_threshold)
    count = max(1, int(model.options.top_share * 25))
    matrix = interpolation_matrix(5, 70, 14, "centres").double().numpy()
    smooth = gaussian_filter(matrix @ farness.reshape(5, 5) @ matrix.T, 4, mode="reflect")
    return np.sort(farness)[-count:].mean(), smooth


@pytest.mark.parametrize("masking", ["on", "off"])
@pytest.mark.parametrize("top_share", [0.01, 0.3])
@torch.no_grad()
def test_map_and_score_are_those_of_the_equations(masking, top_share, make_settings, make_support):
    settings = make_settings(masking=masking, top_share=top_share, mask_threshold=3, rotations=2)
    model = fit_support(make_support(), settings).model
    pixels = torch.rand(1, 3, 70, 70, generator=torch.Generator().manual_seed(1))
    score, expected = slow_output(model, pixels)
    output = model(pixels)
    np.testing.assert_allclose(output.map[0].numpy(), expected, atol=1e-5)
    assert float(output.score) == pytest.approx(score, abs=1e-5)
    if masking == "on":
        assert 0 < (model.distances(model.encode(pixels), model.memory) == 0).sum() < 25


@pytest.mark.parametrize("shape", [(25, 8), (25, 60)])
def test_the_component_is_the_first_principal_one(shape):
    tokens = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    seen, expected = first_component(tokens).numpy(), PCA(1).fit_transform(tokens.numpy())[:, 0]
    np.testing.assert_allclose(seen * np.sign(seen @ expected), expected, atol=1e-3)


def tokens_of(mask, distance=40.0):
    """Tokens (R, 8) whose first component tells a mask's patches from the others."""
    noise = torch.randn(mask.size, 8, generator=torch.Generator().manual_seed(0))
    direction = torch.nn.functional.normalize(torch.ones(8), dim=0)
    return noise + distance * torch.from_numpy(mask.flatten()).float().unsqueeze(1) * direction


def disc(grid, radius):
    rows, columns = np.mgrid[:grid, :grid] - (grid - 1) / 2
    return rows**2 + columns**2 < radius**2


@pytest.mark.parametrize("sign", [1, -1])
def test_the_object_in_the_middle_is_the_foreground_whatever_the_sign(sign):
    mask = disc(17, 5)
    seen = foreground(sign * tokens_of(mask), 10).view(17, 17).numpy()
    assert np.array_equal(seen, binary_dilation(mask, np.ones((3, 3))))
    assert shows_an_object(sign * tokens_of(mask), 10)


@pytest.mark.parametrize(("share", "turned"), [(0.34, True), (0.36, False)])
def test_the_object_is_on_the_other_side_where_little_of_the_centre_is_kept(
    share, turned, monkeypatch
):
    """Three fifths of a side of 20: 144 patches, of which the share is far on the positive side."""
    component = torch.full((20, 20), -11.0)
    centre = torch.full((144,), -11.0)
    centre[: round(share * 144)] = 1000.0
    component[4:16, 4:16] = centre.view(12, 12)
    monkeypatch.setattr(
        "recap.methods.anomalydino.first_component", lambda tokens: component.flatten()
    )
    seen = foreground(torch.zeros(400, 1), 10).view(20, 20)
    assert bool(seen[0, 0]) is turned


@pytest.mark.parametrize(
    "mask",
    [np.zeros((17, 17), bool), ~disc(17, 2), np.arange(17)[:, None] * np.ones(17) < 9],
    ids=["a texture", "fills the picture", "at the edge"],
)
def test_images_without_an_object_in_the_middle_are_not_masked(mask):
    assert not shows_an_object(tokens_of(mask), 10)


@pytest.mark.parametrize(
    ("masking", "shown", "masked"),
    [("auto", True, True), ("auto", False, False), ("on", False, True), ("off", True, False)],
)
def test_the_first_normal_image_decides(
    masking, shown, masked, make_settings, make_support, monkeypatch
):
    asked = []
    monkeypatch.setattr(
        "recap.methods.anomalydino.shows_an_object", lambda t, limit: asked.append(t) or shown
    )
    support = make_support()
    model = fit_support(support, make_settings(masking=masking, rotations=3)).model
    assert bool(model.masked) is masked
    if masking == "auto":
        first = torch.from_numpy(support[0].image.pixels).expand(3, -1, -1)[None]
        assert torch.equal(asked[0], model.encode(first)[0])


def test_other_families_are_masked_by_order_only(peer_settings, make_support, monkeypatch):
    monkeypatch.setattr("recap.methods.anomalydino.shows_an_object", lambda *_: True)
    for masking, masked in (("auto", False), ("on", True)):
        settings = peer_settings("anomalydino", options={"masking": masking, "rotations": 1})
        assert bool(fit_support(make_support(), settings).model.masked) is masked


@pytest.mark.parametrize("degrees", [0, 45, 90, 180, 300])
def test_rotations_turn_counter_clockwise(degrees):
    rows, columns = np.mgrid[:41, :41] / 40
    image = np.exp(-20 * ((rows - 0.3) ** 2 + (columns - 0.6) ** 2)).astype(np.float32)
    expected = scipy_rotate(image, degrees, reshape=False, order=1, mode="mirror")
    seen = rotate(torch.from_numpy(image).expand(3, -1, -1), degrees)[0].numpy()
    middle = disc(41, 19)
    np.testing.assert_allclose(seen[middle], expected[middle], atol=1e-3)


def test_every_rotation_of_every_normal_image_is_remembered(make_settings, make_support):
    support = make_support(normal=3)
    model = fit_support(support, make_settings(rotations=4)).model
    assert model.memory.shape == (3 * 4 * 25, 32)
    assert model.num_trainable_parameters == 0
    image = torch.from_numpy(support[1].image.pixels).expand(3, -1, -1)
    for turn in range(4):
        tokens = model.encode(torch.rot90(image, turn, (1, 2))[None])
        assert model.distances(tokens, model.memory).abs().max() < 1e-5


def test_abnormal_images_change_nothing(make_settings, make_support):
    both = fit_support(make_support(), make_settings(rotations=2))
    alone = fit_support(make_support(abnormal=0), make_settings(rotations=2))
    assert torch.equal(both.model.memory, alone.model.memory)
    assert both.map_scale == alone.map_scale


@pytest.mark.parametrize("masking", ["on", "off"])
def test_saved_batched_and_single_scores_agree(
    masking, make_settings, make_support, queries, tmp_path
):
    settings = make_settings(masking=masking, mask_threshold=1, rotations=2)
    detector = fit_support(make_support(), settings)
    again = check_saved(detector, queries, tmp_path / "bundle")
    assert bool(again.model.masked) is (masking == "on")
    check_batches(detector, queries)


@pytest.mark.parametrize("normal", [1, 3])
def test_maps_are_drawn_by_images_that_are_not_in_the_memory(normal, make_settings, make_support):
    support = make_support(normal=normal)
    detector = fit_support(support, make_settings(rotations=1, masking="off"))
    low, high = detector.map_scale
    assert detector.score(support[0].image).map.max() < low / 10 < high / 10


@torch.no_grad()
def test_an_earlier_block_is_normed_too(peer_settings):
    encoder = load_encoder(peer_settings("anomalydino").encoder)
    pixels = torch.rand(1, 3, 70, 70)
    inputs = (pixels - encoder.mean) / encoder.std
    hidden = encoder.model(inputs, output_hidden_states=True).hidden_states
    expected = encoder.model.post_layernorm(hidden[5])[:, 1:]
    torch.testing.assert_close(build(encoder, Options(layer=5)).encode(pixels), expected)


def test_a_layer_that_does_not_exist_is_refused(make_settings, make_support):
    with pytest.raises(
        SettingsError, match=r"options\.layer = 9: .*blocks 1 to 4; give one of them"
    ):
        fit_support(make_support(), make_settings(layer=9))


def test_there_is_no_zero_shot_form(phantoms, make_settings):
    with pytest.raises(InputError, match="AnomalyDINO has no zero-shot form"):
        fit_sources(phantoms, make_settings())


def test_official_is_the_published_encoder_and_size():
    settings = resolve_settings("official", method="anomalydino")
    assert (settings.encoder.name, settings.encoder.input_px) == ("dinov2-small", 448)
    assert settings.options.rotations == 8
