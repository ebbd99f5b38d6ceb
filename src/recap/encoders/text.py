"""CLIP's text tower, frozen, on transformers: needed while fitting, never while scoring."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recap.config import EncoderSettings
from recap.encoders import _cache
from recap.encoders._hub import CONFIG_FILE, TOKENISER_FILES
from recap.encoders.load import quiet_transformers, seeded
from recap.encoders.registry import ENCODERS, find
from recap.encoders.weights import EncoderFiles, locate, status
from recap.errors import WeightsError

ENCODE_AT_ONCE = 64
"""Sentences encoded together: bounds the memory, whatever the size of an ensemble."""

_LEGACY_END = 2
"""The end of text as OpenAI's configurations have it; it is the largest id instead."""
_NORM, _PROJECTION = "vision_model.post_layernorm", "visual_projection.weight"

Tokenise = Callable[[str], list[int]]
"""One sentence -> its ids, between those of start and end of text."""


class TextTower(nn.Module):
    """Sentences, or embeddings in their place, to the space that images are projected into."""

    visual_projection: Tensor
    """(projection_dim, vision width): what projects the vision tower's class token."""

    def __init__(
        self, model: Any, tokenise: Tokenise, visual_projection: Tensor, visual_norm: nn.LayerNorm
    ) -> None:
        super().__init__()
        config = model.config
        self.width, self.projection_dim = int(config.hidden_size), int(config.projection_dim)
        self.length = int(config.max_position_embeddings)
        self._end, self._vocabulary = config.eos_token_id, int(config.vocab_size)
        self._tokenise = tokenise
        self.model, self.visual_norm = model, visual_norm
        self.register_buffer("visual_projection", visual_projection)
        self.eval().requires_grad_(False)

    def tokenise(self, texts: Sequence[str]) -> Tensor:
        """Sentences -> ids (N, 77), zeros behind the end of text."""
        ids = torch.tensor(padded([self._tokenise(text) for text in texts], self.length))
        if int(ids.max()) >= self._vocabulary:
            raise WeightsError(
                f"The tokeniser knows an id {int(ids.max())}, the text tower has "
                f"{self._vocabulary} embeddings: they are not of the same model."
            )
        return ids.to(self.visual_projection.device)

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings without positions: (N, 77) -> (N, 77, width)."""
        return self.model.text_model.embeddings.token_embedding(ids)

    def encode(self, embeddings: Tensor, ids: Tensor, causal: bool = True) -> Tensor:
        """Features (N, projection_dim), not normalised, of embeddings (N, 77, width).

        `ids` say only where the text ends. Without `causal` every token sees every other, which
        is not how CLIP was trained.
        """
        tower = self.model.text_model
        hidden = tower.embeddings(inputs_embeds=embeddings)
        hidden = tower.encoder(inputs_embeds=hidden, attention_mask=None, is_causal=causal)
        hidden = tower.final_layer_norm(hidden.last_hidden_state)
        at_end = hidden[torch.arange(len(ids), device=ids.device), self._end_of_text(ids)]
        return self.model.text_projection(at_end)

    @torch.no_grad()
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Features (N, projection_dim) of sentences, not normalised."""
        ids = self.tokenise(texts)
        # Nothing behind the end of a text has a say, so the longest decides what is computed.
        ids = ids[:, : int(self._end_of_text(ids).max()) + 1]
        return torch.cat([self.encode(self.embed(i), i) for i in ids.split(ENCODE_AT_ONCE)])

    def _end_of_text(self, ids: Tensor) -> Tensor:
        marks = ids if self._end == _LEGACY_END else ids == self._end
        return marks.int().argmax(dim=-1)


def load_text_tower(settings: EncoderSettings, seed: int = 0) -> TextTower:
    """Load the text tower of a CLIP encoder, from the encoder's own folder; never downloads."""
    return _random_tower(settings.name, seed) if settings.random_weights else _saved(settings.name)


def has_text_tower(settings: EncoderSettings) -> bool:
    """Tell if an encoder has one by its configuration; what is not here is told when it loads."""
    entry = find(settings.name)
    if entry is not None:
        return entry.text_config is not None
    given = Path(settings.name)
    folder = given if settings.random_weights else status(settings.name).folder
    return folder is None or bool(_read(folder).get("text_config"))


def need_text_tower(name: str) -> None:
    """Refuse a named encoder that has no text tower, be its weights here or not."""
    entry = find(name)
    if entry is not None and entry.text_config is None:
        raise _no_text_tower(name)


def _saved(name: str) -> TextTower:
    import transformers

    need_text_tower(name)
    entry = find(name)
    files = locate(name)
    config = _read(files.folder)
    if config["model_type"] not in ("clip", "clip_vision_model"):
        raise _no_text_tower(name)
    text_config = config.get("text_config") or (entry.text_config if entry else None)
    projection, norm = _visual(files, config)
    if text_config is None:
        raise _vision_only(files)
    tokenise = load_tokeniser(files.folder, entry.hub_id if entry else name)
    text_config = {**text_config, "projection_dim": len(projection)}
    with quiet_transformers():
        model, report = transformers.CLIPTextModelWithProjection.from_pretrained(
            files.folder,
            config=transformers.CLIPTextConfig.from_dict(text_config),
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            # The only attention that knows what `is_causal` means without a mask.
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    if report["missing_keys"]:
        raise _vision_only(files)
    return TextTower(model, tokenise, projection, norm)


def _visual(files: EncoderFiles, config: dict[str, Any]) -> tuple[Tensor, nn.LayerNorm]:
    """Load the vision tower's projection and the norm before it, which its encoder leaves out."""
    from safetensors import safe_open

    shapes = _cache.read_shapes(files.weights)
    if _PROJECTION not in shapes or f"{_NORM}.weight" not in shapes:
        raise _vision_only(files)
    norm = _new_norm(config.get("vision_config", config))
    with safe_open(files.weights, "pt") as file:
        for part in ("weight", "bias"):
            getattr(norm, part).data.copy_(file.get_tensor(f"{_NORM}.{part}"))
        return file.get_tensor(_PROJECTION).float(), norm


def _random_tower(name: str, seed: int) -> TextTower:
    import transformers

    entry = find(name)
    config: dict[str, Any] = (
        {"vision_config": entry.config, "text_config": entry.text_config}
        if entry
        else _read(Path(name))
    )
    if not config.get("text_config"):
        raise _no_text_tower(name)
    text = transformers.CLIPTextConfig.from_dict(config["text_config"])
    vision = config["vision_config"]
    with seeded(seed), quiet_transformers():
        model = transformers.CLIPTextModelWithProjection._from_config(
            text, attn_implementation="sdpa"
        )
        width = int(vision["hidden_size"])
        projection = torch.randn(text.projection_dim, width) * width**-0.5
    end = text.vocab_size - 1 if text.eos_token_id == _LEGACY_END else text.eos_token_id
    tokenise = hashing_tokeniser(text.vocab_size, end)
    return TextTower(model, tokenise, projection, _new_norm(vision))


def _new_norm(vision: dict[str, Any]) -> nn.LayerNorm:
    return nn.LayerNorm(int(vision["hidden_size"]), eps=vision.get("layer_norm_eps", 1e-5))


def _read(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    _cache.read_config(path)  # says what is wrong with it
    return json.loads(path.read_text(encoding="utf-8"))


def _no_text_tower(name: str) -> WeightsError:
    known = " or ".join(entry.name for entry in ENCODERS.values() if entry.text_config)
    return WeightsError(
        f"{name} has no text tower; use {known} (encoder.name), or a method without text."
    )


def _vision_only(files: EncoderFiles) -> WeightsError:
    entry = find(files.name)
    origin = entry.hub_id if entry else "the model it was taken from"
    return WeightsError(
        f"{files.weights}: this checkpoint has a vision tower only; methods with text need both. "
        f"Put the whole model.safetensors of {origin} (as CLIPModel.save_pretrained writes it) "
        f"there, with config.json and tokenizer.json, or use a method without text."
    )


def load_tokeniser(folder: Path, hub_id: str) -> Tokenise:
    """Load the tokeniser that lies beside the weights."""
    import transformers

    whole, *parts = (folder / file for file in TOKENISER_FILES)
    if not whole.is_file() and not all(part.is_file() for part in parts):
        raise WeightsError(
            f"{folder} has no tokeniser: this method reads sentences. Put tokenizer.json, or "
            f"vocab.json and merges.txt, of {hub_id} into that folder."
        )
    try:
        tokeniser = transformers.CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    # The tokenizers library raises plain exceptions for damaged files.
    except Exception as error:
        first = str(error).splitlines()[0]
        raise WeightsError(
            f"Cannot read the tokeniser in {folder}: {first}. Copy its files from {hub_id} again."
        ) from error
    return lambda text: list(tokeniser(text).input_ids)


def hashing_tokeniser(vocabulary: int, end: int) -> Tokenise:
    """Every word gets the id that its hash says; for towers that were never trained."""
    start, *free = (i for i in reversed(range(vocabulary)) if i not in (0, end))

    def tokenise(text: str) -> list[int]:
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        digests = (hashlib.sha256(word.encode()).digest() for word in words)
        return [start, *(free[int.from_bytes(d[:8]) % len(free)] for d in digests), end]

    return tokenise


def padded(sentences: Sequence[list[int]], length: int) -> list[list[int]]:
    """Pad all to one length with zeros, as CLIP was trained; cut long ones before their end."""
    cut = [ids if len(ids) <= length else [*ids[: length - 1], ids[-1]] for ids in sentences]
    return [ids + [0] * (length - len(ids)) for ids in cut]
