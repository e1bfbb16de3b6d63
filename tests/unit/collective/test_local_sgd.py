"""Local SGD: own steps and averaged parameters, against a slow copy of every rank in one process."""

import copy

import pytest
import torch
from torch import nn

from collective import Group, ParameterAverager, Summer, plan_buckets
from tests.ranks import results
from tests.unit.collective.test_fusion import batch, model, step_of


def own_step(net: nn.Module, step: int, rank: int, samples: int) -> None:
    """Take one rank's own step."""
    inputs, targets = batch(step, rank, samples)
    net.zero_grad()
    nn.functional.mse_loss(net(inputs), targets).backward()
    step_of(net)


def train_ranks(batches: list[list[int]], every: int) -> list[list[torch.Tensor]]:
    """Train each rank on its batches (samples by rank and step); return parameters by rank."""

    def work(group: Group) -> list[torch.Tensor]:
        net = model()
        buckets = plan_buckets(net.named_parameters(), fuse_mb=1e-4, last_mb=1e-4)
        averager = ParameterAverager(Summer(group, "ring"), buckets, every=every)
        for step, samples in enumerate(batches[group.rank]):
            own_step(net, step, group.rank, samples)
            assert averager.step(samples) == ((step + 1) % every == 0)
        while averager.without_batch():
            pass
        return [parameter.detach() for parameter in net.parameters()]

    return results(len(batches), work)


def train_copies(batches: list[list[int]], every: int) -> list[torch.Tensor]:
    """Do the same with a copy of the model a rank, in one thread: the oracle."""
    nets = [model() for _ in batches]
    for begin in range(0, max(map(len, batches)), every):
        weights = [sum(mine[begin : begin + every]) for mine in batches]
        for rank, mine in enumerate(batches):
            for step, samples in list(enumerate(mine))[begin : begin + every]:
                own_step(nets[rank], step, rank, samples)
        with torch.no_grad():
            states = [copy.deepcopy(list(net.parameters())) for net in nets]
            for net in nets:
                for place, parameter in enumerate(net.parameters()):
                    weighed = [w * state[place] for w, state in zip(weights, states, strict=True)]
                    parameter.copy_(torch.stack(weighed).sum(0) / sum(weights))
    return [parameter.detach() for parameter in nets[0].parameters()]


@pytest.mark.parametrize(
    ("batches", "every"),
    [
        ([[4] * 6], 2),
        ([[8, 8, 8], [8, 8, 8]], 1),
        ([[3, 9, 1, 5, 5, 5], [7, 2, 5, 4, 4, 4], [4] * 6], 3),
        ([[4] * 5, [4] * 5, [4] * 8], 2),
        ([[4] * 2, [3] * 9], 4),
    ],
)
def test_ranks_equal_copies_that_are_averaged(batches, every):
    """By samples, every k steps and at the end; with uneven numbers of batches too."""
    found = train_ranks(batches, every)

    for parameters in found:
        for mine, first, want in zip(
            parameters, found[0], train_copies(batches, every), strict=True
        ):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-6)


def test_an_average_without_samples_leaves_parameters_alone():
    """If nobody trained on anything, every rank keeps what it has, and hears that others go on."""

    def work(group: Group) -> tuple[bool, float]:
        net = nn.Linear(1, 1, bias=False)
        nn.init.constant_(net.weight, 3.0)
        averager = ParameterAverager(
            Summer(group, "ring"), plan_buckets(net.named_parameters()), every=1
        )
        went_on = averager.step(0.0) if group.rank else averager.without_batch()
        assert not averager.without_batch()
        return went_on, net.weight.item()

    assert results(2, work) == [(True, 3.0), (True, 3.0)]
