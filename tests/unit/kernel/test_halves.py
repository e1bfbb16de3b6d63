"""What ``kernel.halves`` promises: exact where 16 bits are enough, and unbiased where they are not."""

import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pserver.kernel import halves
from tests.reference_half import DTYPES, LARGEST, POSITIVE, nearest, neighbours, value_of

KINDS = {"bfloat16": halves.BFLOAT16, "float16": halves.FLOAT16}
ALL = np.arange(2**16, dtype=np.uint16)
DRAWS = 50 if os.environ.get("NUMBA_DISABLE_JIT", "0") == "0" else 1  # of 65,536 numbers, each

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
small = st.floats(-(2.0**-13), 2.0**-13, width=32)  # around the subnormal numbers of float16

pytestmark = pytest.mark.parametrize("dtype", DTYPES)


def widen(dtype: str, bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    out = np.empty(bits.size, np.float32)
    halves.gather(bits, 1, KINDS[dtype], np.arange(bits.size), 1, out)
    return out


def rounded(dtype: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = np.empty(values.size, np.uint16)
    halves.put(values, 1, 1, KINDS[dtype], np.arange(values.size), bits)
    return value_of(dtype, bits)


def by_chance(
    dtype: str,
    values: NDArray[np.float32],
    *,
    dim: int = 1,
    keys: NDArray[np.uint64] | None = None,
    seed: int = 5,
    version: int = 9,
) -> NDArray[np.float32]:
    """Round (U * dim,) values of keys, by default 0, 1, 2, ..."""
    count = values.size // dim
    named = np.arange(count, dtype=np.uint64) if keys is None else keys
    named.flags.writeable = False
    bits = np.empty(values.size, np.uint16)
    chance = (np.uint64(seed), np.uint64(version))
    halves.put_by_chance(values, dim, dim, KINDS[dtype], np.arange(count), named, *chance, bits)
    return value_of(dtype, bits)


def test_every_half_is_widened_to_what_it_stands_for(dtype: str) -> None:
    """All 65,536 of them, infinities and NaN included."""
    np.testing.assert_array_equal(widen(dtype, ALL), value_of(dtype, ALL))


def test_every_half_is_kept_as_it_is_when_it_is_written_back(dtype: str) -> None:
    """A number that 16 bits hold is not changed by either rounding, whatever the draw."""
    values = value_of(dtype, ALL)
    values = values[np.isfinite(values)]

    assert np.array_equal(rounded(dtype, values).view(np.uint32), values.view(np.uint32))
    for version in range(DRAWS):
        kept = by_chance(dtype, values, version=version)
        assert np.array_equal(kept.view(np.uint32), values.view(np.uint32))


@given(value=st.one_of(numbers, small))
def test_the_nearest_half_is_that_of_the_list(dtype: str, value: float) -> None:
    """As a search among all values there are; of two equally near ones the even one."""
    (got,) = rounded(dtype, np.array([value], np.float32)).tolist()

    assert got == nearest(dtype, value)
    assert math.copysign(1.0, got) == math.copysign(1.0, value)


@given(place=st.integers(0, 2**15 - 2**10), sign=st.sampled_from([-1.0, 1.0]))
def test_the_nearest_half_is_the_even_one_when_both_are_as_near(
    dtype: str, place: int, sign: float
) -> None:
    """The number in the middle of each two neighbours goes to the one with even bits."""
    values = POSITIVE[dtype]
    place = min(place, values.size - 2)
    middle = sign * (values[place] + values[place + 1]) / 2
    if np.float32(middle) != middle:
        return  # below the smallest float32

    (got,) = rounded(dtype, np.array([middle], np.float32)).tolist()

    assert got == sign * values[place + place % 2]


@given(value=st.one_of(numbers, small), version=st.integers(0, 2**40))
def test_chance_takes_one_of_the_two_neighbours(dtype: str, value: float, version: int) -> None:
    """Never another one, and never infinity."""
    got = by_chance(dtype, np.full(64, value, np.float32), version=version)

    assert set(got.tolist()) <= set(neighbours(dtype, value))
    assert np.isfinite(got).all()


@given(value=st.one_of(st.floats(-1e4, 1e4, width=32), small))
def test_the_mean_over_keys_is_the_number(dtype: str, value: float) -> None:
    """Over 2^14 keys the mean is off by less than six deviations: rounding by chance has no bias."""
    count = 1 << 14
    low, high = neighbours(dtype, value)

    got = by_chance(dtype, np.full(count, value, np.float32)).astype(np.float64)

    share = 0.0 if low == high else (value - low) / (high - low)
    deviation = abs(high - low) * math.sqrt(share * (1.0 - share) / count)
    # 2^-17 of a step is how finely a draw divides it.
    assert abs(got.mean() - value) <= 6.0 * deviation + abs(high - low) * 2.0**-17


def test_the_mean_over_versions_is_the_number(dtype: str) -> None:
    """One key rounds up in its share of the pushes, so small steps add up on one row too."""
    value = np.full(256, 1.0 + 2.0**-11 if dtype == "float16" else 1.0 + 2.0**-9, np.float32)
    low, high = neighbours(dtype, float(value[0]))

    ups = [np.mean(by_chance(dtype, value, dim=256, version=v) == high) for v in range(100)]

    expected = (float(value[0]) - low) / (high - low)
    assert np.mean(ups) == pytest.approx(expected, abs=6 * 0.5 / math.sqrt(25_600))


def test_draws_of_a_row_do_not_follow_each_other(dtype: str) -> None:
    """Positions of a row, rows of a push and pushes of a row round apart from each other."""
    value = np.full(4096 * 8, 1.0 + 2.0 ** (-11 if dtype == "float16" else -8), np.float32)
    ups = [by_chance(dtype, value, dim=8, version=v).reshape(-1, 8) > value[0] for v in range(3)]
    series = np.column_stack([*ups]).astype(np.float64)  # (4096, 24)

    correlation = np.corrcoef(series, rowvar=False) - np.eye(24)

    assert np.abs(correlation).max() < 6.0 / math.sqrt(4096)


def test_the_bits_are_the_same_when_it_is_done_again(dtype: str) -> None:
    """They depend on key, seed, version and position, each of which changes them, and on no order."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal(400).astype(np.float32)
    keys = rng.integers(0, 2**64, 100, np.uint64)
    order = rng.permutation(100)

    once = by_chance(dtype, values, dim=4, keys=keys.copy())
    again = by_chance(dtype, values, dim=4, keys=keys.copy())
    shuffled = by_chance(
        dtype, values.reshape(100, 4)[order].reshape(-1).copy(), dim=4, keys=keys[order]
    )

    assert np.array_equal(once, again)
    assert np.array_equal(once.reshape(100, 4)[order].reshape(-1), shuffled)
    for changed in (
        by_chance(dtype, values, dim=4, keys=keys + np.uint64(1)),
        by_chance(dtype, values, dim=4, keys=keys.copy(), seed=6),
        by_chance(dtype, values, dim=4, keys=keys.copy(), version=10),
    ):
        assert not np.array_equal(once, changed)


def test_no_number_becomes_infinite_or_nan(dtype: str) -> None:
    """What is beyond the largest number, infinity too, is the largest; NaN stays NaN."""
    huge = np.array([1e6, -1e6, 3e38, -3.4e38, np.inf, -np.inf, 65519.9, 65520.0], np.float32)

    near, chance = rounded(dtype, huge), by_chance(dtype, huge)

    for got in (near, chance):
        assert np.isfinite(got).all()
        assert np.array_equal(np.sign(got), np.sign(huge))
    assert abs(near[2]) == (LARGEST[dtype] if dtype == "float16" else nearest(dtype, 3e38))
    assert near[4:6].tolist() == [LARGEST[dtype], -LARGEST[dtype]]
    nan = np.full(64, np.nan, np.float32)
    assert np.isnan(rounded(dtype, nan)).all()
    assert np.isnan(by_chance(dtype, nan)).all()


def test_rows_without_an_id_are_left_alone_when_weights_are_gathered(dtype: str) -> None:
    """-1 means no row; a wider block keeps what stands behind the weights."""
    out = np.full(3 * 4, 7.0, np.float32)

    halves.gather(ALL[:6], 2, KINDS[dtype], np.array([2, -1, 0]), 4, out)

    expected = np.full((3, 4), 7.0, np.float32)
    expected[0, :2] = value_of(dtype, ALL[4:6])
    expected[2, :2] = value_of(dtype, ALL[:2])
    assert np.array_equal(out.reshape(3, 4), expected)


def test_named_rows_of_a_block_are_rounded_in_place(dtype: str) -> None:
    """The others stay as they are."""
    block = np.random.default_rng(0).standard_normal(12).astype(np.float32)
    expected = block.copy()
    expected[3:6] = rounded(dtype, block[3:6])

    halves.round_rows(block, 3, KINDS[dtype], np.array([1]))

    assert np.array_equal(block, expected)


def test_state_goes_behind_the_weights_and_back(dtype: str) -> None:
    """Its floats are not rounded."""
    del dtype
    state = np.random.default_rng(0).standard_normal(10).astype(np.float32)
    block, back = np.zeros(3 * 5, np.float32), np.zeros(10, np.float32)
    ids = np.array([4, 0, 2])

    halves.gather_state(state, 2, ids, 5, block)
    halves.put_state(block, 5, 2, ids, back)

    rows = block.reshape(3, 5)
    assert np.array_equal(rows[:, 3:], state.reshape(5, 2)[ids])
    assert not rows[:, :3].any()
    assert np.array_equal(back.reshape(5, 2)[ids], state.reshape(5, 2)[ids])
