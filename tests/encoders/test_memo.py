import copy
import errno

import numpy as np
import pytest
import torch

from recap.encoders.memo import Memo
from recap.encoders.vit import Encoder
from recap.errors import InputError

PX = 70


def untouched(encoder, pixels):
    """Patches after the tapped layers, always computed."""
    return encoder.patches(encoder.compute(pixels, encoder.layers))


@pytest.fixture
def encoder(tiny_encoder):
    """encoder(**changes): the tiny model as another frozen encoder."""

    def make(**changes):
        given = {"name": "tiny", "checksum": "tiny", "input_px": PX, **changes}
        return Encoder(tiny_encoder.model, **given)

    return make


@pytest.fixture
def pixels():
    return torch.rand(3, 3, PX, PX, generator=torch.Generator().manual_seed(0))


def test_an_image_is_encoded_once_and_comes_back_the_same(encoder, tmp_path, pixels):
    plain, remembering = encoder(), encoder()
    expected = torch.cat([plain.taps(image[None]) for image in pixels])
    remembering.memo = Memo(tmp_path)
    assert torch.equal(remembering.taps(pixels), expected)
    assert torch.equal(remembering.taps(pixels.flip(0)), expected.flip(0))
    assert remembering.memo.encoded == 3
    another = encoder()
    another.memo = Memo(tmp_path)
    assert torch.equal(another.taps(pixels[:1]), expected[:1])
    assert another.memo.encoded == 0


@pytest.mark.parametrize(
    "changes", [{"checksum": "other"}, {"layers": (2, 8)}, {"mean": (0.5, 0.5, 0.5)}]
)
def test_another_encoder_has_entries_of_its_own(encoder, tmp_path, pixels, changes):
    first, second = encoder(), encoder(**changes)
    first.memo, second.memo = Memo(tmp_path), Memo(tmp_path)
    first.taps(pixels[:1])
    expected = untouched(second, pixels[:1])
    assert torch.equal(second.taps(pixels[:1]), expected)
    assert second.memo.encoded == 1


@pytest.mark.parametrize(
    ("key", "value"), [("layer_norm_eps", 0.1), ("hidden_act", "relu"), ("num_attention_heads", 4)]
)
def test_the_same_weights_run_otherwise_have_entries_of_their_own(
    key, value, encoder, tmp_path, pixels
):
    first, second = encoder(), encoder()
    second.model = copy.deepcopy(first.model)
    setattr(second.model.config, key, value)
    first.memo, second.memo = Memo(tmp_path), Memo(tmp_path)
    first.taps(pixels[:1])
    second.taps(pixels[:1])
    assert second.memo.encoded == 1


def test_a_damaged_entry_is_made_anew(encoder, tmp_path, pixels):
    remembering = encoder()
    remembering.memo = Memo(tmp_path)
    expected = remembering.taps(pixels[:1])
    (file,) = tmp_path.rglob("*.npy")
    for content in (b"", file.read_bytes()[:200], np.lib.format.MAGIC_PREFIX + b"nonsense"):
        file.write_bytes(content)
        assert torch.equal(remembering.taps(pixels[:1]), expected)
    assert remembering.memo.encoded == 4


def test_what_is_beyond_the_limit_is_encoded_every_time(encoder, tmp_path, pixels):
    remembering = encoder()
    expected = torch.cat([untouched(remembering, image[None]) for image in pixels])
    remembering.memo = Memo(
        tmp_path, limit_bytes=2.5 * remembering.compute(pixels[:1], remembering.layers).nbytes
    )
    for _ in range(2):
        assert torch.equal(remembering.taps(pixels), expected)
    assert len(list(tmp_path.rglob("*.npy"))) == 2
    assert remembering.memo.encoded == 3 + 1


def test_a_full_disk_ends_what_only_saves_time_and_is_told_of_else(
    encoder, tmp_path, pixels, monkeypatch
):
    remembering, tried = encoder(), []
    expected = torch.cat([untouched(remembering, image[None]) for image in pixels])

    def no_room(stream, tokens, allow_pickle):
        tried.append(tokens)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", no_room)
    remembering.memo = Memo(tmp_path / "optional", optional=True)
    for _ in range(2):
        assert torch.equal(remembering.taps(pixels), expected)
    assert len(tried) == 1
    remembering.memo = Memo(tmp_path / "wanted")
    with pytest.raises(InputError, match="the disk is full"):
        remembering.taps(pixels)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_all_tokens_of_other_layers_have_entries_of_their_own(encoder, tmp_path, pixels):
    remembering = encoder()
    remembering.memo = Memo(tmp_path)
    taps, layers = remembering.taps(pixels[:1]), remembering.layers
    for _ in range(2):
        for chosen in (layers, (1, 5)):
            found = remembering.hidden(pixels[:1], chosen)
            assert torch.equal(found, remembering.compute(pixels[:1], chosen))
    assert torch.equal(remembering.hidden(pixels[:1], layers)[:, :, 1:], taps)
    assert remembering.memo.encoded == 2


def test_random_weights_have_no_entries(tiny_encoder, encoder, tmp_path, pixels):
    """They are all called the same, whatever their seed and their size."""
    first, second = encoder(checksum="random"), encoder(checksum="random", layers=(1, 2, 3, 4))
    first.memo = second.memo = Memo(tmp_path)
    assert torch.equal(first.taps(pixels), untouched(first, pixels))
    hidden = second.hidden(pixels, second.layers)
    assert torch.equal(hidden, second.compute(pixels, second.layers))
    assert not any(tmp_path.rglob("*.npy"))
