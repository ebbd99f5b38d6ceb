"""The encoders that recap knows by name: where they come from, and how to tell the right file."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from recap.errors import WeightsError

Triple = tuple[float, float, float]
IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: tuple[Triple, Triple] = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)


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
) -> EncoderEntry:
    """The vision tower of one of OpenAI's CLIP models, and the text tower that belongs to it."""
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
        note="on the hub only as a pickle: convert once",
        pickle_only=True,
        text_config=text_config,
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
    """The entry with this name or hub id, if there is one."""
    by_hub_id = (entry for entry in ENCODERS.values() if entry.hub_id == name)
    return ENCODERS.get(name) or next(by_hub_id, None)


def unknown_encoder(name: str, also: Iterable[str] = ()) -> WeightsError:
    """The error for a name that means nothing, with the nearest name that does."""
    known = [*ENCODERS, *also]
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return WeightsError(
        f"No encoder is called '{name}'.{hint} Known names: {', '.join(known)}; "
        "a hub id 'organisation/model' or the path of a folder will do as well."
    )
