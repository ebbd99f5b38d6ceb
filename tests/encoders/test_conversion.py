"""Converted checkpoints compute what the originals do: slow references under the original names."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPModel, ResNetConfig, ResNetModel

from recap.encoders import conversion
from recap.errors import WeightsError

WIDTH, TEXT, JOINT, PATCH, SIDE, WORDS, LENGTH = 64, 64, 16, 4, 3, 50, 7


def clip_tensors(depth=2):
    draw = torch.Generator().manual_seed(0)

    def of(*shape):
        return torch.randn(shape, generator=draw) * 0.2

    tensors = {
        "visual.class_embedding": of(WIDTH),
        "visual.positional_embedding": of(SIDE**2 + 1, WIDTH),
        "visual.conv1.weight": of(WIDTH, 3, PATCH, PATCH),
        "visual.proj": of(WIDTH, JOINT),
        "positional_embedding": of(LENGTH, TEXT),
        "token_embedding.weight": of(WORDS, TEXT),
        "text_projection": of(TEXT, JOINT),
        "logit_scale": of(),
    }
    for norm, width in (("visual.ln_pre", WIDTH), ("visual.ln_post", WIDTH), ("ln_final", TEXT)):
        tensors |= {f"{norm}.weight": 1 + of(width), f"{norm}.bias": of(width)}
    for tower, width in (("visual.transformer", WIDTH), ("transformer", TEXT)):
        for block in range(depth):
            at = f"{tower}.resblocks.{block}"
            tensors |= {
                f"{at}.attn.in_proj_weight": of(3 * width, width),
                f"{at}.attn.in_proj_bias": of(3 * width),
                f"{at}.attn.out_proj.weight": of(width, width),
                f"{at}.attn.out_proj.bias": of(width),
                f"{at}.mlp.c_fc.weight": of(4 * width, width),
                f"{at}.mlp.c_fc.bias": of(4 * width),
                f"{at}.mlp.c_proj.weight": of(width, 4 * width),
                f"{at}.mlp.c_proj.bias": of(width),
            }
            for norm in ("ln_1", "ln_2"):
                tensors |= {f"{at}.{norm}.weight": 1 + of(width), f"{at}.{norm}.bias": of(width)}
    return tensors


def norm(x, w, name):
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def blocks(x, w, tower, quick, mask=None):
    def linear(y, name, kind="."):
        return F.linear(y, w[f"{name}{kind}weight"], w[f"{name}{kind}bias"])

    for block in range(2):
        at = f"{tower}.resblocks.{block}"
        q, k, v = linear(norm(x, w, f"{at}.ln_1"), f"{at}.attn.in_proj", "_").chunk(3, -1)
        attention = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # one head of 64 channels
        attention = (attention if mask is None else attention + mask).softmax(-1)
        x = x + linear(attention @ v, f"{at}.attn.out_proj")
        y = linear(norm(x, w, f"{at}.ln_2"), f"{at}.mlp.c_fc")
        y = y * torch.sigmoid(1.702 * y) if quick else F.gelu(y)
        x = x + linear(y, f"{at}.mlp.c_proj")
    return x


def image_features(w, pixels, quick):
    patches = F.conv2d(pixels, w["visual.conv1.weight"], stride=PATCH).flatten(2).transpose(1, 2)
    first = w["visual.class_embedding"].expand(len(pixels), 1, -1)
    x = torch.cat([first, patches], 1) + w["visual.positional_embedding"]
    x = blocks(norm(x, w, "visual.ln_pre"), w, "visual.transformer", quick)
    return norm(x[:, 0], w, "visual.ln_post") @ w["visual.proj"]


def text_features(w, ids, quick):
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
    x = w["token_embedding.weight"][ids] + w["positional_embedding"]
    x = norm(blocks(x, w, "transformer", quick, mask), w, "ln_final")
    return x[torch.arange(len(ids)), ids.argmax(-1)] @ w["text_projection"]


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_a_converted_clip_computes_what_the_original_does(activation):
    tensors = clip_tensors()
    named = {name: tensor.numpy() for name, tensor in tensors.items()}
    assert conversion.is_clip(named)
    config = CLIPConfig.from_dict(conversion.clip_config(named, activation))
    config.text_config.eos_token_id = WORDS - 1
    model = CLIPModel(config).eval()
    renamed = conversion.clip_to_transformers(named | {"input_resolution": np.array(12)})
    report = model.load_state_dict(
        {k: torch.from_numpy(v) for k, v in renamed.items()}, strict=False
    )
    assert not report.unexpected_keys
    assert all("position_ids" in key for key in report.missing_keys)
    pixels = torch.rand(2, 3, SIDE * PATCH, SIDE * PATCH)
    ids = torch.randint(1, WORDS - 1, (2, LENGTH))
    ids[:, 5] = WORDS - 1
    quick = activation == "quick_gelu"
    with torch.no_grad():
        vision = model.vision_model(pixel_values=pixels).pooler_output
        seen = model.visual_projection(vision)
        text = model.text_model(input_ids=ids).pooler_output
        read = model.text_projection(text)
    torch.testing.assert_close(seen, image_features(tensors, pixels, quick), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(read, text_features(tensors, ids, quick), rtol=1e-4, atol=1e-5)


def test_half_precision_becomes_float32_without_change():
    halves = {name: tensor.half().numpy() for name, tensor in clip_tensors().items()}
    renamed = conversion.clip_to_transformers(halves)
    assert {array.dtype for array in renamed.values()} == {np.dtype("float32")}
    np.testing.assert_array_equal(
        renamed["visual_projection.weight"].T, halves["visual.proj"].astype("float32")
    )


def test_parts_of_other_models_are_refused():
    with pytest.raises(WeightsError):
        conversion.clip_to_transformers({"visual.layer1.0.conv1.weight": np.zeros(3, "float32")})
    with pytest.raises(WeightsError):
        conversion.resnet_to_transformers({"layer1.0.conv3.bias.more": np.zeros(3, "float32")})


def test_a_converted_residual_network_computes_what_the_original_does():
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 6, 8, 10], "depths": [2, 2, 2, 2]}
    model = ResNetModel(ResNetConfig(layer_type="basic", **sizes)).eval()
    draw = torch.Generator().manual_seed(0)
    w = {}

    def conv(name, out, into, size):
        w[f"{name}.weight"] = torch.randn(out, into, size, size, generator=draw) * 0.3

    def batch_norm(name, width):
        for part in ("weight", "bias", "running_mean"):
            w[f"{name}.{part}"] = torch.randn(width, generator=draw) * 0.3
        w[f"{name}.running_var"] = torch.rand(width, generator=draw) + 0.5
        w[f"{name}.num_batches_tracked"] = torch.tensor(7)

    conv("conv1", 4, 3, 7)
    batch_norm("bn1", 4)
    into = 4
    for stage, width in enumerate(sizes["hidden_sizes"], start=1):
        for block in range(2):
            at = f"layer{stage}.{block}"
            conv(f"{at}.conv1", width, into, 3)
            batch_norm(f"{at}.bn1", width)
            conv(f"{at}.conv2", width, width, 3)
            batch_norm(f"{at}.bn2", width)
            if into != width:
                conv(f"{at}.downsample.0", width, into, 1)
                batch_norm(f"{at}.downsample.1", width)
            into = width
    named = {name: tensor.numpy() for name, tensor in w.items()}
    named |= {"fc.weight": np.zeros((2, 10)), "fc.bias": np.zeros(2)}
    assert conversion.is_resnet(named)
    renamed = conversion.resnet_to_transformers(named)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in renamed.items()})

    def norm2d(x, name):
        mean, var = w[f"{name}.running_mean"], w[f"{name}.running_var"]
        return F.batch_norm(x, mean, var, w[f"{name}.weight"], w[f"{name}.bias"])

    pixels = torch.rand(2, 3, 64, 64, generator=draw)
    x = F.conv2d(pixels, w["conv1.weight"], stride=2, padding=3)
    x = F.max_pool2d(F.relu(norm2d(x, "bn1")), 3, 2, 1)
    for stage in range(1, 5):
        for block in range(2):
            at, step = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = F.conv2d(x, w[f"{at}.conv1.weight"], stride=step, padding=1)
            y = F.conv2d(F.relu(norm2d(y, f"{at}.bn1")), w[f"{at}.conv2.weight"], padding=1)
            if f"{at}.downsample.0.weight" in w:
                x = F.conv2d(x, w[f"{at}.downsample.0.weight"], stride=step)
                x = norm2d(x, f"{at}.downsample.1")
            x = F.relu(norm2d(y, f"{at}.bn2") + x)
    with torch.no_grad():
        torch.testing.assert_close(model(pixels).last_hidden_state, x, rtol=1e-4, atol=1e-4)
