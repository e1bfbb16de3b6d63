"""bfloat16 between ranks: weights stay exact, and what rounding takes away comes back."""

import pytest
import torch
from torch import nn

from collective import (
    Feedback,
    Group,
    ParameterAverager,
    Reducer,
    Summer,
    hierarchical_all_reduce,
    make_levels,
    plan_buckets,
    plan_text,
)
from collective.algorithm import Choice
from tests.ranks import results

STEPS = 200
GRADIENT = 1.001
"""Which bfloat16 has not: its neighbours are 1 and 1.0078."""

WEIGHTS = (257.0, 3.0)
"""Of two ranks; the sum and the first are no bfloat16 either."""


def net_of(value: float) -> nn.Linear:
    """Return a model of eight weights."""
    net = nn.Linear(8, 1, bias=False)
    nn.init.constant_(net.weight, value)
    return net


def averaged(net: nn.Linear, reducer: Reducer, *, weight: float, gradient: float) -> torch.Tensor:
    """Return the average gradient of a step in which a rank's is given; check the divisor."""
    net.zero_grad()
    reducer.begin(weight)
    net(torch.full((1, 8), gradient)).sum().backward()
    assert reducer.wait() == sum(WEIGHTS)
    assert net.weight.grad is not None
    return net.weight.grad.clone()


@pytest.mark.parametrize("choice", ["ring", "hierarchical"])
def test_gradients_come_to_their_mean_and_weights_are_exact(choice: Choice) -> None:
    """The divisor is right in each step, and the mean of many averages where one alone is off."""

    def work(group: Group) -> tuple[float, float]:
        nodes = 1 if choice == "hierarchical" else None
        summer = Summer(group, choice, inter_nranks=nodes, wire=torch.bfloat16)
        net = net_of(0.0)
        reducer = Reducer(summer, plan_buckets(net.named_parameters()))
        weight, kept = WEIGHTS[group.rank], torch.zeros(1, 8)
        first = averaged(net, reducer, weight=weight, gradient=GRADIENT)
        kept += first
        for _ in range(STEPS - 1):
            kept += averaged(net, reducer, weight=weight, gradient=GRADIENT)
        reducer.close()
        return (first - GRADIENT).abs().max().item(), (kept / STEPS - GRADIENT).abs().max().item()

    for alone, together in results(2, work):
        assert alone < 2**-7
        assert together < alone / 5


def test_a_gradient_that_is_no_number_is_not_kept() -> None:
    """After a step that overflowed, such as one whose loss was scaled too far, the next one is whole."""

    def work(group: Group) -> list[bool]:
        net = net_of(0.0)
        summer = Summer(group, "ring", wire=torch.bfloat16)
        reducer = Reducer(summer, plan_buckets(net.named_parameters()))
        weight = WEIGHTS[group.rank]
        found = [
            bool(averaged(net, reducer, weight=weight, gradient=gradient).isfinite().all())
            for gradient in (float("inf"), float("nan"), GRADIENT)
        ]
        reducer.close()
        return found

    assert results(2, work) == [[False, False, True]] * 2


def test_averaged_parameters_are_not_scaled_by_a_rounded_weight() -> None:
    """Equal parameters stay what they are: the weights that they are divided by are whole."""

    def work(group: Group) -> float:
        net = net_of(1.0)
        summer = Summer(group, "ring", wire=torch.bfloat16)
        averager = ParameterAverager(summer, plan_buckets(net.named_parameters()), every=1)
        values = []
        for _ in range(STEPS):
            averager.step(WEIGHTS[group.rank])
            values.append(net.weight.max().item())
        return sum(values) / len(values)

    for mean in results(2, work):
        assert mean == pytest.approx(1.0, abs=2e-3)


def test_with_one_node_nothing_is_rounded() -> None:
    """A narrow wire is for what goes between nodes; where there is one, the sum is that of float32."""

    def work(group: Group) -> torch.Tensor:
        levels = make_levels(group, inter_nranks=2)
        tensor = torch.full((5,), GRADIENT)
        hierarchical_all_reduce(tensor, levels, wire=torch.bfloat16, feedback=Feedback())
        return tensor

    for found in results(2, work):
        assert torch.equal(found, torch.full((5,), GRADIENT) * 2)


def test_the_plan_says_in_what_gradients_travel() -> None:
    """The lines of the plan name the narrow dtype."""

    def work(group: Group) -> str:
        buckets = plan_buckets(net_of(0.0).named_parameters())
        return plan_text(buckets, Summer(group, "ring", wire=torch.bfloat16))

    assert results(1, work) == [
        "bucket 0: 0.000 MiB by ring as bfloat16: weight .. weight (1 parameters)"
    ]
