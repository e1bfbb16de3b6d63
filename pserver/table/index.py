"""The index of a table: which row id a key has.

Rooms before and after: ``sparse`` looks keys up; ``kernel.hashmap`` holds the loops and says how
the arrays are laid out.

What always holds: see ``kernel.hashmap``; ``check`` asserts it. Owner: the shard's owner thread.
"""

import numpy as np

from pserver.arrays import Heads, Keys, RowIds, Words
from pserver.kernel import hashmap
from pserver.placement import NUM_PARTITIONS, partition_of
from pserver.table.storage import Mapping

_BUCKETS_PER_ROW_MAX = 8
"""A region is at least 1/4 full after it doubled (4 buckets a row), and all the regions left
behind add up to less than the live ones (twice 4). Address space only: their pages went back.
Regions do not shrink, so more is needed when rows are erased and others come in other partitions;
then the index is rebuilt, which leaves half of the buckets free: at most once in rows_max / 2 new
rows."""


class Index:
    """Open addressing over 1024 partitions that grow one at a time."""

    def __init__(self, rows_max: int, free_rows: RowIds, *, table: str) -> None:
        """Reserve address space for ``rows_max`` rows and open the partitions.

        Args:
            rows_max: rows at most; the caller keeps to it.
            free_rows: (rows_max,) the slab's free list.
            table: named in an error.
        """
        smallest = NUM_PARTITIONS * hashmap.BUCKETS_MIN * 4
        buckets_max = _BUCKETS_PER_ROW_MAX * rows_max + smallest
        self._what = f"table {table!r}"
        self._mapping = Mapping(2 * buckets_max, np.uint64, what=self._what)
        self._buckets: Words = self._mapping.array
        self._free_rows = free_rows
        self._heads: Heads = np.zeros((NUM_PARTITIONS, 4), np.int64)
        self._counters: RowIds = np.zeros(hashmap.COUNTERS, np.int64)
        self._first_live = self._next_seen = 0  # buckets: of the first region, and handed out
        hashmap.open_partitions(self._heads, self._counters)

    @property
    def mappings(self) -> list[Mapping]:
        """Return the memory of the buckets."""
        return [self._mapping]

    @property
    def num_rows(self) -> int:
        """Return the rows alive."""
        return int(self._counters[hashmap.ROWS])

    @property
    def num_rows_touched(self) -> int:
        """Return how many row ids were ever handed out: the slab's high-water mark."""
        return int(self._counters[hashmap.NEXT_ROW])

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the live regions."""
        return int(self._counters[hashmap.LIVE_BUCKETS]) * 16

    def find(self, keys: Keys, row_ids: RowIds) -> int:
        """Write the row id of each key, or -1, and return how many were missing."""
        return hashmap.find(self._buckets, self._heads, keys, row_ids)

    def find_or_insert(self, keys: Keys, row_ids: RowIds, created: RowIds) -> int:
        """Write the row id of each key, new ones included, and return how many are new.

        Args:
            keys: (U,) uint64, repeats allowed.
            row_ids: (U,) int64, written.
            created: (U,) int64, written: the positions of the keys whose row is new.
        """
        start = num_created = 0
        while True:
            num_created += hashmap.find_or_insert(
                self._buckets,
                self._heads,
                self._counters,
                self._free_rows,
                keys,
                start,
                row_ids,
                created[num_created:],
            )
            self._give_back()
            start = int(self._counters[hashmap.NUM_DONE])
            if start == keys.size:
                return num_created
            self._rebuild()

    def erase(self, keys: Keys) -> int:
        """Remove each key that is there, and return how many were."""
        return hashmap.erase(self._buckets, self._heads, self._counters, self._free_rows, keys)

    @property
    def free(self) -> RowIds:
        """Return the row ids in the free list; the last one is used first. A view."""
        return self._free_rows[: self._counters[hashmap.FREE_ROWS]]

    def last_freed(self, count: int) -> RowIds:
        """Return the row ids that were freed last, (count,). A view, until the next insert."""
        free = self.free
        return free[free.size - count :]

    def entries(self, partition: int) -> tuple[Keys, RowIds]:
        """Return the keys and row ids of a partition, in no order."""
        count = int(self._heads[partition, hashmap.SIZE])
        keys, row_ids = np.empty(count, np.uint64), np.empty(count, np.int64)
        hashmap.entries(self._buckets, self._heads, partition, keys, row_ids)
        return keys, row_ids

    def walk(self, hand: tuple[int, int], count: int) -> tuple[Keys, RowIds, tuple[int, int]]:
        """Return the rows from a hand on, at most ``count``, and where the hand is then.

        Args:
            hand: a partition, and a bucket of its region.
            count: rows at most; fewer if they are all of the index.
        """
        place = np.array(hand, np.int64)
        keys, row_ids = np.empty(count, np.uint64), np.empty(count, np.int64)
        found = hashmap.walk(self._buckets, self._heads, place, keys, row_ids)
        return keys[:found], row_ids[:found], (int(place[0]), int(place[1]))

    def _give_back(self) -> None:
        """Return the pages of regions that partitions left to the system.

        Regions are handed out in order, and all double sooner or later, so what lies before the first
        live one is left too: the many small regions of a young index, half of its memory.
        """
        if self._counters[hashmap.NEXT_BUCKET] == self._next_seen:
            return
        self._next_seen = int(self._counters[hashmap.NEXT_BUCKET])
        first_live = int(self._heads[:, hashmap.OFFSET].min())
        self._mapping.give_back(2 * self._first_live, 2 * (first_live - self._first_live))
        self._first_live = first_live
        num_left = int(self._counters[hashmap.NUM_LEFT])
        for i in range(num_left):
            position = hashmap.LEFT + 2 * i
            first, count = (int(word) for word in self._counters[position : position + 2])
            self._mapping.give_back(2 * first, 2 * count)
        self._counters[hashmap.NUM_LEFT] = 0

    def _rebuild(self) -> None:
        """Move all regions into fresh memory, as small as their rows allow."""
        fresh = Mapping(self._buckets.size, np.uint64, what=self._what)
        hashmap.rebuild(self._buckets, self._heads, self._counters, fresh.array)
        self._mapping, self._buckets = fresh, fresh.array
        self._first_live = self._next_seen = 0

    def check(self) -> None:
        """Assert every invariant; a programmer's tool, linear in the size of the index."""
        heads, counters = self._heads, self._counters
        assert counters[hashmap.NUM_LEFT] == 0
        assert np.all(heads[:, hashmap.SIZE] <= heads[:, hashmap.LIMIT])
        assert heads[:, hashmap.SIZE].sum() == self.num_rows
        assert (heads[:, hashmap.MASK] + 1).sum() * 16 == self.num_bytes
        regions = heads[np.argsort(heads[:, hashmap.OFFSET])]
        starts, ends = regions[:, hashmap.OFFSET], regions[:, hashmap.OFFSET : hashmap.SIZE].sum(1)
        assert np.all(ends[:-1] < starts[1:])
        assert ends[-1] < counters[hashmap.NEXT_BUCKET] <= self._buckets.size // 2
        parts = [self.entries(partition) for partition in range(NUM_PARTITIONS)]
        keys = np.concatenate([part_keys for part_keys, _ in parts])
        row_ids = np.concatenate([part_row_ids for _, part_row_ids in parts])
        partitions = np.repeat(np.arange(NUM_PARTITIONS), heads[:, hashmap.SIZE])
        assert np.array_equal(partition_of(keys), partitions)
        keys.flags.writeable = False
        found = np.empty(keys.size, np.int64)
        assert self.find(keys, found) == 0
        assert np.array_equal(found, row_ids)
        free = self._free_rows[: counters[hashmap.FREE_ROWS]]
        used = np.sort(np.concatenate([free, row_ids]))
        assert np.array_equal(used, np.arange(self.num_rows_touched))
