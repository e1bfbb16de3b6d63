"""A table's rows as they were at one instant, copied while the table goes on changing.

Rooms before and after: ``server.checkpoint`` makes a cut between two requests and asks for slices;
``sparse`` tells of rows that are about to change; ``checkpoint.snapshot`` writes the pieces.

How. After a cut the table's epoch is a later one, and so is that of every row that changes. Partitions are copied one
after the other, in slices. A row of a partition that is not copied yet is kept aside before its first
change, whole and as it was. What a slice meets with a later epoch is kept aside already, or was created
after the cut. So the pieces together are the rows at the instant of the cut, each once.

What always holds: after the last slice the pieces hold every row that was alive at the cut and last
changed after ``since``. If rows kept aside outgrow ``aside_bytes_max``, the cut fails and says so; the
table is not disturbed.
Owner: the shard's owner thread.

Cost: a push that touches U rows looks at U epochs, and copies those rows once; without a cut, nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys, RowIds
from pserver.errors import CheckpointError
from pserver.kernel import copies
from pserver.placement import NUM_PARTITIONS, partition_of
from pserver.table.dump import Block, blocks_of, filter_state
from pserver.table.sparse import SparseTable
from pserver.table.values import read_only

ASIDE_BYTES_MAX = 1 << 30
"""Rows kept aside for one table at most: 12 M rows of dim 16 with adagrad that changed before their
partition was copied. Where a disk is slower than that, the save fails and the last version stays."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Copied rows, in no order.

    Attributes:
        keys: (U,) uint64.
        rows: (U, width) of each block of the table.
    """

    keys: Keys
    rows: tuple[NDArray[Any], ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the copy."""
        return self.keys.nbytes + sum(rows.nbytes for rows in self.rows)


def warm(table: SparseTable) -> None:
    """Compile what a cut and a load of this table need, so that no request waits for a compiler."""
    nothing = read_only(np.empty(0, np.int64))
    picked, epochs = np.empty(0, np.int64), np.empty(0, np.uint32)
    keys = read_only(np.empty(0, np.uint64))
    zero = np.uint32(0)
    copies.claim_old(table.epochs, keys, nothing, zero, zero, 0, picked, epochs)
    copies.find_old(table.epochs, picked, zero, zero, picked, epochs)
    for block in blocks_of(table):
        rows = read_only(block.take(nothing).reshape(-1))
        copies.put_rows(rows, block.width, nothing, block.memory)
    partition_of(keys)
    copies.sort_keys(keys, np.empty(NUM_PARTITIONS, np.int64), picked)
    table.entries(0)


class Cut:
    """One table at one instant.

    Attributes:
        table: whose rows they are.
        blocks: the layout of a piece.
        epoch: the last one that the cut includes.
        since: rows that did not change after this epoch are left out; 0 leaves none out.
        version: of the table at the cut.
        num_rows: rows alive at the cut.
        filters: what admission counted, by partition; copied at once, which takes some 20 ms where
            keys are counted one by one, and nothing without an admission.
        numbers: what the table remembers beside its rows, for ``Keeping.restore``.
        next_partition: every partition before it is copied.
    """

    def __init__(
        self, table: SparseTable, *, since: int = 0, aside_bytes_max: int = ASIDE_BYTES_MAX
    ) -> None:
        """Mark the instant: the rows as they are now are the cut.

        Args:
            table: its epoch rises by one; who watches it tells this cut of changes.
            since: 0, or the epoch of the cut that this one is a delta to.
            aside_bytes_max: of rows kept aside.
        """
        self.table = table
        self.blocks: Sequence[Block] = blocks_of(table)
        self.epoch = table.epoch
        self.since = since
        self.version = table.version
        self.num_rows = table.num_rows
        self.numbers = table.keeping.numbers()
        counting = range(NUM_PARTITIONS) if table.gate is not None else ()
        self.filters = [filter_state(table, partition) for partition in counting]
        self.next_partition = 0
        self._aside: list[Piece] = []
        self._aside_bytes = 0
        self._aside_bytes_max = aside_bytes_max
        self._failure = ""
        self._keys: Keys = np.empty(0, np.uint64)  # of the partition that is being copied
        self._row_ids: RowIds = np.empty(0, np.int64)
        self._begin = 0  # how many of them are copied
        self._is_open = False  # whether those are a partition's
        table.epoch += 1

    def before_change(self, keys: Keys, row_ids: RowIds) -> None:
        """Keep rows aside that are about to change.

        Args:
            keys: (U,) uint64, repeats allowed.
            row_ids: (U,) theirs; -1 where there is no row.
        """
        picked = np.empty(row_ids.size, np.int64)
        old_epochs = np.empty(row_ids.size, np.uint32)
        count = copies.claim_old(
            self.table.epochs,
            read_only(keys),
            read_only(row_ids),
            np.uint32(self.since),
            np.uint32(self.epoch),
            int(self.next_partition),
            picked,
            old_epochs,
        )
        if not count or self._failure:
            return
        where = picked[:count]
        is_new = self._is_not_copied(keys[where])
        where = where[is_new]
        piece = self._copy(keys[where], row_ids[where], old_epochs[:count][is_new])
        self._aside.append(piece)
        self._aside_bytes += piece.num_bytes
        if self._aside_bytes > self._aside_bytes_max:
            self._failure = (
                f"table {self.table.spec.name!r}: more than {self._aside_bytes_max} bytes of rows "
                "changed before they were copied; the disk is too slow for this rate of pushes"
            )
            self._aside.clear()

    def copy_some(self, rows_max: int) -> list[Piece]:
        """Copy the next rows, at most ``rows_max`` and those kept aside meanwhile.

        Returns:
            Pieces; ``next_partition`` says which partitions are whole with them. Rows kept aside may
            be of later partitions.

        Raises:
            CheckpointError: too much was kept aside. The cut is of no use any more; end it.
        """
        if self._failure:
            raise CheckpointError(self._failure)
        pieces: list[Piece] = []
        left = rows_max
        while left > 0 and self.next_partition < NUM_PARTITIONS:
            if not self._is_open:
                self._keys, self._row_ids = self.table.entries(self.next_partition)
                self._begin, self._is_open = 0, True
            end = min(self._begin + left, self._keys.size)
            left -= end - self._begin + 1  # an empty partition is looked at too
            keys, row_ids = self._keys[self._begin : end], self._row_ids[self._begin : end]
            picked, epochs = np.empty(row_ids.size, np.int64), np.empty(row_ids.size, np.uint32)
            ends = np.uint32(self.since), np.uint32(self.epoch)
            count = copies.find_old(self.table.epochs, row_ids, *ends, picked, epochs)
            if count < row_ids.size:  # a full save of what nobody changes meanwhile wants them all
                keys, row_ids = keys[picked[:count]], row_ids[picked[:count]]
            if count:
                pieces.append(self._copy(keys, row_ids, epochs[:count]))
            self._begin = end
            if end == self._keys.size:
                self._begin, self._is_open = 0, False
                self.next_partition += 1
        pieces += self._aside
        self._aside = []
        self._aside_bytes = 0
        return pieces

    @property
    def is_done(self) -> bool:
        """Return whether all partitions are copied."""
        return self.next_partition == NUM_PARTITIONS

    def _is_not_copied(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which of the keys, of partitions that are not whole yet, have no copy yet."""
        if not self._begin:
            return np.ones(keys.size, np.bool_)
        is_copied: NDArray[np.bool_] = partition_of(keys) == self.next_partition
        is_copied[is_copied] = np.isin(keys[is_copied], self._keys[: self._begin])
        return ~is_copied

    def _copy(self, keys: Keys, row_ids: RowIds, epochs: NDArray[np.uint32]) -> Piece:
        """Return a copy of rows with the epochs that they had at the cut."""
        ids = read_only(row_ids)
        rows = tuple(
            epochs.reshape(-1, 1) if block.memory is self.table.epochs else block.take(ids)
            for block in self.blocks
        )
        return Piece(keys, rows)
