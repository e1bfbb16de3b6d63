"""Cuts: stages in a row are the model; what cannot be cut is refused with the reason."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from collective import GroupError, alone
from collective.pipeline_cut import Stage, StageEnd, cut_model, even_cuts
from tests.unit.collective.pipelined import Tower, batch


def through(stages: list[Stage], value: Tensor) -> Tensor:
    """Send a value through all stages."""
    values = (value,)
    for stage in stages:
        assert len(values) == len(stage.takes)
        values = stage.module(*values)
    return values[0]


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_stages_in_a_row_are_the_model(stages):
    """By names, or chosen: the same output, and each parameter in one stage under its own name."""
    model = Tower()
    inputs, _ = batch(4)
    named = [f"blocks.{i}" for i in range(1, stages)]

    for cut in (
        cut_model(model, stages, cuts=named),
        cut_model(model, stages, example=(inputs,), group=alone()),
    ):
        assert torch.equal(through(cut, inputs), model(inputs))
        names = [name for stage in cut for name, _ in stage.module.named_parameters()]
        assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_h4_a_value_that_a_later_stage_needs_goes_through_those_between():
    """The first block's output is needed by the head, so all stages hand it on."""
    stages = cut_model(Tower(), 3, cuts=["blocks.3", "blocks.6"])
    assert [len(stage.takes) for stage in stages] == [1, 3, 3]
    assert [len(stage.gives) for stage in stages] == [3, 3, 1]


def test_stages_end_where_the_model_says():
    """``StageEnd`` modules are the cuts, and their number is checked."""
    model = nn.Sequential(nn.Linear(6, 5), StageEnd(), nn.ReLU(), nn.Linear(5, 1))
    inputs, _ = batch(3)

    first, second = cut_model(model, 2)

    assert [name for name, _ in first.module.named_parameters()] == ["0.weight", "0.bias"]
    assert torch.equal(through([first, second], inputs), model(inputs))
    with pytest.raises(GroupError, match="3 stages need 2 StageEnd modules, got 1"):
        cut_model(model, 3)
    with pytest.raises(GroupError, match="nothing comes after the last StageEnd"):
        cut_model(nn.Sequential(nn.Linear(6, 5), StageEnd()), 2)


def test_chosen_cuts_put_two_large_layers_into_two_stages():
    """Neither by bytes nor by time may one stage hold both."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 600), nn.Linear(600, 600), nn.ReLU())
    model.append(nn.Linear(600, 600))
    first, second = cut_model(model, 2, example=(batch(2)[0],))
    assert "2.weight" in dict(first.module.named_parameters())
    assert "4.weight" in dict(second.module.named_parameters())


def test_chosen_cuts_leave_a_layer_that_is_used_twice_in_one_stage():
    """Cuts are only where no parameter is used on both sides; too few places are said."""
    layer = nn.Linear(6, 6)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, 1))
    _, second = cut_model(model, 2, example=(batch(2)[0],))
    assert [name for name, _ in second.module.named_parameters()] == ["3.weight", "3.bias"]
    with pytest.raises(GroupError, match="3 stages, but only 1 places"):
        cut_model(model, 3, example=(batch(2)[0],))


@pytest.mark.parametrize(
    ("loads", "parts", "wanted"),
    [
        ([1.0, 1.0, 1.0, 1.0], 2, 2.0),
        ([5.0, 1.0, 1.0, 1.0, 5.0], 3, 5.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, 9.0),
        ([0.0, 0.0, 1.0], 3, 1.0),
    ],
)
def test_even_cuts_make_the_heaviest_part_as_light_as_can_be(loads, parts, wanted):
    """Parts are runs, none is empty, and no other cuts have a lighter heaviest part."""
    cuts = even_cuts(loads, parts)
    bounds = [0, *cuts, len(loads)]
    sums = [sum(loads[a:b]) for a, b in itertools.pairwise(bounds)]
    assert len(cuts) == parts - 1
    assert bounds == sorted(set(bounds))
    assert max(sums) == wanted


class _Asks(nn.Module):
    @override
    def forward(self, value: Tensor) -> Tensor:
        return value if value.sum() > 0 else -value


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    @override
    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(value), self.b(value)


def _tied() -> nn.Module:
    model = Tower()
    model.get_submodule("blocks.7").inner = model.get_submodule("blocks.0").inner
    return model


@pytest.mark.parametrize(
    ("model", "cuts", "text"),
    [
        (Tower(), ["block.1"], "'block.1' is no module of the model; did you mean 'blocks.1'"),
        (Tower(), ["blocks"], "'blocks' is never called"),
        (Tower(), ["blocks.0"], "leaves the stage before it empty"),
        (Tower(), ["blocks.3", "blocks.2"], "'blocks.2' leaves the stage before it empty"),
        (Tower(), [], "give cuts, or an example batch"),
        (_Asks(), ["x"], "_Asks cannot be cut: tracing its forward failed"),
        (_Two(), ["b"], "_Two must return one tensor"),
        (
            _tied(),
            ["blocks.4"],
            "parameter blocks.0.inner.weight is used by stages 0 and 1",
        ),
    ],
)
def test_h4_what_cannot_be_cut_is_refused_with_the_reason(model, cuts, text):
    """Names, order, control flow, several outputs, tied weights: refused before anything runs."""
    with pytest.raises(GroupError, match=text):
        cut_model(model, max(2, len(cuts) + 1), cuts=cuts)


def test_running_means_are_not_moved_by_measuring():
    """Choosing cuts leaves the model's buffers as they were."""
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    cut_model(model, 2, example=(batch(4)[0],))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])
