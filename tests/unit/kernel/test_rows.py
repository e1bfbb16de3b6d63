"""What ``kernel.rows`` promises: each loop does what one line of numpy does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.kernel import rows

SIZES = (0, 1, 11, 12, 13, 47, 48, 49)  # around the rows that are asked for ahead


def slab_of(num_rows: int, stride: int) -> np.ndarray:
    """Return (num_rows * stride,) float32, all different."""
    return np.arange(1, num_rows * stride + 1, dtype=np.float32)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("dim", "stride"), [(1, 1), (3, 5), (16, 33), (70, 90)])
def test_gather_copies_the_weights_when_rows_are_there(count: int, dim: int, stride: int) -> None:
    """Gather takes the first dim floats of each named row, repeats included."""
    slab = slab_of(9, stride)
    row_ids = np.random.default_rng(count).integers(0, 9, count)
    out = np.zeros(count * dim, np.float32)

    rows.gather(slab, stride, dim, row_ids, out)

    assert np.array_equal(out.reshape(count, dim), slab.reshape(9, stride)[row_ids, :dim])


def test_gather_leaves_the_place_alone_when_there_is_no_row() -> None:
    """A row id of -1 writes nothing."""
    out = np.full(6, -5, np.float32)

    rows.gather(slab_of(4, 3), 3, 2, np.array([3, -1, 0]), out)

    assert out.tolist() == [10, 11, -5, -5, 1, 2]


@pytest.mark.parametrize("count", SIZES)
def test_assign_writes_weights_only_when_rows_have_state(count: int) -> None:
    """Assign writes the first dim floats of each named row, and nothing else."""
    slab = slab_of(50, 5)
    expected = slab.reshape(50, 5).copy()
    row_ids = np.random.default_rng(count).permutation(50)[:count]
    weights = -slab_of(count, 3)
    expected[row_ids, :3] = weights.reshape(count, 3)

    rows.assign(slab, 5, 3, row_ids, weights)

    assert np.array_equal(slab.reshape(50, 5), expected)


def test_the_last_one_stays_when_a_row_is_assigned_twice() -> None:
    """Of repeated row ids the last weights count."""
    slab = np.zeros(2, np.float32)

    rows.assign(slab, 1, 1, np.array([1, 0, 1]), np.array([7, 8, 9], np.float32))

    assert slab.tolist() == [8, 9]


@given(order=st.lists(st.integers(0, 7), max_size=40), dim=st.integers(1, 5))
def test_take_reads_rows_in_another_order_when_told(order: list[int], dim: int) -> None:
    """Take is ``block[order]``."""
    block = slab_of(8, dim)
    out = np.zeros(len(order) * dim, np.float32)

    rows.take(block, dim, np.array(order, np.int64), out)

    assert np.array_equal(out.reshape(-1, dim), block.reshape(8, dim)[order])


@given(order=st.permutations(range(12)), count=st.integers(0, 12), dim=st.integers(1, 5))
def test_put_undoes_take_when_the_order_is_the_same(order: list[int], count: int, dim: int) -> None:
    """What was taken in an order and put back by it stands where it was; the rest is untouched."""
    block, where = slab_of(12, dim), np.array(order[:count], np.int64)
    taken = np.zeros(count * dim, np.float32)
    out = np.zeros(12 * dim, np.float32)

    rows.take(block, dim, where, taken)
    rows.put(taken, dim, where, out)

    expected = np.zeros((12, dim), np.float32)
    expected[where] = block.reshape(12, dim)[where]
    assert np.array_equal(out.reshape(12, dim), expected)


@given(order=st.lists(st.integers(0, 4), max_size=20))
def test_pick_reads_keys_and_counts_in_another_order_when_told(order: list[int]) -> None:
    """Pick is ``keys[order]`` to the last bit, and so it is for counts."""
    keys = np.array([0, 1, 2**63, 2**64 - 1, 2**53 + 1], np.uint64)
    counts = np.array([0, 1, 2, 2**31, 2**32 - 1], np.uint32)
    where = np.array(order, np.int64)
    keys_out, counts_out = np.zeros(where.size, np.uint64), np.zeros(where.size, np.uint32)

    rows.pick(keys, where, keys_out)
    rows.pick_counts(counts, where, counts_out)

    assert np.array_equal(keys_out, keys[where])
    assert np.array_equal(counts_out, counts[where])


def test_stamp_writes_the_epoch_of_the_named_rows_when_they_change() -> None:
    """Only the named rows get the epoch."""
    epochs = np.zeros(5, np.uint32)

    rows.stamp(epochs, np.array([4, 1, 4]), np.uint32(2**32 - 1))

    assert epochs.tolist() == [0, 2**32 - 1, 0, 0, 2**32 - 1]


@given(row_ids=st.lists(st.integers(0, 199), max_size=60))
def test_first_repeat_is_the_second_occurrence_when_there_is_one(row_ids: list[int]) -> None:
    """It is the position of the first row id that came before, else -1; marks are zero again."""
    marks = np.zeros(4, np.uint64)

    found = rows.first_repeat(marks, np.array(row_ids, np.int64))

    repeats = [i for i, row_id in enumerate(row_ids) if row_id in row_ids[:i]]
    assert found == (repeats[0] if repeats else -1)
    assert not marks.any()


def test_first_repeat_finds_it_when_row_ids_share_a_word() -> None:
    """Row ids 0, 63, 64 and 127 are told apart; 63 again is found."""
    marks = np.zeros(2, np.uint64)

    assert rows.first_repeat(marks, np.array([0, 63, 64, 127])) == -1
    assert rows.first_repeat(marks, np.array([0, 63, 64, 127, 63, 0])) == 4


_LARGEST = np.finfo(np.float32).max.view(np.uint32)


def test_first_beyond_keeps_the_limit_itself_when_values_stand_around_it() -> None:
    """The limit passes with either sign; the next float above it does not."""
    limit = np.float32(1e15)
    values = np.array([limit, -limit, -np.nextafter(limit, np.float32(np.inf))], np.float32)

    assert rows.first_beyond(values[:2], limit.view(np.uint32)) == -1
    assert rows.first_beyond(values, limit.view(np.uint32)) == 2


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 130])
def test_first_beyond_is_exact_when_one_value_is_bad(size: int, bad: float) -> None:
    """Wherever it stands in blocks of 64, the bad value's own position is returned."""
    for position in range(size):
        values = np.ones(size, np.float32)
        values[position] = bad

        assert rows.first_beyond(values, _LARGEST) == position


def test_first_beyond_is_the_first_when_several_are_bad() -> None:
    """Of several bad values in one block or in two, the first counts."""
    values = np.zeros(200, np.float32)
    values[[70, 71, 190]] = np.nan, np.inf, -np.inf

    assert rows.first_beyond(values, _LARGEST) == 70


@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=200),
)
def test_first_beyond_finds_nothing_when_all_are_finite(values: list[float]) -> None:
    """No finite float is refused: not the largest, not a subnormal, not -0."""
    top = float(np.finfo(np.float32).max)
    edges = [top, -top, 1e-45, -1e-45, -0.0]

    assert rows.first_beyond(np.array(edges + values, np.float32), _LARGEST) == -1


@given(inverse=st.lists(st.integers(0, 5), max_size=40), dim=st.integers(1, 4))
def test_sum_repeats_adds_in_order_when_keys_repeat(inverse: list[int], dim: int) -> None:
    """The sum is to the bit the one that adding in order of occurrence gives."""
    rng = np.random.default_rng(len(inverse))
    grads = rng.normal(size=(len(inverse), dim)).astype(np.float32)
    out = np.zeros(6 * dim, np.float32)

    rows.sum_repeats(np.array(inverse, np.int64), grads.ravel(), dim, out)

    expected = np.zeros((6, dim), np.float32)
    for position, grad in zip(inverse, grads, strict=True):
        expected[position] += grad
    assert np.array_equal(out.reshape(6, dim), expected)
