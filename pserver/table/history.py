"""What a table remembers for saves: the cut that is under way, and the keys that are gone.

Rooms before and after: ``sparse`` tells it of changes, as ``table.watch``; ``server.checkpoint`` begins
cuts and asks which keys were erased, for a delta.

What always holds: of every key erased in an epoch after ``erased_from`` it is known that it was. Erased
keys cost 8 bytes each until a later save is durable; where there are more than ``ERASED_MAX``, they are
forgotten and ``erased_from`` rises, so that the next delta is refused rather than wrong.
A watch does not hold its table, so the memory of a table that was replaced is free at once, and not when Python next
looks for cycles, by when loads would have piled up.
Owner: the shard's owner thread.
"""

import weakref

from pserver.arrays import Keys, RowIds
from pserver.table.cut import ASIDE_BYTES_MAX, Cut
from pserver.table.sparse import SparseTable

ERASED_MAX = 1 << 25
"""Keys erased since the last durable save that are remembered: 256 MiB."""


class History:
    """The watch of one table.

    Attributes:
        cut: the one that is under way, or None.
        erased_from: erasures after this epoch are known; None before the first durable save.
    """

    def __init__(self, table: SparseTable) -> None:
        """Begin to watch a table."""
        self.cut: Cut | None = None
        self.erased_from: int | None = None
        self._watched = weakref.ref(table)
        self._erased: list[tuple[int, Keys]] = []
        self._num_erased = 0
        table.watch = self

    @property
    def _table(self) -> SparseTable:
        table = self._watched()
        assert table is not None, "who asks a table's watch has the table"
        return table

    @property
    def is_saving(self) -> bool:
        """Return whether a cut is under way."""
        return self.cut is not None

    def before_change(self, keys: Keys, row_ids: RowIds) -> None:
        """Let the cut keep the rows."""
        if self.cut is not None:
            self.cut.before_change(keys, row_ids)

    def before_erase(self, keys: Keys, row_ids: RowIds) -> None:
        """Let the cut keep the rows, and remember the keys."""
        self.before_change(keys, row_ids)
        if self.erased_from is None:
            return
        gone = keys[row_ids >= 0]
        self._erased.append((self._table.epoch, gone))
        self._num_erased += gone.size
        if self._num_erased > ERASED_MAX:
            self.forget_erased(self._table.epoch)

    def begin_cut(self, *, since: int, aside_bytes_max: int = ASIDE_BYTES_MAX) -> Cut:
        """Mark the instant; see ``Cut``."""
        assert self.cut is None, f"table {self._table.spec.name!r} has a cut already"
        self.cut = Cut(self._table, since=since, aside_bytes_max=aside_bytes_max)
        return self.cut

    def end_cut(self) -> None:
        """Let the table go on without the cut. Ending twice is fine."""
        self.cut = None

    def erased_until(self, epoch: int) -> list[Keys]:
        """Return the keys known to be erased in epochs up to this one, as they came.

        A key among them may have a row again, or come twice: to sort millions is not the owner's work.
        """
        return [keys for when, keys in self._erased if when <= epoch]

    def forget_erased(self, epoch: int) -> None:
        """Drop what was erased in epochs up to this one: a save that holds it is durable."""
        self.erased_from = epoch
        self._erased = [(when, keys) for when, keys in self._erased if when > epoch]
        self._num_erased = sum(keys.size for _, keys in self._erased)
