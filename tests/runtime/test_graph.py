"""What stands in the way of a graph is put aside, or told in one line."""

import logging

import pytest
import torch

from recap.errors import BundleError
from recap.methods.base import Output, Scorer
from recap.runtime.graph import output_names, quiet, trace, with_plain_flags


class Branching(Scorer):
    """Scores by the mean, or its double where a saved flag says so."""

    def __init__(self, encoder, doubled):
        super().__init__()
        self.encoder = encoder
        self.register_buffer("doubled", torch.tensor(doubled))
        self.register_buffer("memory", None)
        self.register_buffer("many", torch.tensor([True, False]))

    def forward(self, pixels):
        score = pixels.mean(dim=(1, 2, 3))
        return Output(2 * score if self.doubled else score, pixels[:, 0])


class Looking(Branching):
    """Branches on the image itself, which no graph can."""

    def forward(self, pixels):
        score = pixels.mean(dim=(1, 2, 3))
        return Output(2 * score if score.sum() > 1 else score, pixels[:, 0])


@pytest.mark.parametrize("doubled", [False, True])
def test_a_saved_flag_is_a_branch_that_is_known(doubled, tiny_encoder):
    model = Branching(tiny_encoder, doubled).eval()
    graph = trace(model).module()
    for count in (1, 3):
        pixels = torch.rand(count, 3, 70, 70)
        score, map = graph(pixels)
        assert torch.allclose(score, (2 if doubled else 1) * pixels.mean(dim=(1, 2, 3)))
        assert torch.equal(map, pixels[:, 0])


def test_plain_flags_leave_the_model_alone(tiny_encoder):
    model = Branching(tiny_encoder, True)
    copied = with_plain_flags(model)
    assert copied.doubled is True
    assert copied.encoder is model.encoder
    assert copied.memory is None
    assert torch.equal(copied.many, model.many)
    assert isinstance(model.doubled, torch.Tensor)
    assert "doubled" in model.state_dict()


def test_what_cannot_be_a_graph_is_told_in_one_line(tiny_encoder):
    with pytest.raises(
        BundleError, match=r"Looking cannot be made one graph \(.*--runtime"
    ) as told:
        trace(Looking(tiny_encoder, True).eval())
    assert "\n" not in str(told.value)


def test_outputs_are_named_in_order(tiny_encoder):
    assert output_names(Branching(tiny_encoder, True)) == ["score", "map"]


def test_quiet_ends(capsys, caplog):
    with quiet():
        print("noise")
        logging.getLogger("torch").error("noise")
    assert capsys.readouterr().out == ""
    assert not caplog.records
    logging.getLogger("torch").error("heard")
    print("heard")
    assert capsys.readouterr().out == "heard\n"
    with pytest.raises(ValueError, match="through"), quiet():
        raise ValueError("through")
    assert logging.root.manager.disable == 0
