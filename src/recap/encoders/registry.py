"""The encoders that recap knows: families of vision transformers, and encoders by name.

A family is a row of FAMILIES and the function that embeds its pixels; one of another package is the
entry point `MODEL_TYPE = "package.module:ROW"` of the group `recap.encoders`. A named encoder is a
row of ENCODERS: where it comes from, and how to tell the right file.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from recap.errors import WeightsError

GROUP = "recap.encoders"
RANDOM = "random"
"""The checksum of an encoder that was never trained."""
UNSEEN = ("hidden_act", "layer_norm_eps", "num_attention_heads", "rope_theta")
"""Of an encoder's configuration, what changes its tokens and leaves its weights as they are."""
Triple = tuple[float, float, float]
Normalisation = tuple[Triple, Triple]
"""Mean and standard deviation of red, green and blue in 0..1."""

IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: Normalisation = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
HALF: Normalisation = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
RESNET_PATCHES = "embedder.embedder.convolution.weight"
"""Of a network that is no encoder of ours: DRA trains one."""


class Family(NamedTuple):
    """One family of vision transformers, and what sets it apart from the others."""

    model_class: str
    """Its name in transformers; or "package.module:Class", as is `config_class`."""
    config_class: str
    embed: Callable[[Any, Any, bool], Any]
    """(model, pixels, interpolate positions) -> tokens before the first block."""
    blocks: Callable[[Any], Any]
    """The model -> its blocks, in order."""
    prefix_tokens: Callable[[Any], int]
    """Tokens before the patches: class token and registers, from the configuration."""
    positions: str | None
    """Attribute of `model.embeddings` with the learned position table, if there is one."""
    final_norm: str
    """Attribute of the model with the normalisation after the last block."""
    patches: str
    """The tensor that turns pixels into patches: its name tells the families apart in a file."""
    normalisation: Normalisation
    """The one that most checkpoints were trained on; one may well be another's."""
    pair: str = ""
    """The model type of the image-and-text model whose vision tower this is."""


def embed_clip(model: Any, pixels: Any, interpolate: bool) -> Any:
    """Embed with positions to interpolate, then CLIP's norm before the first block."""
    tokens = model.embeddings(pixels, interpolate_pos_encoding=interpolate)
    return model.pre_layrnorm(tokens)


def embed_interpolating(model: Any, pixels: Any, interpolate: bool) -> Any:
    """Embed with positions to interpolate."""
    return model.embeddings(pixels, interpolate_pos_encoding=interpolate)


def embed_plain(model: Any, pixels: Any, interpolate: bool) -> Any:
    """Embed; the model does with its positions what is to be done."""
    return model.embeddings(pixels)


def embed_siglip2(model: Any, pixels: Any, interpolate: bool) -> Any:
    """Embed flattened patches, (row, column, channel) within each, as SigLIP 2 takes them."""
    import torch

    patch = model.config.patch_size
    grid = pixels.shape[-1] // patch
    pixels = pixels[..., : grid * patch, : grid * patch]
    cells = pixels.unflatten(2, (grid, patch)).unflatten(4, (grid, patch))  # (B, 3, g, p, g, p)
    patches = cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, g*g, p*p*3)
    shapes = torch.full((len(pixels), 2), grid, device=pixels.device)
    return model.embeddings(patches, shapes)


_ONE = "embeddings.patch_embedding.weight"
_PROJECTED = "embeddings.patch_embeddings.projection.weight"
FAMILIES: dict[str, Family] = {
    "clip_vision_model": Family(
        "CLIPVisionModel", "CLIPVisionConfig", embed_clip,
        lambda m: m.encoder.layers, lambda c: 1, "position_embedding", "post_layernorm",
        _ONE, CLIP, "clip",
    ),
    "dinov2": Family(
        "Dinov2Model", "Dinov2Config", embed_plain,
        lambda m: m.encoder.layer, lambda c: 1, "position_embeddings", "layernorm",
        _PROJECTED, IMAGENET,
    ),
    "dinov2_with_registers": Family(
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", embed_plain,
        lambda m: m.encoder.layer, lambda c: 1 + c.num_register_tokens, "position_embeddings",
        "layernorm", _PROJECTED, IMAGENET,
    ),
    "dinov3_vit": Family(
        "DINOv3ViTModel", "DINOv3ViTConfig", embed_plain,
        lambda m: m.model.layer, lambda c: 1 + c.num_register_tokens, None, "norm",
        "embeddings.patch_embeddings.weight", IMAGENET,
    ),
    "siglip_vision_model": Family(
        "SiglipVisionModel", "SiglipVisionConfig", embed_interpolating,
        lambda m: m.encoder.layers, lambda c: 0, "position_embedding", "post_layernorm",
        _ONE, HALF, "siglip",
    ),
    "siglip2_vision_model": Family(
        "Siglip2VisionModel", "Siglip2VisionConfig", embed_siglip2,
        lambda m: m.encoder.layers, lambda c: 0, None, "post_layernorm",
        _ONE, HALF, "siglip2",
    ),
    "vit": Family(
        "ViTModel", "ViTConfig", embed_interpolating,
        lambda m: m.layers, lambda c: 1, "position_embeddings", "layernorm",
        _PROJECTED, HALF,
    ),
}  # fmt: skip


def all_families() -> dict[str, Family]:
    """List all rows by model type, with those of other packages; ours keep their names."""
    return {**_of_others(), **FAMILIES}


@cache
def _of_others() -> dict[str, Family]:
    return {entry.name: entry.load() for entry in entry_points(group=GROUP)}


def patch_tensors() -> dict[str, str]:
    """Name the tensor of the patches in a file, by model type."""
    return {"resnet": RESNET_PATCHES} | {k: row.patches for k, row in all_families().items()}


def vision_tower(kind: str) -> str:
    """Name the vision tower's model type of an image-and-text model; any other stays as it is."""
    return next((name for name, row in all_families().items() if row.pair == kind != ""), kind)


@dataclass(frozen=True)
class EncoderEntry:
    """One named encoder.

    `config` holds the arguments of transformers' configuration class of `model_type`: enough to
    build the model without any file. `mean` and `std` are the encoder's own pixel normalisation.
    `sha256` is that of model.safetensors at `revision`. It is None where no public source states
    it; then the digest that the hub itself states is checked at download and kept in the cache's
    ledger, so that the first use pins the file. With `pickle_only`, the hub offers no
    safetensors at this revision: someone has to convert the file once.
    """

    name: str
    hub_id: str
    model_type: str
    config: dict[str, Any]
    mean: Triple
    std: Triple
    revision: str | None
    sha256: str | None
    licence: str
    note: str = ""
    pickle_only: bool = False
    text_config: dict[str, Any] | None = None
    """Of the text tower that the same checkpoint holds, if it does."""
    original_sha256: str | None = None
    """Of the file that its makers published, where that is another one than the hub's."""


def _dinov2(
    name: str,
    *,
    width: int,
    depth: int,
    heads: int,
    revision: str,
    sha256: str,
    hub_id: str | None = None,
    normalisation: tuple[Triple, Triple] = IMAGENET,
    licence: str = "Apache-2.0",
    note: str = "",
) -> EncoderEntry:
    """DINOv2 with 14 px patches, its positions learned at 518 px."""
    config = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "mlp_ratio": 4,
        "image_size": 518,
        "patch_size": 14,
    }
    hub_id = hub_id or f"facebook/{name}"
    return EncoderEntry(
        name, hub_id, "dinov2", config, *normalisation, revision, sha256, licence, note
    )


def _clip(
    name: str,
    hub_id: str,
    *,
    width: int,
    depth: int,
    heads: int,
    image_px: int,
    patch_px: int,
    projection: int,
    text_heads: int,
    revision: str,
    original_sha256: str,
) -> EncoderEntry:
    """Describe the vision tower of one of OpenAI's CLIP models, and its text tower."""
    config = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "image_size": image_px,
        "patch_size": patch_px,
        "projection_dim": projection,
    }
    text_config = {
        "hidden_size": projection,  # so in all of OpenAI's models
        "intermediate_size": 4 * projection,
        "num_hidden_layers": 12,
        "num_attention_heads": text_heads,
        "max_position_embeddings": 77,
        "vocab_size": 49408,
        "projection_dim": projection,
    }
    return EncoderEntry(
        name,
        hub_id,
        "clip_vision_model",
        config,
        *CLIP,
        revision,
        sha256=None,
        licence="MIT",
        note="`recap weights add` takes OpenAI's file",
        pickle_only=True,
        text_config=text_config,
        original_sha256=original_sha256,
    )


_ENTRIES = (
    _dinov2(
        "dinov2-small",
        width=384,
        depth=12,
        heads=6,
        revision="ed25f3a31f01632728cabb09d1542f84ab7b0056",
        sha256="ae1e99fcefd534ed978cdeb8326f08030c96e28b7a81ffcbc98a857c84d14be1",
        note="default; also from the package registry",
    ),
    _dinov2(
        "dinov2-base",
        width=768,
        depth=12,
        heads=12,
        revision="f9e44c814b77203eaa57a6bdbbd535f21ede1415",
        sha256="d73036b56966966d07975d696bde331762f37297e2f095de8cea0040c3aa0841",
    ),
    _dinov2(
        "dinov2-large",
        width=1024,
        depth=24,
        heads=16,
        revision="47b73eefe95e8d44ec3623f8890bd894b6ea2d6c",
        sha256="399fba97a95f22c36834418bc69373364a99af3a1153da1c0fb31db567c92e23",
    ),
    _clip(
        "clip-vit-b16",
        "openai/clip-vit-base-patch16",
        width=768,
        depth=12,
        heads=12,
        image_px=224,
        patch_px=16,
        projection=512,
        text_heads=8,
        revision="57c216476eefef5ab752ec549e440a49ae4ae5f3",
        original_sha256="5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f",
    ),
    _clip(
        "clip-vit-l14-336",
        "openai/clip-vit-large-patch14-336",
        width=1024,
        depth=24,
        heads=16,
        image_px=336,
        patch_px=14,
        projection=768,
        text_heads=12,
        revision="ce19dc912ca5cd21c8a653c79e251e808ccabcd1",
        original_sha256="3035c92b350959924f9f00213499208652fc7ea050643e8b385c2dac08641f02",
    ),
    _dinov2(
        "rad-dino",
        hub_id="microsoft/rad-dino",
        width=768,
        depth=12,
        heads=12,
        revision="110cbc18d5133582e320b43d53bf5c44e410c936",
        sha256="dbfb9f54459c38773505de64a6ab7807bdcb392610fe1e697166342e43fb91ae",
        normalisation=((0.5307, 0.5307, 0.5307), (0.2583, 0.2583, 0.2583)),
        licence="MIT",
        note="chest radiographs",
    ),
    EncoderEntry(
        name="phikon",
        hub_id="owkin/phikon",
        model_type="vit",
        config={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 224,
            "patch_size": 16,
        },
        mean=IMAGENET[0],
        std=IMAGENET[1],
        revision="057cc0295895c2df3dd7681a89680da6015cbefe",
        sha256=None,
        licence="Owkin non-commercial",
        note="histology tiles",
    ),
)

ENCODERS: dict[str, EncoderEntry] = {entry.name: entry for entry in _ENTRIES}


def find(name: str) -> EncoderEntry | None:
    """Find the entry with this name or hub id, if there is one."""
    by_hub_id = (entry for entry in ENCODERS.values() if entry.hub_id == name)
    return ENCODERS.get(name) or next(by_hub_id, None)


def unknown_encoder(name: str, also: Iterable[str] = ()) -> WeightsError:
    """Make the error for a name that means nothing, with the nearest name that does."""
    known = [*ENCODERS, *also]
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return WeightsError(
        f"No encoder is called '{name}'.{hint} Known names: {', '.join(known)}; "
        "a hub id 'organisation/model' or the path of a folder will do as well."
    )


def preprocessing_fingerprint(encoder: Any) -> dict[str, Any]:
    """Say what changes an encoder's tokens and is not in its weights; DRA's has less of it."""
    config = getattr(getattr(encoder, "model", None), "config", None)
    known = {key: getattr(config, key, None) for key in UNSEEN}
    return {
        "mean": [round(v, 6) for v in encoder.mean.flatten().tolist()],
        "std": [round(v, 6) for v in encoder.std.flatten().tolist()],
        **{key: value for key, value in known.items() if value is not None},
    }
