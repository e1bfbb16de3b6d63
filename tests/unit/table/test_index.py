"""What ``table.index`` promises: a dict from key to row id, whatever comes and goes."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pserver.kernel import hashmap
from pserver.placement import NUM_PARTITIONS
from pserver.table.index import Index
from tests.reference import EDGE_KEYS, key_at, partition_of

ROWS_MAX = 300
POOL = [
    *EDGE_KEYS,
    *(key_at(7, i << 4) for i in range(120)),  # one partition, runs of 8 in a small region
    *(key_at(8, 255 - i % 3 | i << 8) for i in range(120)),  # runs over the end of the region
    *range(1000, 1400),
]


def index_of(rows_max: int = ROWS_MAX) -> Index:
    return Index(rows_max, np.zeros(rows_max, np.int64), table="t")


def insert(index: Index, keys: list[int]) -> tuple[list[int], list[int]]:
    """Return the row id of each key, and the positions of the new ones."""
    array = np.array(keys, np.uint64)
    row_ids, created = np.full(array.size, -7), np.full(array.size, -7)
    count = index.find_or_insert(array, row_ids, created)
    return row_ids.tolist(), created[:count].tolist()


def find(index: Index, keys: list[int]) -> list[int]:
    row_ids = np.full(len(keys), -7)
    index.find(np.array(keys, np.uint64), row_ids)
    return row_ids.tolist()


def erase(index: Index, keys: list[int]) -> int:
    return index.erase(np.array(keys, np.uint64))


class IndexAgainstDict(RuleBasedStateMachine):
    """An index does what a dict does; its own check passes after each step."""

    @initialize()
    def begin(self) -> None:
        self.index = index_of()
        self.expected: dict[int, int] = {}

    @rule(keys=st.lists(st.sampled_from(POOL), max_size=40))
    def insert_some(self, keys: list[int]) -> None:
        if len(set(keys) | set(self.expected)) <= ROWS_MAX:
            self._insert(keys)

    @rule(start=st.integers(0, len(POOL)), count=st.integers(0, 120))
    def insert_many(self, start: int, count: int) -> None:
        room = ROWS_MAX - len(self.expected)
        self._insert(POOL[start : start + min(count, room)])

    def _insert(self, keys: list[int]) -> None:
        row_ids, created = insert(self.index, keys)
        assert {keys[i] for i in created} == set(keys) - set(self.expected)
        assert len({keys[i] for i in created}) == len(created)
        self.expected.update((keys[i], row_ids[i]) for i in created)
        assert row_ids == [self.expected[key] for key in keys]

    @rule(keys=st.lists(st.sampled_from(POOL), max_size=40))
    def erase_some(self, keys: list[int]) -> None:
        gone = set(keys) & set(self.expected)
        assert erase(self.index, keys) == len(gone)
        for key in gone:
            del self.expected[key]

    @rule(modulus=st.integers(2, 5))
    def erase_most(self, modulus: int) -> None:
        keys = [key for i, key in enumerate(self.expected) if i % modulus]
        assert erase(self.index, keys) == len(keys)
        for key in keys:
            del self.expected[key]

    @rule()
    def rebuild(self) -> None:
        self.index._rebuild()

    @invariant()
    def every_key_has_the_row_of_the_dict(self) -> None:
        self.index.check()
        assert find(self.index, POOL) == [self.expected.get(key, -1) for key in POOL]
        assert self.index.num_rows == len(self.expected)
        assert self.index.num_rows_touched <= ROWS_MAX


IndexAgainstDict.TestCase.settings = settings(max_examples=settings().max_examples // 2)
TestIndexAgainstDict = IndexAgainstDict.TestCase


def test_edge_keys_are_different_rows_when_inserted_one_by_one() -> None:
    """0, 1, -1, -2, 2^31, 2^32, 2^63 - 1 and -2^63 are different rows of the index."""
    index = index_of()

    row_ids = [insert(index, [key])[0][0] for key in EDGE_KEYS]

    assert row_ids == list(range(len(EDGE_KEYS)))
    assert find(index, list(EDGE_KEYS)) == row_ids
    index.check()


def test_every_key_is_found_when_a_partition_doubled_many_times() -> None:
    """20,000 keys of one partition, which doubles twelve times, all keep the row they got."""
    index = index_of(20_000)
    keys = [key_at(5, i) for i in range(20_000)]
    for start in range(0, 20_000, 1_000):
        row_ids, created = insert(index, keys[start : start + 1_000])
        assert row_ids == list(range(start, start + 1_000))
        assert len(created) == 1_000

    assert find(index, keys) == list(range(20_000))
    assert index._heads[5, hashmap.MASK] + 1 == 32_768
    index.check()


def test_every_key_is_found_when_all_partitions_doubled() -> None:
    """100,000 random keys spread over all partitions and keep the rows they got."""
    index = index_of(100_000)
    keys = np.random.default_rng(0).integers(0, 2**64, 100_000, np.uint64).tolist()

    row_ids, _ = insert(index, keys)

    assert row_ids == list(range(100_000))
    assert find(index, keys) == row_ids
    assert (index._heads[:, hashmap.MASK] >= 127).all()
    index.check()


def test_partitions_double_in_different_requests_when_keys_are_uniform() -> None:
    """Of 100 requests of uniform keys none makes more than a tenth of the partitions double."""
    index = index_of(100_000)
    rng = np.random.default_rng(1)
    insert(index, rng.integers(0, 2**64, 50_000, np.uint64).tolist())

    doubled = []
    for _ in range(100):
        before = index._heads[:, hashmap.MASK].copy()
        insert(index, rng.integers(0, 2**64, 500, np.uint64).tolist())
        doubled.append(int((index._heads[:, hashmap.MASK] != before).sum()))

    assert sum(doubled) >= 900
    assert max(doubled) <= 102


def test_small_regions_are_given_back_when_all_partitions_left_them() -> None:
    """What lies before the first live region reads as zero, and no key is lost."""
    index = index_of(200_000)
    keys = list(range(150_000))
    insert(index, keys[:2_000])
    assert np.count_nonzero(index._buckets[: 2 * 1024 * hashmap.BUCKETS_MIN]) > 3_000

    for start in range(2_000, 150_000, 14_800):
        insert(index, keys[start : start + 14_800])

    first_live = int(index._heads[:, hashmap.OFFSET].min())
    assert first_live > 1024 * hashmap.BUCKETS_MIN * 8
    words_a_page = 512
    zeros = index._buckets[: 2 * first_live].reshape(-1, 2)[:, 1] == 0
    # Each time a floor moved, a page that lies on both sides of it stayed.
    assert np.count_nonzero(~zeros) <= 11 * words_a_page
    assert find(index, keys) == list(range(150_000))
    index.check()


def test_pages_are_given_back_when_a_partition_leaves_its_region() -> None:
    """A left region reads as zero, nothing is waiting to be given back, and no key is lost."""
    index = index_of(40_000)
    keys = [key_at(5, i) for i in range(40_000)]
    insert(index, keys[:3_000])
    head = index._heads[5].copy()
    left = index._buckets[2 * head[hashmap.OFFSET] :][: 2 * (head[hashmap.MASK] + 1)]
    num_bytes = index.num_bytes
    assert left.any()

    insert(index, keys[3_000:])

    assert left.size * 8 >= 64 << 10
    assert not left[512:-512].any()  # the pages at both ends may belong to others as well
    assert index._counters[hashmap.NUM_LEFT] == 0
    assert index.num_bytes - num_bytes == 16 * (65_536 - head[hashmap.MASK] - 1)
    assert find(index, keys) == list(range(40_000))
    index.check()


def test_freed_row_ids_are_used_again_when_new_keys_come() -> None:
    """With every row taken, erasing one key makes room for one more, under its row id."""
    index = index_of(4)
    insert(index, [1, 2, 3, 4])

    erase(index, [3])
    row_ids, _ = insert(index, [9])

    assert row_ids == [2]
    assert index.num_rows == index.num_rows_touched == 4
    index.check()


def test_the_index_is_rebuilt_when_rows_move_from_partition_to_partition() -> None:
    """However often all rows go and come back elsewhere, the index never outgrows its memory."""
    index, memory = index_of(2_000), set()
    for partition in range(40):
        keys = [key_at(partition, i << 1) for i in range(2_000)]

        row_ids, created = insert(index, keys)
        memory.add(index._buckets.ctypes.data)

        assert sorted(row_ids) == created == list(range(2_000))
        assert find(index, keys) == row_ids
        index.check()
        assert erase(index, keys) == 2_000

    assert len(memory) > 1
    assert index.num_rows == 0


def test_entries_lists_each_key_when_asked_partition_by_partition() -> None:
    """The entries of all partitions are the dict, each in the partition of its hash."""
    index = index_of()
    keys = POOL[:250]
    row_ids, _ = insert(index, keys)
    erase(index, keys[::5])

    found: dict[int, int] = {}
    for partition in range(NUM_PARTITIONS):
        part_keys, part_row_ids = index.entries(partition)
        assert all(partition_of(key) == partition for key in part_keys.tolist())
        found.update(zip(part_keys.tolist(), part_row_ids.tolist(), strict=True))

    assert found == {k: r for i, (k, r) in enumerate(zip(keys, row_ids, strict=True)) if i % 5}


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index._heads[9].__setitem__(hashmap.SIZE, 1),
        lambda index: index._counters.__setitem__(hashmap.ROWS, 2),
        lambda index: index._counters.__setitem__(hashmap.NUM_LEFT, 1),
        lambda index: index._counters.__setitem__(hashmap.NEXT_ROW, 4),
        lambda index: index._heads[10].__setitem__(hashmap.OFFSET, index._heads[9, hashmap.OFFSET]),
        lambda index: index._buckets.__setitem__(slice(1, None, 2), 0),
    ],
)
def test_check_fails_when_an_invariant_is_broken(damage) -> None:
    """The self-check sees a damaged head, counter, region or bucket."""
    index = index_of()
    insert(index, [1, 2, 3])
    index.check()

    damage(index)

    with pytest.raises(AssertionError):
        index.check()
