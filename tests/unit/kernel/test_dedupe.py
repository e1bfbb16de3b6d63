"""What ``pserver.kernel.dedupe`` promises: distinct keys, the way back, and counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.arrays import Keys
from pserver.kernel.dedupe import dedupe
from tests.reference import EDGE_KEYS, unmix64

any_key = st.integers(0, 2**64 - 1) | st.sampled_from(EDGE_KEYS) | st.integers(0, 20)


def same_bucket_keys(count: int) -> Keys:
    """Return distinct keys whose hashes agree in their low 44 bits: one bucket, always."""
    return np.array([unmix64(high << 44 | 5) for high in range(count)], np.uint64)


def check(keys: Keys) -> None:
    """Assert all that ``Distinct`` says of itself, by Python's own dict."""
    seen: dict[int, int] = {}
    for key in keys.tolist():
        seen[key] = seen.get(key, 0) + 1

    distinct = dedupe(keys)

    assert distinct.keys.tolist() == list(seen)  # a dict keeps the order of first insertion
    assert distinct.counts.tolist() == list(seen.values())
    assert np.array_equal(distinct.keys[distinct.inverse], keys)
    arrays = (distinct.keys, distinct.inverse, distinct.counts)
    assert [array.dtype.name for array in arrays] == ["uint64", "int64", "uint32"]


@given(st.lists(any_key, max_size=300))
def test_keys_of_inverse_gives_the_batch_back(keys: list[int]) -> None:
    """Distinct keys stand in order of first occurrence, counted, and ``keys[inverse]`` is all."""
    check(np.array(keys, np.uint64))


@given(st.lists(st.integers(0, 40), max_size=200))
def test_batch_is_given_back_when_all_keys_collide(picks: list[int]) -> None:
    """Keys chosen to meet in one bucket are told apart."""
    check(same_bucket_keys(41)[picks])


def test_long_chains_are_walked_when_thousands_of_keys_collide() -> None:
    """Two thousand keys of one bucket, each twice, are still found."""
    keys = same_bucket_keys(2000)

    check(np.concatenate((keys, keys[::-1])))


def test_outputs_are_empty_when_there_are_no_keys() -> None:
    """An empty batch has no distinct keys."""
    distinct = dedupe(np.empty(0, np.uint64))

    assert distinct.keys.size == distinct.inverse.size == distinct.counts.size == 0


@pytest.mark.parametrize("count", [1, 8, 9, 16, 17, 32, 33])
def test_one_key_is_counted_when_it_fills_the_batch(count: int) -> None:
    """A batch of one key over and over has one distinct key, around each size of the table."""
    check(np.full(count, 2**64 - 1, np.uint64))
    check(np.arange(count, dtype=np.uint64))


def test_big_batches_agree_with_numpy() -> None:
    """A million skewed occurrences give what ``np.unique`` gives."""
    rng = np.random.default_rng(1)
    keys = (rng.zipf(1.2, 1_000_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).copy()

    distinct = dedupe(keys)

    expected, counts = np.unique(keys, return_counts=True)
    order = np.argsort(distinct.keys)
    assert np.array_equal(distinct.keys[order], expected)
    assert np.array_equal(distinct.counts[order], counts)
    assert np.array_equal(distinct.keys[distinct.inverse], keys)


def test_input_is_left_alone_when_it_is_read_only() -> None:
    """A read-only batch, such as a view of a message, is accepted and not written."""
    keys = np.array([3, 3, 1], np.uint64)
    keys.flags.writeable = False

    assert dedupe(keys).keys.tolist() == [3, 1]
