"""Learned prompts against sequences put together by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from recap.config import EncoderSettings
from recap.encoders.text import load_text_tower
from recap.errors import InputError, WeightsError
from recap.methods._prompts import CONTEXT_TOKENS, LearnedPrompts, text_channels

PHRASES = (["fine", "quite all right"], ["ill", "not well", "sick"])
PLACES = ("end", "front", "middle")


@pytest.fixture(scope="module")
def tower(tiny_clip_folder):
    return load_text_tower(EncoderSettings(name=str(tiny_clip_folder)))


@pytest.fixture
def prompts(tower):
    torch.manual_seed(3)
    made = LearnedPrompts(tower, PHRASES, PLACES)
    torch.nn.init.normal_(made.context)
    return made


def by_hand(tower, phrase, place, context, causal=True):
    """One prompt, word by word."""
    ids = tower.tokenise([f"{phrase}."])[0].tolist()
    end = ids.index(int(tower.tokenise([""])[0, 1]))
    words = tower.embed(torch.tensor(ids))
    free, half = list(context), CONTEXT_TOKENS // 2
    start, name, rest = list(words[:1]), list(words[1 : end - 1]), list(words[end - 1 :])
    sequence = {
        "end": start + free + name + rest,
        "front": start + name + free + rest,
        "middle": start + free[:half] + name + free[half:] + rest,
    }[place]
    moved = [ids[0]] + [ids[1]] * CONTEXT_TOKENS + ids[1:]
    length = len(ids)
    embeddings = torch.stack(sequence[:length])[None]
    return tower.encode(embeddings, torch.tensor([moved[:length]]), causal=causal)[0]


def directions_by_hand(tower, prompts, places, causal=True):
    rows = []
    for first, group in ((0, PHRASES[0]), (len(PHRASES[0]), PHRASES[1])):
        features = []
        for p, place in enumerate(places):
            for n, phrase in enumerate(group):
                feature = by_hand(tower, phrase, place, prompts.context[p, first + n], causal)
                features.append(feature)
        mean = sum(features) / len(features)
        rows.append(mean / mean.norm())
    return torch.stack(rows)


def test_prompts_are_the_sequences_they_should_be(tower, prompts):
    expected = directions_by_hand(tower, prompts, PLACES)
    torch.testing.assert_close(prompts(tower), expected, rtol=1e-5, atol=1e-6)


def test_without_the_causal_mask_all_tokens_count(tower, prompts):
    seeing_all = LearnedPrompts(tower, PHRASES, PLACES, causal=False)
    seeing_all.context.data.copy_(prompts.context)
    assert seeing_all.order.shape[-1] == 77 > prompts.order.shape[-1]
    expected = directions_by_hand(tower, prompts, PLACES, causal=False)
    torch.testing.assert_close(seeing_all(tower), expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(seeing_all(tower), prompts(tower), atol=1e-3)


def test_every_context_learns_and_the_tower_does_not(tower, prompts):
    target = F.normalize(torch.randn(2, tower.projection_dim), dim=-1)
    (prompts(tower) * target).sum().backward()
    assert (prompts.context.grad.abs().amax(dim=(2, 3)) > 0).all()
    assert all(p.grad is None for p in tower.parameters())


def test_only_contexts_are_trained(prompts):
    count = sum(p.numel() for p in prompts.parameters())
    assert count == len(PLACES) * 5 * CONTEXT_TOKENS * 16 == prompts.context.numel()
    assert prompts.context.shape == (3, 5, 8, 16)


def test_contexts_start_small_and_by_the_seed(tower):
    torch.manual_seed(1)
    first = LearnedPrompts(tower, PHRASES, PLACES).context
    torch.manual_seed(1)
    assert torch.equal(first, LearnedPrompts(tower, PHRASES, PLACES).context)
    assert math.isclose(float(first.detach().std()), 0.02, rel_tol=0.1)


def test_a_prompt_that_is_too_long_is_named(tower):
    name = "a" * 70  # the tiny tokeniser counts letters
    with pytest.raises(InputError, match=r"aaa\.' has 73 tokens and 8 are added.*shorter name"):
        LearnedPrompts(tower, (["fine"], [name]), PLACES)


def test_an_encoder_without_text(tiny_encoder):
    with pytest.raises(WeightsError, match=r"tiny has no text tower.*clip-vit-b16"):
        text_channels(tiny_encoder)
