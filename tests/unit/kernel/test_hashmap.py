"""What ``kernel.hashmap`` promises, on bare arrays; ``table.index`` is tested beside it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.kernel import hashmap
from tests.reference import EDGE_KEYS, MASK, key_at

EARLIEST = next(p for p in range(1024) if hashmap.limit_of(p, 4096) == 2048)
LATEST = max(range(1024), key=lambda p: hashmap.limit_of(p, 4096))


class Arrays:
    """The arrays of an index, and the kernels on them with lists in and out."""

    def __init__(self, rows_max: int = 256, buckets_max: int = 1 << 14) -> None:
        self.buckets = np.zeros(2 * buckets_max, np.uint64)
        self.heads = np.zeros((1024, 4), np.int64)
        self.counters = np.zeros(hashmap.COUNTERS, np.int64)
        self.free_rows = np.zeros(rows_max, np.int64)
        hashmap.open_partitions(self.heads, self.counters)

    def find(self, keys: list[int]) -> list[int]:
        row_ids = np.full(len(keys), -7)
        missing = hashmap.find(self.buckets, self.heads, np.array(keys, np.uint64), row_ids)
        assert missing == row_ids.tolist().count(-1)
        return row_ids.tolist()

    def insert(self, keys: list[int], start: int = 0) -> tuple[list[int], list[int]]:
        array = np.array(keys, np.uint64)
        row_ids, created = np.full(array.size, -7), np.full(array.size, -7)
        count = hashmap.find_or_insert(
            self.buckets,
            self.heads,
            self.counters,
            self.free_rows,
            array,
            start,
            row_ids,
            created,
        )
        return row_ids.tolist(), created[:count].tolist()

    def erase(self, keys: list[int]) -> int:
        array = np.array(keys, np.uint64)
        return hashmap.erase(self.buckets, self.heads, self.counters, self.free_rows, array)

    def entries(self, partition: int) -> dict[int, int]:
        size = self.heads[partition, hashmap.SIZE]
        keys, row_ids = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        assert hashmap.entries(self.buckets, self.heads, partition, keys, row_ids) == size
        return dict(zip(keys.tolist(), row_ids.tolist(), strict=True))


def test_find_says_missing_when_nothing_was_inserted() -> None:
    """In an empty index every key is missing, key 0 included."""
    arrays = Arrays()

    assert arrays.find(list(EDGE_KEYS)) == [-1] * len(EDGE_KEYS)
    assert not arrays.buckets.any()


def test_edge_keys_are_different_rows_when_inserted_together() -> None:
    """0, 1, -1, -2, 2^31, 2^32, 2^63 and their like each have a row of their own."""
    arrays = Arrays()

    row_ids, created = arrays.insert(list(EDGE_KEYS))

    assert row_ids == created == list(range(len(EDGE_KEYS)))
    assert arrays.find(list(EDGE_KEYS)) == row_ids
    assert arrays.find([2, MASK - 2, 2**33]) == [-1, -1, -1]


def test_a_repeated_key_has_one_row_when_both_are_new() -> None:
    """Repeats in one call get the row of the first, whose position alone is reported as new."""
    arrays = Arrays()

    row_ids, created = arrays.insert([5, 9, 5, 5, 9, 7])

    assert row_ids == [0, 1, 0, 0, 1, 2]
    assert created == [0, 1, 5]


def test_keys_before_the_start_are_left_alone_when_a_call_goes_on() -> None:
    """A call that starts at a position neither looks up nor writes what stands before it."""
    arrays = Arrays()

    row_ids, created = arrays.insert([5, 9, 7], start=1)

    assert row_ids == [-7, 0, 1]
    assert created == [1, 2]
    assert arrays.find([5]) == [-1]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33])
def test_all_keys_are_looked_up_when_there_are_few(count: int) -> None:
    """The loop that runs 16 keys ahead neither skips nor repeats a key, however few there are."""
    arrays = Arrays()
    keys = list(range(100, 100 + count))

    assert arrays.insert(keys) == (list(range(count)), list(range(count)))
    assert arrays.find(keys) == list(range(count))


def test_freed_row_ids_are_used_again_when_keys_come_back() -> None:
    """Row ids of erased keys go to the next new keys, before any fresh one."""
    arrays = Arrays()
    arrays.insert([10, 11, 12, 13])

    assert arrays.erase([11, 13, 11, 99]) == 2
    row_ids, _ = arrays.insert([20, 21, 22])

    assert sorted(row_ids) == [1, 3, 4]
    assert arrays.counters[hashmap.ROWS] == 5
    assert arrays.counters[hashmap.NEXT_ROW] == 5
    assert arrays.counters[hashmap.FREE_ROWS] == 0


@pytest.mark.parametrize("gone", range(5))
def test_the_others_are_found_when_one_of_a_run_over_the_end_is_erased(gone: int) -> None:
    """Whichever key of a run that wraps around its region goes, the others keep their rows."""
    for homes in itertools.product((6, 7, 0), repeat=5):
        keys = [key_at(LATEST, home | i << 3) for i, home in enumerate(homes)]
        arrays = Arrays(rows_max=8, buckets_max=1024 * 8)
        arrays.insert(keys)
        assert arrays.heads[LATEST, hashmap.MASK] == 7

        arrays.erase([keys[gone]])

        assert arrays.find(keys) == [-1 if i == gone else i for i in range(5)]
        assert arrays.entries(LATEST) == {k: i for i, k in enumerate(keys) if i != gone}


def test_probes_stay_short_when_keys_come_and_go() -> None:
    """Erasing leaves no mark: after many turns an emptied region is all empty."""
    arrays = Arrays()
    for turn in range(50):
        keys = [key_at(3, (turn * 5 + i) << 1) for i in range(4)]
        arrays.insert(keys)
        assert arrays.erase(keys) == 4

    assert not arrays.buckets[1::2].any()


@given(data=st.data(), partition=st.sampled_from([0, 1, 389, EARLIEST, LATEST, 1023]))
def test_the_kernels_follow_a_dict_when_all_keys_share_a_partition(
    data: st.DataObject, partition: int
) -> None:
    """Find, insert and erase do what a dict does, though runs are long and regions double."""
    pool = [key_at(partition, home | i << 8) for i in range(16) for home in (0, 1, 126, 254, 255)]
    calls = st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from(pool), max_size=30)), max_size=8
    )
    arrays = Arrays()
    expected: dict[int, int] = {}

    for is_insert, keys in data.draw(calls):
        if is_insert:
            row_ids, created = arrays.insert(keys)
            new = {keys[i]: row_ids[i] for i in created}
            assert set(new) == set(keys) - set(expected)
            assert len(new) == len(created)
            expected |= new
        else:
            assert arrays.erase(keys) == len(set(keys) & set(expected))
            expected = {k: v for k, v in expected.items() if k not in keys}

        assert arrays.find(pool) == [expected.get(key, -1) for key in pool]
        assert arrays.entries(partition) == expected
        assert len(set(expected.values())) == len(expected)


def test_a_partition_doubles_at_its_own_load_when_it_grows() -> None:
    """No two of 1024 partitions double at the same load, all of it in [1/2, 3/4)."""
    limits = [hashmap.limit_of(partition, 1 << 12) for partition in range(1024)]

    assert sorted(limits) == list(range(2048, 3072))


def test_a_region_never_fills_when_it_is_the_smallest() -> None:
    """Even 8 buckets keep some empty, so that every probe ends."""
    assert {hashmap.limit_of(partition, hashmap.BUCKETS_MIN) for partition in range(1024)} == {4, 5}


def test_keys_find_their_rows_when_their_region_is_left_in_the_same_call() -> None:
    """Where a probe begins is worked out before a region doubles; repeats behind that get the same rows."""
    arrays = Arrays(rows_max=4096)
    keys = [key_at(EARLIEST, i * 7) for i in range(500)]

    row_ids, created = arrays.insert([*keys, *keys[::-1]])

    assert row_ids == [*range(500), *range(499, -1, -1)]
    assert created == [*range(500)]
    assert arrays.find(keys) == [*range(500)]


def test_left_regions_are_written_down_when_they_are_large() -> None:
    """Only regions of 16 KiB and more are reported, each with its first bucket and size."""
    arrays = Arrays(rows_max=8000, buckets_max=1 << 16)
    arrays.insert([key_at(EARLIEST, i) for i in range(4097)])

    left = arrays.counters[hashmap.LEFT : hashmap.LEFT + 8].reshape(4, 2)

    assert arrays.counters[hashmap.NUM_LEFT] == 4
    assert left[:, 1].tolist() == [1024, 2048, 4096, 8192]
    assert left[:-1].sum(1).tolist() == left[1:, 0].tolist()
    assert arrays.heads[EARLIEST, hashmap.OFFSET] == left[-1].sum()


def test_a_call_ends_early_when_no_region_is_left_to_grow_into() -> None:
    """Without room to double, insert says how far it came and writes nothing out of bounds."""
    arrays = Arrays(buckets_max=1024 * 8 + 16)
    keys = [key_at(EARLIEST, i) for i in range(20)]

    row_ids, created = arrays.insert(keys)

    assert arrays.counters[hashmap.NUM_DONE] == len(created) == 8
    assert row_ids[:8] == [*range(8)]
    assert arrays.find(keys) == [*range(8), *[-1] * 12]


def test_rows_keep_their_ids_when_the_index_is_rebuilt() -> None:
    """A rebuild moves all regions into fresh memory, as small as their rows allow."""
    arrays = Arrays(rows_max=4096)
    keys = [key_at(p, i * 7) for p in (5, 9, EARLIEST, LATEST) for i in range(500)]
    row_ids, _ = arrays.insert(keys)
    arrays.erase(keys[3::2])
    fresh = np.zeros_like(arrays.buckets)

    hashmap.rebuild(arrays.buckets, arrays.heads, arrays.counters, fresh)
    arrays.buckets[:] = 2**63
    arrays.buckets = fresh

    assert arrays.find(keys) == [r if i < 3 or i % 2 == 0 else -1 for i, r in enumerate(row_ids)]
    sizes = arrays.heads[:, hashmap.MASK] + 1
    assert sizes[[5, 9, EARLIEST, LATEST]].tolist() == [512, 512, 512, 512]
    assert sizes.sum() == 1020 * 8 + 4 * 512
    assert arrays.counters[hashmap.NEXT_BUCKET] == sizes.sum()
    assert arrays.counters[hashmap.LIVE_BUCKETS] == sizes.sum()
