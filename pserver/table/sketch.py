"""Counts of keys in fixed memory: a count-min sketch, by partition.

Rooms before and after: ``admission`` counts here; ``kernel.admit`` has the loops.

Each of the 1024 partitions has counters of its own, so that a key is counted the same with any number
of shards, and a partition can be written down and read back alone. A key's four counters of a byte
stand in one cache line. An estimate is never too low; it is too high when four others coincide.

What always holds: no counter falls. Owner: the shard's owner thread.
"""

import numpy as np

from pserver.arrays import Bytes, Counts, Keys
from pserver.kernel import admit
from pserver.placement import NUM_PARTITIONS
from pserver.table.storage import Mapping


def partition_bytes(counters: int) -> int:
    """Return the bytes of one partition, where all have so many counters together."""
    return -(-counters // (NUM_PARTITIONS * admit.LINE)) * admit.LINE


class Sketch:
    """Counters of all partitions; only those that are counted in take memory.

    Attributes:
        mapping: the memory.
    """

    def __init__(self, counters: int, *, table: str) -> None:
        """Reserve address space.

        Args:
            counters: of a byte, over all shards; rounded up to a cache line a partition.
            table: named in an error.
        """
        self._lines = partition_bytes(counters) // admit.LINE
        size = NUM_PARTITIONS * self.partition_bytes
        self.mapping = Mapping(size, np.uint8, what=f"table {table!r}")
        self._counters: Bytes = self.mapping.array
        self._touched: Bytes = np.zeros(NUM_PARTITIONS, np.uint8)

    @property
    def partition_bytes(self) -> int:
        """Return the bytes of one partition's counters."""
        return self._lines * admit.LINE

    @property
    def num_bytes(self) -> int:
        """Return the bytes in use: the partitions that were counted in."""
        return int(self._touched.sum()) * self.partition_bytes

    def estimate(self, keys: Keys) -> Counts:
        """Return how often each key was counted, (U,) uint32, at most 255."""
        out = np.empty(keys.size, np.uint32)
        admit.sketch_estimate(self._counters, self._lines, keys, out)
        return out

    def add(self, keys: Keys, amounts: Counts) -> None:
        """Count each key so often.

        Args:
            keys: (U,) distinct, read-only.
            amounts: (U,), read-only.
        """
        admit.sketch_add(self._counters, self._lines, keys, amounts, self._touched)

    def read(self, partition: int) -> Bytes:
        """Return a copy of a partition's counters; (0,) if nothing was counted there."""
        if not self._touched[partition]:
            return np.empty(0, np.uint8)
        return self._region(partition).copy()

    def write(self, partition: int, counters: Bytes) -> None:
        """Take counters as ``read`` returned them."""
        self._touched[partition] = counters.size > 0
        self._region(partition)[:] = counters if counters.size else 0

    def check(self) -> None:
        """Assert that only partitions which were counted in have counters over 0."""
        for partition in np.flatnonzero(self._touched == 0).tolist():
            assert not self._region(partition).any()

    def _region(self, partition: int) -> Bytes:
        start = partition * self.partition_bytes
        return self._counters[start : start + self.partition_bytes]
