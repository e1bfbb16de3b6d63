"""Whether new rows fit: within capacity_max, and on the disk where rows lie on a file.

Rooms before and after: ``sparse`` asks before a request changes anything; ``slab`` sets blocks of a
file aside.
"""

import numpy as np

from pserver.arrays import Keys
from pserver.errors import TableFullError
from pserver.spec import TableSpec
from pserver.table.index import Index
from pserver.table.layout import AnySlab
from pserver.table.values import read_only


class Room:
    """The room of one table."""

    def __init__(self, spec: TableSpec, slab: AnySlab, index: Index) -> None:
        """Take what says how many rows there are and may be."""
        self._spec, self._slab, self._index = spec, slab, index

    def check(self, keys: Keys) -> None:
        """Refuse keys whose new rows would not fit.

        Args:
            keys: (U,) repeats allowed.

        Raises:
            TableFullError: what to do is said.
        """
        room = self.after(keys.size)
        if keys.size <= room:
            return
        row_ids = np.empty(keys.size, np.int64)
        self._index.find(read_only(keys), row_ids)
        missing = np.unique(keys[row_ids < 0]).size
        room = self.after(missing)
        if missing > room:
            capacity_max = self._spec.capacity_max
            what = f"of capacity_max {capacity_max} on this shard; raise capacity_max"
            if self._index.num_rows + room < capacity_max:
                what = f"on this shard: {self._slab.refusal}; free some space there"
            raise TableFullError(
                f"table {self._spec.name!r}: {missing} new rows needed, room for {room} {what}, "
                "or add shards"
            )

    def after(self, wanted: int) -> int:
        """Return how many new rows there is room for, after making it for ``wanted`` if possible."""
        num_rows, capacity_max = self._index.num_rows, self._spec.capacity_max
        top = max(min(num_rows + wanted, capacity_max), self._index.num_rows_touched)
        return min(self._slab.reserve(top), capacity_max) - num_rows
