"""Values that must be equal over ranks: given by rank 0, compared, and the rank that differs is named."""

import pytest
import torch

from collective import DivergedError, Group, check_same, gather, give_from_first
from tests.ranks import results, run_ranks

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)


def tensors(seed: int) -> list[tuple[str, torch.Tensor]]:
    """Return a tensor of each dtype, one number alone, and a transposed one; none are nothing special."""
    generator = torch.Generator().manual_seed(seed)
    made = [(str(t), torch.randn(5, 3, generator=generator).to(t)) for t in DTYPES]
    one = torch.tensor([float("nan"), -0.0, float("inf")][seed % 3])
    return [*made, ("one", one), ("turned", torch.randn(4, 2, generator=generator).t())]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_gets_the_bytes_of_rank_0(world_size):
    """Of any dtype and layout, NaN and minus zero included; then all are the same."""

    def work(group: Group) -> list[torch.Tensor]:
        mine = tensors(group.rank)
        give_from_first(mine, group)
        check_same(mine, group, what="now")
        return [tensor for _, tensor in mine]

    wanted = [tensor for _, tensor in tensors(0)]
    for found in results(world_size, work):
        for tensor, want in zip(found, wanted, strict=True):
            assert torch.equal(
                tensor.contiguous().view(-1).view(torch.uint8),
                want.contiguous().view(-1).view(torch.uint8),
            )


@pytest.mark.parametrize(
    ("world_size", "others", "text"),
    [
        (3, {1}, "step 7: .* rank 1 of 3 has another 'b' than rank 0, 2"),
        (4, {0, 2, 3}, "step 7: .* rank 1 of 4 has another 'b' than rank 0, 2, 3"),
        (2, {1}, "step 7: .* rank 1 of 2 has another 'b' than rank 0"),
    ],
)
def test_ranks_that_differ_from_most_are_named_on_all(world_size, others, text):
    """A single changed bit of one tensor is found, with its name, by every rank."""

    def work(group: Group) -> None:
        value = torch.tensor([1.0 if group.rank in others else 1.0 + 2**-23])
        check_same([("a", torch.ones(2)), ("b", value)], group, what="step 7")

    for outcome in run_ranks(world_size, work):
        assert isinstance(outcome, DivergedError)
        assert outcome.ranks == (1,)
        with pytest.raises(DivergedError, match=text):
            raise outcome


def test_models_that_differ_in_shape_are_refused_before_anything_is_written():
    """Rank 2 has another model than the others: all of them hear of it."""

    def work(group: Group) -> torch.Tensor:
        mine = torch.full((3 if group.rank == 2 else 2,), float(group.rank))
        with pytest.raises(
            DivergedError, match="rank 2 of 3 has another 'names, shapes or dtypes'"
        ):
            give_from_first([("weight", mine)], group)
        return mine

    assert [tensor.tolist() for tensor in results(3, work)] == [[0, 0], [1, 1], [2, 2, 2]]


def test_gathered_numbers_are_in_the_order_of_ranks():
    """Row r is what rank r had."""

    def work(group: Group) -> list[list[float]]:
        mine = torch.tensor([group.rank + 0.5, -1.0], dtype=torch.float64)
        return gather(mine, group, what="test").tolist()

    assert results(3, work) == [[[0.5, -1.0], [1.5, -1.0], [2.5, -1.0]]] * 3
