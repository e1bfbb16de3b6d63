"""Keys that have no row yet and what was counted of each, exactly.

Rooms before and after: ``admission`` counts here until a key is admitted; ``index`` finds a
candidate's record and ``fields`` holds it.

What always holds: a key is here or has a row, not both. Memory grows with the keys that were ever
seen and never admitted: 4 or 8 bytes a key and its share of the index. Owner: the shard's owner
thread.
"""

from collections.abc import Mapping as Names

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys, RowIds
from pserver.errors import TableFullError
from pserver.table.fields import Field, Fields, FieldValue
from pserver.table.index import Index
from pserver.table.storage import Mapping


class Candidates:
    """Key to record, for keys without a row.

    Attributes:
        fields: the records.
    """

    def __init__(self, candidates_max: int, fields: tuple[Field, ...], *, table: str) -> None:
        """Reserve address space for ``candidates_max`` keys."""
        what = f"table {table!r}"
        self._max, self._table = candidates_max, table
        self._free = Mapping(candidates_max, np.int64, what=what)
        self.fields = Fields(candidates_max, fields, table=table)
        self._index = Index(candidates_max, self._free.array, table=table)

    @property
    def mappings(self) -> list[Mapping]:
        """Return all memory of the candidates."""
        return [self._free, *self.fields.mappings, *self._index.mappings]

    @property
    def num_keys(self) -> int:
        """Return how many keys there are."""
        return self._index.num_rows

    @property
    def room(self) -> int:
        """Return how many more keys fit."""
        return self._max - self.num_keys

    @property
    def num_bytes(self) -> int:
        """Return the bytes in use: records ever touched, and the index."""
        return self._index.num_rows_touched * self.fields.row_bytes + self._index.num_bytes

    def check_room(self, keys: Keys) -> None:
        """Refuse keys that would not fit.

        Args:
            keys: (U,) distinct, read-only.

        Raises:
            TableFullError: what to do is said; nothing was changed.
        """
        room = self.room
        if keys.size <= room:
            return
        ids = np.empty(keys.size, np.int64)
        missing = self._index.find(keys, ids)
        if missing > room:
            raise TableFullError(
                f"table {self._table!r}: {missing} more keys would wait for admission, room for "
                f"{room} of capacity_max {self._max} on this shard; count them in a sketch "
                "(admission count:filter=sketch), raise capacity_max, or add shards"
            )

    def find(self, keys: Keys) -> RowIds:
        """Return the (U,) record of each key, -1 where there is none."""
        ids = np.empty(keys.size, np.int64)
        self._index.find(keys, ids)
        return ids

    def find_or_begin(self, keys: Keys) -> RowIds:
        """Return the (U,) record of each key, after making those that were missing."""
        ids, created = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
        num_created = self._index.find_or_insert(keys, ids, created)
        self.fields.begin(ids[created[:num_created]])
        return ids

    def forget(self, keys: Keys) -> None:
        """Remove keys, those that are here."""
        self._index.erase(keys)

    def record(self, key: int) -> dict[str, FieldValue]:
        """Return what was counted of one key; nothing if it is not here."""
        keys = np.array([key], np.uint64)
        keys.flags.writeable = False
        found = int(self.find(keys)[0])
        return {} if found < 0 else self.fields.row(found)

    def read(self, partition: int) -> dict[str, NDArray[np.generic]]:
        """Return the keys of a partition, ascending, and each of their words, by name."""
        keys, ids = self._index.entries(partition)
        order = np.argsort(keys)
        words = {name: self.fields.view(name)[ids[order]] for name in self.fields.fields}
        return {"keys": keys[order], **words}

    def write(self, arrays: Names[str, NDArray[np.generic]]) -> None:
        """Take keys and words as ``read`` returned them."""
        keys: Keys = np.array(arrays["keys"], np.uint64)
        keys.flags.writeable = False
        self.check_room(keys)
        ids = self.find_or_begin(keys)
        for name in self.fields.fields:
            self.fields.view(name)[ids] = arrays[name]

    def check(self) -> None:
        """Assert every invariant."""
        self._index.check()
