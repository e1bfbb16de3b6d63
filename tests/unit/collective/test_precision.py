"""Half floats: near the float32 run, with small gradients kept by scaling and overflows skipped on all ranks."""

import functools

import pytest
import torch
from torch import Tensor, nn

from collective import Group, GroupError, Reducer, Summer, plan_buckets
from collective.precision import Kind, LossScale, MixedPrecision, ScaleRule
from collective.sharding import ShardedOptimizer
from tests.ranks import results, seeded

STEPS = 20
RULE = ScaleRule(first=1024.0)


def model() -> nn.Sequential:
    """Return the same model everywhere."""
    with seeded(5):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return a rank's batch."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator), torch.randn(4, 1, generator=generator)


def make_sgd(parameters):
    """Return the optimizer of the tests."""
    return torch.optim.SGD(parameters, lr=0.05)


def train_sharded(group: Group, kind: Kind) -> list[Tensor]:
    """Train with a shared optimizer."""
    net, precision = model(), MixedPrecision(kind, rule=RULE)
    optimizer = ShardedOptimizer(net.named_parameters(), make_sgd, group)
    for step in range(STEPS):
        inputs, targets = batch(step, group.rank)
        optimizer.zero_grad()
        with precision.forward():
            loss = nn.functional.mse_loss(net(inputs).float(), targets)
        precision.backward(loss)
        optimizer.step(len(inputs), scale=precision.scale)
    return [parameter.detach() for parameter in net.parameters()]


def train_averaged(group: Group, kind: Kind) -> list[Tensor]:
    """Train with averaged gradients and an optimizer on each rank."""
    net, precision = model(), MixedPrecision(kind, rule=RULE)
    reducer = Reducer(Summer(group, "ring"), plan_buckets(net.named_parameters()))
    optimizer = make_sgd(net.parameters())
    for step in range(STEPS):
        inputs, targets = batch(step, group.rank)
        optimizer.zero_grad()
        reducer.begin(len(inputs))
        with precision.forward():
            loss = nn.functional.mse_loss(net(inputs).float(), targets)
        precision.backward(loss)
        reducer.wait()
        if precision.scale is not None:
            precision.scale.take_off([p.grad for p in net.parameters() if p.grad is not None])
        optimizer.step()
    reducer.close()
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize("train", [train_sharded, train_averaged])
def test_half_floats_come_near_float32_on_all_ranks_alike(train):
    """bfloat16, and float16 with its loss scaled: the same bits on both ranks, near the float32 run."""
    wanted, _ = results(2, lambda group: train(group, "float32"))
    for kind, far in (("bfloat16", 2e-2), ("float16", 3e-3)):
        first, second = results(2, functools.partial(train, kind=kind))
        for one, other, want in zip(first, second, wanted, strict=True):
            assert one.dtype == torch.float32
            assert torch.equal(one, other)
            torch.testing.assert_close(one, want, atol=far, rtol=far)
            assert not torch.equal(one, want)


def test_an_overflow_on_one_rank_is_a_step_that_no_rank_makes():
    """The scale halves on both, whichever rank owns the chunk; the next step is made."""

    def work(group: Group) -> list[object]:
        net, precision = model(), MixedPrecision("float16", rule=RULE)
        optimizer = ShardedOptimizer(net.named_parameters(), make_sgd, group)
        before = [parameter.detach().clone() for parameter in net.parameters()]
        told: list[object] = []
        for step in range(2):
            optimizer.zero_grad()
            inputs, targets = batch(step, group.rank)
            precision.backward(nn.functional.mse_loss(net(inputs), targets))
            last = list(net.parameters())[-1].grad
            assert last is not None
            if step == 0 and group.rank == 1:
                last.fill_(torch.inf)
            assert precision.scale is not None
            optimizer.step(scale=precision.scale)
            same = all(map(torch.equal, net.parameters(), before))
            told += [same, precision.scale.value]
        return told

    assert results(2, work) == [[True, 512.0, False, 512.0]] * 2


def test_a_gradient_too_small_for_float16_is_kept_by_the_scale():
    """Without scaling it is 0 in float16."""
    tiny = 1e-8  # the smallest number of float16 is 6e-8
    plain, scaled = MixedPrecision("bfloat16"), MixedPrecision("float16")
    found: list[float] = []
    for precision in (plain, scaled):
        weight = nn.Parameter(torch.ones(1))
        precision.backward((weight.half() * torch.tensor([1.0]).half()).float().sum() * tiny)
        assert weight.grad is not None
        scale = 1.0 if precision.scale is None else precision.scale.value
        found.append(float(weight.grad) / scale)
    assert found[0] == 0.0
    assert found[1] == pytest.approx(tiny, rel=1e-2)


def test_the_scale_grows_and_shrinks_as_its_rule_says():
    """It doubles after 3 good steps, halves at the second overflow in a row, and stays at 1 at least."""
    scale = LossScale(ScaleRule(first=4.0, grow_every=3, shrink_after=2))
    found = []
    for is_made in (
        True,
        True,
        True,
        False,
        True,
        False,
        False,
        False,
        False,
        False,
        False,
        False,
        False,
    ):
        scale.update(is_made=is_made)
        found.append(scale.value)

    assert found == [4.0, 4.0, 8.0, 8.0, 8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    assert scale.skipped == 9


def test_a_scale_that_never_grows_stays():
    """With grow_every 0 overflows skip steps and change nothing else."""
    scale = LossScale(ScaleRule(first=4.0, grow_every=0))
    for is_made in (True, False, False):
        scale.update(is_made=is_made)

    assert (scale.value, scale.skipped) == (4.0, 2)


def test_an_unknown_kind_is_refused():
    """The message lists those that there are."""
    with pytest.raises(GroupError, match="one of float32, bfloat16, float16, got 'fp8'"):
        MixedPrecision("fp8")  # type: ignore[arg-type]
