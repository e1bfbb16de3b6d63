"""Gradients in buckets: the joined batch's gradients, whatever the buckets, ways and ends are."""

import copy

import pytest
import torch
from torch import nn

from collective import Group
from collective.algorithm import Summer
from collective.fusion import Reducer, plan_buckets, plan_text
from tests.ranks import results


def _made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))


MODEL = _made()  # once: ranks are threads, and torch's generator is the process's


def model() -> nn.Module:
    """Return the same small model everywhere."""
    return copy.deepcopy(MODEL)


def batch(step: int, rank: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one rank's part of a step's batch."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randn(samples, 6, generator=generator),
        torch.randn(samples, 1, generator=generator),
    )


def train(net: nn.Module, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Take one step on the joined batch, without anybody else: the oracle."""
    inputs, targets = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
    net.zero_grad()
    nn.functional.mse_loss(net(inputs), targets).backward()
    step_of(net)


def step_of(net: nn.Module) -> None:
    """Take a step of plain gradient descent."""
    with torch.no_grad():
        for parameter in net.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)


def train_ranks(batches: list[list[int]], *, fuse_mb: float = 32.0, last_mb: float = 1.0):
    """Train each rank on its batches (samples by rank and step); return parameters by rank."""

    def work(group: Group) -> list[torch.Tensor]:
        net = model()
        buckets = plan_buckets(net.named_parameters(), fuse_mb=fuse_mb, last_mb=last_mb)
        reducer = Reducer(Summer(group, "ring"), buckets)
        for step, samples in enumerate(batches[group.rank]):
            inputs, targets = batch(step, group.rank, samples)
            net.zero_grad()
            reducer.begin(samples)
            nn.functional.mse_loss(net(inputs), targets).backward()
            reducer.wait()
            step_of(net)
        while reducer.without_batch():
            step_of(net)
        reducer.close()
        return [parameter.detach() for parameter in net.parameters()]

    return results(len(batches), work)


def train_one(batches: list[list[int]]) -> list[torch.Tensor]:
    """Train one process on the joined batches; a rank without a batch is left out."""
    net = model()
    for step in range(max(map(len, batches))):
        train(
            net, [batch(step, r, mine[step]) for r, mine in enumerate(batches) if step < len(mine)]
        )
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize("sizes", [(32.0, 1.0), (1e-4, 1e-5), (1e-9, 1e-9)])
@pytest.mark.parametrize(
    "batches",
    [
        [[8, 8, 8], [8, 8, 8]],
        [[3, 9, 1], [7, 2, 5], [4, 4, 4]],
    ],
)
def test_ranks_equal_one_process_on_the_joined_batch(batches, sizes):
    """Whatever the buckets and the samples of a rank, parameters are those of one process."""
    found = train_ranks(batches, fuse_mb=sizes[0], last_mb=sizes[1])

    for parameters in found:
        for mine, first, want in zip(parameters, found[0], train_one(batches), strict=True):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-6)


def test_h5_ranks_with_different_numbers_of_batches_end_well():
    """With 5, 5 and 8 batches the last three are averaged over the rank that has them."""
    batches = [[4] * 5, [4] * 5, [4] * 8]

    found = train_ranks(batches)

    for mine, want in zip(found[0], train_one(batches), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-6)


def test_gradient_merge_leaves_after_the_last_backward():
    """Two backward passes add up before one exchange: the mean of what both ranks added."""

    def work(group: Group) -> torch.Tensor:
        net = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(net.weight)
        reducer = Reducer(Summer(group, "ring"), plan_buckets(net.named_parameters()))
        reducer.begin(1.0, backwards=2)
        net(torch.tensor([[1.0 + group.rank]])).sum().backward()
        net(torch.tensor([[10.0]])).sum().backward()
        reducer.wait()
        reducer.close()
        assert net.weight.grad is not None
        return net.weight.grad

    for gradient in results(2, work):
        assert gradient.item() == (11.0 + 12.0) / 2


@pytest.mark.parametrize("takes_mean", [False, True])
def test_merges_of_different_length_count_by_their_weight(takes_mean):
    """Rank 0 adds up gradients 1 and 3 of 2 samples each, rank 1 has 5 of one sample, and ends."""

    def work(group: Group) -> float:
        net = nn.Linear(1, 1, bias=False)
        reducer = Reducer(Summer(group, "ring"), plan_buckets(net.named_parameters()))
        reducer.begin(0.0, backwards=2)
        mine = [5.0] if group.rank else [1.0, 3.0]
        for number, gradient in enumerate(mine, start=1):
            weight = 1.0 if group.rank else 2.0 * number
            reducer.weigh(weight, share=1.0 / number if takes_mean else 1.0)
            net(torch.tensor([[gradient]])).sum().backward()
        assert reducer.wait() == 5.0
        assert net.weight.grad is not None
        found = net.weight.grad.item()
        assert not reducer.without_batch()
        reducer.close()
        return found

    merged = (1.0 + 3.0) / (2.0 if takes_mean else 1.0)
    assert results(2, work) == [pytest.approx((4.0 * merged + 1.0 * 5.0) / 5.0)] * 2


def test_a_rank_at_its_end_goes_on_while_another_has_steps_without_samples():
    """Rank 1 has ended; rank 0 has a step of weight 0 and then one more: both are taken together."""

    def work(group: Group) -> list[float]:
        net = nn.Linear(1, 1, bias=False)
        reducer = Reducer(Summer(group, "ring"), plan_buckets(net.named_parameters()))
        totals = []
        if group.rank == 0:
            for weight in (0.0, 3.0):
                reducer.begin(weight)
                if weight:
                    net(torch.ones(1, 1)).sum().backward()
                totals.append(reducer.wait())
        while reducer.without_batch():
            totals.append(-1.0)
        reducer.close()
        return totals

    assert results(2, work) == [[0.0, 3.0], [-1.0, -1.0]]


def test_the_plan_follows_backward_and_ends_small():
    """The last layers leave first; the first layers come last, in a bucket of its own size."""
    net = model()
    summer = Summer(results(1, lambda group: group)[0], "ring")

    buckets = plan_buckets(net.named_parameters(), fuse_mb=32.0, last_mb=1e-4)

    assert [bucket.names for bucket in buckets] == [
        ("4.bias", "4.weight", "2.bias", "2.weight", "0.bias"),
        ("0.weight",),
    ]
    assert (
        plan_text(buckets, summer)
        .splitlines()[1]
        .startswith("bucket 1: 0.000 MiB by ring: 0.weight")
    )


def test_auto_measures_and_all_ranks_agree():
    """Every rank takes the same way for each size, and sums right."""

    def work(group: Group) -> tuple[list[str], float]:
        summer = Summer(group, "auto", inter_nranks=2)
        tensor = torch.full((1000,), float(group.rank))
        summer.sum(tensor, what="test")
        return [row.way for row in summer.table], tensor[0].item()

    found = results(4, work)

    assert all(outcome == found[0] for outcome in found)
    assert found[0][1] == 6.0
    assert len(found[0][0]) == 4
