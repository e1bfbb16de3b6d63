"""Hierarchical all-reduce: equal to the serial sum for every way to cut a world into nodes."""

import pytest
import torch

from collective import Group, GroupError, hierarchical_all_reduce, make_levels
from tests.ranks import results, run_ranks
from tests.unit.collective.test_ring import bits, cases_of, numbers, serial_sum

NODES = [(1, 1), (2, 1), (3, 3), (4, 2), (8, 2), (8, 4)]


@pytest.mark.parametrize(("world_size", "inter_nranks"), NODES)
def test_it_equals_the_serial_sum_whatever_a_node_has(world_size, inter_nranks):
    """Every dtype and length gives the serial sum, and the same bits on all ranks."""
    cases = cases_of(world_size)

    def work(group: Group) -> list[torch.Tensor]:
        levels = make_levels(group, inter_nranks=inter_nranks)
        sums = []
        for dtype, count in cases:
            tensor = numbers(group.rank, count, dtype)
            hierarchical_all_reduce(tensor, levels)
            sums.append(tensor)
        return sums

    found = results(world_size, work)

    for (dtype, count), *by_rank in zip(cases, *found, strict=True):
        want = serial_sum(world_size, count, dtype)
        assert len({bits(tensor) for tensor in by_rank}) == 1
        if dtype.is_floating_point:
            relative = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(dtype, 1e-6)
            torch.testing.assert_close(by_rank[0].to(torch.float64), want, rtol=relative, atol=1e-3)
        else:
            assert torch.equal(by_rank[0].to(torch.int64), want)


@pytest.mark.parametrize(("world_size", "inter_nranks"), [(4, 2), (4, 1), (2, 2)])
def test_a_narrow_wire_gives_all_ranks_the_same_bits(world_size, inter_nranks):
    """bfloat16 on the way rounds, and every rank ends with what the others have."""

    def work(group: Group) -> torch.Tensor:
        tensor = numbers(group.rank, 5_001, torch.float32)
        levels = make_levels(group, inter_nranks=inter_nranks)
        hierarchical_all_reduce(tensor, levels, wire=torch.bfloat16)
        return tensor

    found = results(world_size, work)

    want = serial_sum(world_size, 5_001, torch.float32)
    size = sum(numbers(rank, 5_001, torch.float32).abs() for rank in range(world_size))
    assert len({bits(tensor) for tensor in found}) == 1
    assert torch.all((found[0] - want).abs() <= size * world_size * 2**-8)


@pytest.mark.parametrize("inter_nranks", [0, 2, 5])
def test_a_world_that_does_not_divide_is_refused(inter_nranks):
    """The error says which sizes of a node would do."""
    (outcome, *_) = run_ranks(3, lambda group: make_levels(group, inter_nranks=inter_nranks))

    assert isinstance(outcome, GroupError)
    assert f"one of [1, 3], got {inter_nranks}" in str(outcome)
