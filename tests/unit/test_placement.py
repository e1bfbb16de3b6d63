"""What ``placement`` promises: each key has one shard, and every function agrees which."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver import placement
from pserver.errors import ConfigError
from pserver.placement import (
    NUM_PARTITIONS,
    SHARDS_MAX,
    first_foreign,
    partition_of,
    partitions_of_shard,
    shard_of,
    shard_of_partition,
)
from tests.reference import EDGE_KEYS, key_at
from tests.reference import partition_of as slow_partition_of

keys_strategy = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from(EDGE_KEYS), max_size=40)


@given(keys_strategy)
def test_the_partition_is_the_top_of_the_hash_when_computed(keys: list[int]) -> None:
    """It is the top ten bits of mix64, which is part of the format."""
    partitions = partition_of(np.array(keys, np.uint64))

    assert partitions.dtype == np.int32
    assert partitions.tolist() == [slow_partition_of(key) for key in keys]


def test_every_partition_has_keys_when_they_are_many() -> None:
    """Consecutive keys, and keys with a slot in their top byte, fill all partitions evenly."""
    plain = np.arange(1 << 17, dtype=np.uint64)
    for keys in (plain, plain << np.uint64(10), plain % 8192 + (plain // 8192 << np.uint64(56))):
        counts = np.bincount(partition_of(keys), minlength=NUM_PARTITIONS)

        assert counts.min() > 128 - 6 * 128**0.5
        assert counts.max() < 128 + 6 * 128**0.5


@pytest.mark.parametrize("num_shards", [2, 3, 8])
def test_f1_shards_have_even_shares_when_keys_are_multiples_of_their_number(
    num_shards: int,
) -> None:
    """Keys modulo the shards would all be shard 0's; here no shard is 20 % from the mean."""
    keys = np.arange(20_000, dtype=np.uint64) * np.uint64(num_shards)

    counts = np.bincount(shard_of(keys, num_shards), minlength=num_shards)

    mean = keys.size / num_shards
    assert counts.sum() == keys.size
    assert abs(counts - mean).max() < 0.2 * mean


def test_shards_are_contiguous_and_even_when_there_are_any_number() -> None:
    """For each shard count all shards own a run, in order, and sizes differ by at most one."""
    for num_shards in range(1, SHARDS_MAX + 1):
        shards = shard_of_partition(num_shards)
        sizes = np.bincount(shards, minlength=num_shards)

        assert (np.diff(shards) >= 0).all()
        assert sizes.size == num_shards
        assert 1 <= sizes.max() - sizes.min() + 1 <= 2
        assert sizes.min() >= 1


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 1000, 1024])
def test_runs_tile_all_partitions_when_shards_are_asked_one_by_one(num_shards: int) -> None:
    """A shard's run is where shard_of_partition says so; the next one begins where it ends."""
    shards, end = shard_of_partition(num_shards), 0
    for shard in range(num_shards):
        begin, stop = partitions_of_shard(shard, num_shards)

        assert begin == end < stop
        assert (shards[begin:stop] == shard).all()
        end = stop
    assert end == NUM_PARTITIONS


@given(keys=keys_strategy, num_shards=st.integers(1, SHARDS_MAX), data=st.data())
def test_client_and_server_agree_when_a_key_is_routed(
    keys: list[int], num_shards: int, data: st.DataObject
) -> None:
    """first_foreign finds the first key that shard_of gives to another shard, and only that."""
    array = np.array(keys, np.uint64)
    owners = shard_of(array, num_shards)
    shard = data.draw(st.sampled_from(owners.tolist()) if keys else st.just(0))
    begin, end = partitions_of_shard(shard, num_shards)

    foreign = np.flatnonzero(owners != shard)

    assert ((owners >= 0) & (owners < num_shards)).all()
    assert first_foreign(array, begin, end) == (foreign[0] if foreign.size else -1)
    assert first_foreign(array[owners == shard], begin, end) == -1


def test_the_bounds_of_a_run_are_its_own_when_keys_lie_on_them() -> None:
    """The first and the last partition of a shard are inside, their neighbours outside."""
    begin, end = partitions_of_shard(1, 3)
    keys = [key_at(p, low) for p in (begin, end - 1) for low in (0, 2**54 - 1)]
    inside = np.array(keys, np.uint64)

    assert first_foreign(inside, begin, end) == -1
    for partition in (begin - 1, end):
        outside = np.array([inside[0], key_at(partition, 5)], np.uint64)
        assert first_foreign(outside, begin, end) == 1


@pytest.mark.parametrize("num_shards", [0, -1, 1025])
def test_a_shard_count_is_refused_when_it_is_out_of_range(num_shards: int) -> None:
    """A shard owns at least one partition; the error gives the range."""
    with pytest.raises(ConfigError, match=rf"num_shards must be in \[1, 1024\], got {num_shards}"):
        shard_of(np.zeros(1, np.uint64), num_shards)


def test_the_placement_is_the_format_when_years_have_passed() -> None:
    """Partitions of known keys and the version never change: checkpoints depend on them."""
    assert placement.PLACEMENT_VERSION == 1
    known = [0, 346, 723, 872, 944, 864]
    assert partition_of(np.array(EDGE_KEYS[:6], np.uint64)).tolist() == known
