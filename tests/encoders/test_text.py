"""The text tower against transformers' own forward pass, and what it says where there is none."""

import json
import shutil

import pytest
import torch
import transformers

from recap.config import EncoderSettings
from recap.encoders.registry import ENCODERS
from recap.encoders.text import (
    TextTower,
    has_text_tower,
    hashing_tokeniser,
    load_text_tower,
    padded,
)
from recap.errors import WeightsError

TEXTS = ["an image of a healthy liver", "a picture of a damaged liver.", "x", ""]
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 60,
    "bos_token_id": 58,
    "eos_token_id": 59,
    "projection_dim": 12,
}
VISION = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
LETTERS = [*"abcdefghijklmnopqrstuvwxyz.", *(f"{c}</w>" for c in "abcdefghijklmnopqrstuvwxyz.")]
VOCABULARY = [*LETTERS, *"012", "li", "<|startoftext|>", "<|endoftext|>"]


@pytest.fixture
def folder(machine, tmp_path):
    """A saved CLIP of both towers with its tokeniser."""
    path = tmp_path / "clip"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.CLIPModel(
            transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=12)
        )
        torch.nn.init.normal_(model.vision_model.post_layernorm.weight)
    model.save_pretrained(path)
    (path / "merges.txt").write_text("#version: 0.2\nl i\n")
    words = {token: index for index, token in enumerate(VOCABULARY)}
    (path / "vocab.json").write_text(json.dumps(words))
    return path


def tower_of(folder):
    return load_text_tower(EncoderSettings(name=str(folder)))


def random_tower(name="clip-vit-b16", seed=0):
    return load_text_tower(EncoderSettings(name=name, random_weights=True), seed)


@pytest.fixture
def small(monkeypatch):
    """A named encoder whose text tower is small enough to be built in every test."""
    entry = ENCODERS["clip-vit-b16"]
    config = {**entry.config, "hidden_size": 48, "projection_dim": 12}
    changed = {**entry.__dict__, "config": config, "text_config": TEXT}
    monkeypatch.setitem(ENCODERS, entry.name, type(entry)(**changed))
    return entry.name


def test_random_features_are_those_of_transformers(small):
    tower = random_tower(small)
    ids = tower.tokenise(TEXTS)
    with torch.no_grad():
        expected = tower.model(input_ids=ids).text_embeds
        assert torch.equal(tower.encode(tower.embed(ids), ids), expected)
    assert torch.allclose(tower.encode_text(TEXTS), expected, atol=1e-6)
    assert expected.shape == (4, 12)


def test_saved_features_are_those_of_transformers(folder):
    tower, whole = tower_of(folder), transformers.CLIPModel.from_pretrained(folder).eval()
    tokeniser = transformers.CLIPTokenizer.from_pretrained(folder)
    inputs = tokeniser(TEXTS, padding="max_length", max_length=77, return_tensors="pt")
    with torch.no_grad():
        # What stands behind the end of text has no say: theirs is padded otherwise than ours.
        expected = whole.get_text_features(input_ids=inputs.input_ids).pooler_output
        image = torch.rand(2, 3, 28, 28)
        hidden = whole.vision_model(image).last_hidden_state[:, 0]
        seen = tower.visual_norm(hidden) @ tower.visual_projection.T
        assert torch.allclose(seen, whole.get_image_features(image).pooler_output, atol=1e-6)
    assert torch.allclose(tower.encode_text(TEXTS), expected, atol=1e-6)
    assert (tower.width, tower.projection_dim) == (16, 12)


def test_the_old_way_to_mark_the_end_of_text(folder):
    config = json.loads((folder / "config.json").read_text())
    expected = tower_of(folder).encode_text(TEXTS)
    config["text_config"] |= {"eos_token_id": 2, "bos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(tower_of(folder).encode_text(TEXTS), expected)
    random = load_text_tower(EncoderSettings(name=str(folder), random_weights=True))
    features = random.encode_text(TEXTS)
    assert len(features.unique(dim=0)) == len(TEXTS)


def test_later_tokens_have_no_say_unless_asked_for(small):
    tower = random_tower(small)
    ids = tower.tokenise(["a liver"])
    moved = tower.embed(ids)
    moved[:, 10:] += torch.randn_like(moved[:, 10:])
    before, after = (tower.encode(e, ids) for e in (tower.embed(ids), moved))
    assert torch.equal(before, after)
    assert not torch.allclose(before, tower.encode(moved, ids, causal=False), atol=1e-4)


def test_gradients_reach_the_embeddings_and_nothing_else(small):
    tower = random_tower(small)
    ids = tower.tokenise(TEXTS[:1])
    embeddings = tower.embed(ids).requires_grad_()
    tower.encode(embeddings, ids).sum().backward()
    end = int((ids == 59).nonzero()[0, 1])
    reached = embeddings.grad.abs().sum(dim=-1)[0] > 0
    assert reached[: end + 1].all()
    assert not reached[end + 1 :].any()
    assert not any(parameter.requires_grad for parameter in tower.parameters())


def test_many_sentences_are_encoded_as_few(small):
    tower = random_tower(small)
    texts = [f"image number {i}" for i in range(130)]
    few = torch.cat([tower.encode_text([text]) for text in texts])
    assert torch.allclose(tower.encode_text(texts), few, atol=1e-6)


def test_random_towers_follow_the_seed(small):
    first, same, other = (random_tower(small, seed).encode_text(TEXTS) for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "width", "heads", "parameters"),
    [("clip-vit-b16", 512, 8, 63_428_096), ("clip-vit-l14-336", 768, 12, 123_650_304)],
)
def test_the_named_towers_have_the_published_sizes(name, width, heads, parameters):
    config = transformers.CLIPTextConfig.from_dict(ENCODERS[name].text_config)
    with torch.device("meta"):
        model = transformers.CLIPTextModelWithProjection(config)
    assert (config.hidden_size, config.num_attention_heads) == (width, heads)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_encoders_without_text_say_so():
    for random_weights in (True, False):
        with pytest.raises(WeightsError, match=r"dinov2-small has no text tower; use clip-vit-b16"):
            load_text_tower(EncoderSettings(random_weights=random_weights))


def test_a_folder_of_another_family_says_so(machine, tmp_path, write_folder):
    with pytest.raises(WeightsError, match="has no text tower"):
        tower_of(write_folder(tmp_path / "dino"))


def test_a_vision_tower_alone_says_so(folder, tmp_path):
    alone = tmp_path / "vision"
    transformers.CLIPVisionModel.from_pretrained(folder).save_pretrained(alone)
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(folder / file, alone / file)
    with pytest.raises(WeightsError, match="this checkpoint has a vision tower only"):
        tower_of(alone)


def test_whether_there_is_text_is_known_without_loading_it(folder, tmp_path, write_folder):
    vision = tmp_path / "vision"
    transformers.CLIPVisionModel.from_pretrained(folder).save_pretrained(vision)
    other = write_folder(tmp_path / "dino")
    names = {str(folder): True, str(vision): False, str(other): False}
    names |= {"clip-vit-b16": True, "dinov2-small": False, "openai/clip-vit-base-patch16": True}
    for name, expected in names.items():
        for random_weights in (True, False):
            settings = EncoderSettings(name=name, random_weights=random_weights)
            assert has_text_tower(settings) == expected, name
    # Nobody can tell, and loading it will say that it is not here.
    assert has_text_tower(EncoderSettings(name="someone/clip"))


def test_a_missing_tokeniser_says_what_to_put_where(folder):
    (folder / "merges.txt").unlink()
    with pytest.raises(WeightsError, match=r"has no tokeniser.*tokenizer\.json") as caught:
        tower_of(folder)
    assert str(folder) in str(caught.value)


def test_a_damaged_tokeniser_says_so(folder):
    (folder / "vocab.json").write_text("{")
    with pytest.raises(WeightsError, match="Cannot read the tokeniser"):
        tower_of(folder)


def test_a_tokeniser_of_another_model_says_so(folder):
    words = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({**words, "<|endoftext|>": 61}))
    with pytest.raises(WeightsError, match="61"):
        tower_of(folder).tokenise(TEXTS)


def test_sentences_keep_their_end():
    assert padded([[1, 5, 6, 9], [1, 9]], 3) == [[1, 5, 9], [1, 9, 0]]


def test_hashed_words():
    tokenise = hashing_tokeniser(49408, 49407)
    ids = tokenise("A liver, a Liver")
    assert (ids[0], ids[-1]) == (49406, 49407)
    assert (ids[1], ids[2]) == (ids[4], ids[5])
    assert len(set(ids)) == 5
    assert all(0 < i < 49406 for i in ids[1:-1])


def test_a_tower_is_frozen_in_evaluation_mode(small):
    tower = random_tower(small)
    assert isinstance(tower, TextTower)
    assert not tower.training
