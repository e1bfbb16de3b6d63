"""The ring: equal to the serial sum, the same bits on all ranks, and blame when a rank is missing."""

import threading

import pytest
import torch

from collective import Feedback, Group, MissingRanksError, TensorError, alone, ring_all_reduce
from collective import ring as ring_room
from tests.ranks import LIMIT_S, results, run_ranks

WORLDS = [1, 2, 3, 4, 5, 8]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.bfloat16,
    torch.float16,
]


def numbers(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return what a rank puts in."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return (torch.randn(count, generator=generator, dtype=torch.float64) * 100).to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def serial_sum(world_size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the sum as one process computes it, in the order of ranks."""
    exact = torch.int64 if dtype in (torch.int32, torch.int64) else torch.float64
    total = torch.zeros(count, dtype=exact)
    for rank in range(world_size):
        total += numbers(rank, count, dtype).to(exact)
    return total


def cases_of(world_size: int) -> list[tuple[torch.dtype, int]]:
    """Return dtypes with lengths at which chunks are empty or uneven; and one of many segments."""
    lengths = [0, 1, world_size - 1, world_size, world_size + 1, 10**3 + 3]
    return [(dtype, count) for dtype in DTYPES for count in lengths] + [(torch.float32, 10**6 + 3)]


@pytest.mark.parametrize("world_size", WORLDS)
def test_h7_ring_equals_the_serial_sum_for_any_world_and_length(world_size):
    """Every dtype and length gives the serial sum, and the same bits on all ranks."""
    cases = cases_of(world_size)

    def work(group: Group) -> list[torch.Tensor]:
        sums = []
        for dtype, count in cases:
            tensor = numbers(group.rank, count, dtype)
            ring_all_reduce(tensor, group)
            sums.append(tensor)
        return sums

    found = results(world_size, work)

    for (dtype, count), *by_rank in zip(cases, *found, strict=True):
        want = serial_sum(world_size, count, dtype)
        assert len({bits(tensor) for tensor in by_rank}) == 1
        if dtype.is_floating_point:
            # A half is rounded once from float32; float32 is added in another order than here.
            relative = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(dtype, 1e-6)
            torch.testing.assert_close(by_rank[0].to(torch.float64), want, rtol=relative, atol=1e-3)
        else:
            assert torch.equal(by_rank[0].to(torch.int64), want)


def test_h7_two_runs_give_the_same_bits():
    """The order of addition does not depend on who is faster."""

    def work(group: Group) -> torch.Tensor:
        tensor = numbers(group.rank, 300_000, torch.float32)
        ring_all_reduce(tensor, group)
        return tensor

    first, second = results(3, work), results(3, work)

    assert bits(first[0]) == bits(second[0])


def test_h7_layouts_and_leaves_are_summed_in_place():
    """A transposed view, a strided view and a leaf that requires a gradient get the sum."""

    def work(group: Group) -> list[torch.Tensor]:
        transposed = torch.full((3, 5), float(group.rank + 1)).t()
        strided = torch.zeros(10)[::2]
        strided += group.rank
        leaf = torch.ones(4, requires_grad=True)
        for tensor in (transposed, strided, leaf):
            ring_all_reduce(tensor, group)
        return [transposed, strided, leaf.detach()]

    for transposed, strided, leaf in results(3, work):
        assert torch.equal(transposed, torch.full((5, 3), 6.0))
        assert torch.equal(strided, torch.full((5,), 3.0))
        assert torch.equal(leaf, torch.full((4,), 3.0))


def test_small_segments_change_no_bit(monkeypatch):
    """Cutting a chunk into many segments gives the same sum."""
    whole = results(3, lambda group: _reduced(group, 10_000))
    monkeypatch.setattr(ring_room, "SEGMENT_BYTES", 64)

    cut = results(3, lambda group: _reduced(group, 10_000))

    assert [bits(tensor) for tensor in cut] == [bits(tensor) for tensor in whole]


def _reduced(group: Group, count: int, **options) -> torch.Tensor:
    tensor = numbers(group.rank, count, torch.float32)
    ring_all_reduce(tensor, group, **options)
    return tensor


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_narrow_wire_gives_all_ranks_the_same_bits(world_size):
    """bfloat16 on the way rounds at each hop, and every rank ends with what the others have."""
    found = results(world_size, lambda group: _reduced(group, 5_001, wire=torch.bfloat16))

    want = serial_sum(world_size, 5_001, torch.float32)
    size = sum(numbers(rank, 5_001, torch.float32).abs() for rank in range(world_size))
    assert len({bits(tensor) for tensor in found}) == 1
    assert torch.all((found[0] - want).abs() <= size * world_size * 2**-8)


def test_feedback_keeps_what_rounding_takes_away():
    """The mean over many reductions comes closer to the truth with feedback than without."""
    repeats = 200

    def work(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        feedback, kept, lost = Feedback(), torch.zeros(100), torch.zeros(100)
        for _ in range(repeats):
            tensor = torch.full((100,), 1.001 * (group.rank + 1))
            again = tensor.clone()
            ring_all_reduce(tensor, group, wire=torch.bfloat16, feedback=feedback)
            ring_all_reduce(again, group, wire=torch.bfloat16)
            kept += tensor
            lost += again
        return kept / repeats, lost / repeats

    want = 1.001 * 6
    for kept, lost in results(3, work):
        assert (kept - want).abs().max() < 2e-3 * want
        assert (kept - want).abs().max() < (lost - want).abs().max() / 5


@pytest.mark.parametrize(
    ("tensor", "options", "text"),
    [
        (torch.zeros(3, dtype=torch.bool), {}, "takes float32"),
        (torch.zeros(3, dtype=torch.float64), {"wire": torch.bfloat16}, "for float32 tensors"),
        (torch.zeros(3), {"wire": torch.float16}, "must be torch.bfloat16"),
        (torch.zeros(3), {"feedback": Feedback()}, "of use with wire"),
    ],
)
def test_what_cannot_be_summed_is_refused(tensor, options, text):
    """A dtype or wire that does not fit is refused before anything is sent."""
    with pytest.raises(TensorError, match=text):
        ring_all_reduce(tensor, alone(), **options)


def test_h6_a_rank_that_never_comes_is_named_by_the_others():
    """Two ranks wait for a third, which is alive: both errors name it and the limit."""
    is_over = threading.Barrier(3)

    def work(group: Group) -> None:
        try:
            if group.rank != 1:
                ring_all_reduce(torch.zeros(100), group, what="bucket 7")
        finally:
            is_over.wait(LIMIT_S)

    outcomes = run_ranks(3, work, timeout_s=1.0)

    assert outcomes[1] is None
    for outcome in (outcomes[0], outcomes[2]):
        assert isinstance(outcome, MissingRanksError)
        assert outcome.missing == (1,)
        assert "bucket 7" in str(outcome)
        assert "rank 1 of the run did not come within 1 s" in str(outcome)


def test_ranks_that_sum_unlike_tensors_are_told_so():
    """Rank 1 of 3 comes with another length: every rank fails, and its right neighbour says what came."""

    def work(group: Group) -> None:
        ring_all_reduce(torch.zeros(8 if group.rank == 1 else 9), group, what="bucket 3")

    outcomes = run_ranks(3, work)

    assert all(isinstance(outcome, MissingRanksError) for outcome in outcomes), outcomes
    assert "bucket 3" in str(outcomes[2])
    assert "rank 1 of the run came with 8 numbers (partial sums in float32" in str(outcomes[2])
    assert "where this one has 9 numbers" in str(outcomes[2])


def test_sums_of_infinities_warn_nobody():
    """Gradients of half floats overflow: inf - inf is NaN on all ranks, and no warning."""
    values = [torch.full((5,), torch.inf), torch.full((5,), -torch.inf)]

    def work(group: Group) -> torch.Tensor:
        tensor = values[group.rank].clone()
        ring_all_reduce(tensor, group, what="test")
        return tensor

    for found in results(2, work):
        assert found.isnan().all()
