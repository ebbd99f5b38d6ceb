import pytest
import torch

from recap.errors import SettingsError
from recap.methods.checkpoint import Checkpoint, Place
from recap.methods.training import choose_device


def test_auto_is_the_cpu_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_cuda_is_its_first_device(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(name) == torch.device("cuda:0")
    assert choose_device("cuda:1") == torch.device("cuda:1")


def test_cuda_without_cuda_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match="--device cpu"):
        choose_device("cuda")


def test_unknown_device_is_named():
    with pytest.raises(SettingsError, match="'banana'"):
        choose_device("banana")


def test_the_counter_of_steps_is_where_its_kernel_looks(tmp_path):
    """Of a fused Adam it is beside the parameters; `meta` stands for a GPU."""
    for fused, where in ((True, "meta"), (False, "cpu")):
        model = torch.nn.Linear(2, 1)
        optimiser = torch.optim.Adam(model.parameters(), fused=fused)
        model(torch.ones(1, 2)).sum().backward()
        optimiser.step()
        checkpoint = Checkpoint(tmp_path / str(fused), "mark")
        checkpoint.save(model, optimiser, Place(epoch=3))
        other = torch.nn.Linear(2, 1, device="meta")
        resumed = torch.optim.Adam(other.parameters())
        resumed.param_groups[0]["fused"] = fused
        assert checkpoint.restore(other, resumed) == Place(epoch=3)
        state = resumed.state[other.weight]
        assert (state["step"].device.type, state["exp_avg"].device.type) == (where, "meta")
