"""Files of torch are read without being run, and hold the numbers that torch wrote."""

import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch

from recap.encoders.torch_file import is_torch_file, read_tensors
from recap.errors import WeightsError


@pytest.fixture
def state():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).half()
    return model.state_dict() | {
        "turned": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        "part": torch.arange(10.0)[3:7],
        "short": torch.randn(5).bfloat16(),
        "flag": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
    }


def write_zip(state, path):
    torch.save(state, path)


def write_stream(state, path):
    torch.save(state, path, _use_new_zipfile_serialization=False)


def write_pickle(state, path):
    path.write_bytes(pickle.dumps(state, 4))


def write_training(state, path):
    state = OrderedDict((f"module.{name}", tensor) for name, tensor in state.items())
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1, "betas": (0, 1)}}, path)


@pytest.mark.parametrize("write", [write_zip, write_stream, write_pickle, write_training])
def test_every_form_gives_the_tensors_that_were_saved(write, state, tmp_path):
    write(state, tmp_path / "model.pt")
    assert is_torch_file(tmp_path / "model.pt")
    read = read_tensors(tmp_path / "model.pt")
    assert list(read) == list(state)
    for name, tensor in state.items():
        exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        np.testing.assert_array_equal(read[name], exact.numpy())
        assert read[name].dtype == exact.numpy().dtype


def test_parameters_and_buffers_of_a_scripted_model_are_read(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval()
    torch.jit.script(model).save(str(tmp_path / "scripted.pt"))
    read = read_tensors(tmp_path / "scripted.pt")
    assert read.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(read[name], tensor.numpy())


class Attack:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "attack",
    [
        Attack(os.mkdir, "made"),
        Attack(eval, "open('made', 'w')"),
        Attack(getattr, "text", "upper"),
        {"weight": torch.zeros(2), "more": Attack(os.mkdir, "made")},
    ],
)
@pytest.mark.parametrize("write", [write_zip, write_stream, write_pickle])
def test_a_file_that_would_run_something_is_refused(write, attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(attack, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match=r"model\.pt"):
        read_tensors(tmp_path / "model.pt")
    assert not (tmp_path / "made").exists()


def test_every_truncation_is_an_error(state, tmp_path):
    for write in (write_zip, write_stream, write_pickle):
        write(state, tmp_path / "whole.pt")
        content = (tmp_path / "whole.pt").read_bytes()
        for share in (0.0, 0.02, 0.3, 0.7, 0.99):
            (tmp_path / "part.pt").write_bytes(content[: int(share * len(content))])
            with pytest.raises(WeightsError):
                read_tensors(tmp_path / "part.pt")


def test_damaged_bytes_give_an_error_or_tensors_never_anything_else(state, tmp_path):
    write_pickle(state, tmp_path / "whole.pt")
    content = bytearray((tmp_path / "whole.pt").read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = content.copy()
        for place in rng.integers(0, len(content), 3):
            damaged[place] = rng.integers(0, 256)
        (tmp_path / "damaged.pt").write_bytes(damaged)
        try:
            read = read_tensors(tmp_path / "damaged.pt")
        except WeightsError:
            continue
        assert all(isinstance(array, np.ndarray) for array in read.values())


def test_tensors_may_not_reach_beyond_their_storage(tmp_path):
    rebuild, (storage, _, _, stride, *rest) = torch.zeros(4).__reduce_ex__(2)
    for offset, shape in ((2, (4,)), (0, (5,)), (-1, (1,)), (0, (2**47,))):
        attack = {"weight": Attack(rebuild, storage, offset, shape, stride, *rest)}
        write_pickle(attack, tmp_path / "model.pt")
        with pytest.raises(WeightsError):
            read_tensors(tmp_path / "model.pt")


def test_a_compressed_archive_is_refused_before_it_is_unpacked(state, tmp_path):
    write_zip(state, tmp_path / "model.pt")
    with (
        zipfile.ZipFile(tmp_path / "model.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in plain.namelist():
            bomb.writestr(name, plain.read(name))
    with pytest.raises(WeightsError):
        read_tensors(tmp_path / "bomb.pt")
