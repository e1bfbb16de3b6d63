"""The rows of a ctr table with the highest score, or the most shows.

Rooms before and after: ``server.lifecycle`` advances the walk between requests.

What always holds: a walk changes nothing; what it tells of a partition is how that was when it came by.
Owner: the shard's owner thread.
"""

from collections.abc import Iterator

import numpy as np

from pserver.arrays import Floats, Keys
from pserver.errors import ConfigError
from pserver.placement import NUM_PARTITIONS
from pserver.table.shrink import SLICE_ROWS
from pserver.table.sparse import SparseTable

WORDS = ("pushes", "score", "show")
"""What keys can be ordered by; the first does not need a walk, and is known of every table."""


class Best:
    """The highest rows so far.

    Attributes:
        keys: (V,) uint64, highest first; of equal ones the smaller key first.
        values: (V,) float32.
        rows: walked so far.
    """

    def __init__(self, table: SparseTable, by: str, count: int) -> None:
        """Begin with none.

        Raises:
            ConfigError: rows of the table have no such value.
        """
        if not table.accessor.is_ctr:
            raise ConfigError(
                f"top-keys {table.spec.name!r}: rows of the accessor plain have no {by}; ask by pushes"
            )
        self._table, self._by, self._count = table, by, count
        self.keys: Keys = np.empty(0, np.uint64)
        self.values: Floats = np.empty(0, np.float32)
        self.rows = 0

    def walk(self) -> Iterator[None]:
        """Look at all rows; each step is a slice."""
        rows = 0
        for partition in range(NUM_PARTITIONS):
            rows += self._look(partition)
            if rows >= SLICE_ROWS:
                rows = 0
                yield

    def _look(self, partition: int) -> int:
        """Look at the rows of a partition, and return how many there are."""
        keys, row_ids = self._table.entries(partition)
        if self._by == "score":
            values = self._table.keeping.scores(row_ids)
        else:
            values = self._table.fields.view(self._by)[row_ids]
        keys, values = np.concatenate([self.keys, keys]), np.concatenate([self.values, values])
        order = np.lexsort((keys, -values))[: self._count]
        self.keys, self.values = keys[order], values[order]
        self.rows += row_ids.size
        return row_ids.size
