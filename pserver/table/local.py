"""A trainer's own copy of rows: a bounded table with a base beside the weights of each row.

Rooms before and after: ``trainer.modes`` fetches rows from the servers and steps them here; the same
index, slab, optimizers and kernels serve a shard.

The base of a row is the value up to which its progress was taken. Weights minus base is what the
servers have not been told yet; a row with such progress is dirty.

What always holds:
    * ``take`` hands out each bit of progress once. ``settle`` replaces a base by a newer value of the
      servers and keeps the progress made since: w += value - base.
    * Rows leave only by ``drop``, which refuses one that is dirty.
    * Reading and stepping a row is a use; ``oldest`` names rows by their last use, in batch order.
Owner: one thread, or whoever holds the lock that goes with it.

Cost: beside the row itself 4 * dim bytes of base, 25 bytes of marks, and the index.
"""

import dataclasses
from typing import Final

import numpy as np
from typing_extensions import override

from pserver.arrays import Floats, Keys, RowIds
from pserver.errors import TableFullError
from pserver.kernel import local, rows
from pserver.placement import parts_of_slice
from pserver.spec import DenseSpec, TableSpec
from pserver.table.dense import DenseTable
from pserver.table.slab import FloatSlab
from pserver.table.sparse import SparseTable
from pserver.table.storage import Mapping
from pserver.table.values import check_values, read_only

_DIRTY: Final = np.uint8(1)
_STALE: Final = np.uint8(2)


class LocalTable(SparseTable):
    """Rows of a sparse table, kept and trained in this process.

    Keys are (U,) contiguous uint64, distinct, in every method.
    """

    def __init__(self, spec: TableSpec, *, rows_max: int) -> None:
        """Reserve address space; no memory is taken until rows come.

        Args:
            spec: of the table on the servers; its optimizer is the one that ``step`` applies.
            rows_max: rows that are kept at most.

        Raises:
            ConfigError: as of ``SparseTable``.
        """
        mine = dataclasses.replace(spec, storage="memory", row_dtype="float32", evict="none")
        super().__init__(dataclasses.replace(mine, capacity_max=rows_max))
        assert isinstance(self._slab, FloatSlab)
        self._rows: Floats = self._slab.rows
        self._stride = self._slab.stride
        what = f"table {spec.name!r}: local copy"
        self._mappings = (
            Mapping(rows_max * spec.dim, np.float32, what=what),
            Mapping(rows_max, np.uint64, what=what),
            Mapping(rows_max, np.uint8, what=what),
            Mapping(2 * rows_max + 2, np.int64, what=what),
        )
        self._base: Floats = self._mappings[0].array
        self._keys: Keys = self._mappings[1].array
        self._marks = self._mappings[2].array
        self._links: RowIds = self._mappings[3].array
        local.open_ring(self._links, rows_max)

    def missing(self, keys: Keys) -> RowIds:
        """Return the (V,) positions of the keys that have no row, rising; changes nothing."""
        return np.flatnonzero(self._find(keys) < 0)

    def admit(self, keys: Keys, weights: Floats, *, is_stale: bool) -> None:
        """Give keys without a row one: weights and base as given, first state; this is a use.

        Args:
            keys: none of which has a row.
            weights: (U * dim,) float32, as the servers have them.
            is_stale: whether ``take_stale`` shall name them.

        Raises:
            TableFullError: there is no room; nothing was admitted. ``drop`` others first.
            NotFiniteError: a weight is NaN or huge; nothing was admitted.
        """
        self.check_assign(keys, weights)
        if self.num_rows + keys.size > self.spec.capacity_max:
            raise TableFullError(f"table {self.spec.name!r}: the local copy has no room")
        self.assign(keys, weights)
        row_ids = self._find(keys)
        rows.assign(self._base, self.spec.dim, self.spec.dim, row_ids, read_only(weights))
        self._keys[row_ids] = keys
        self._marks[row_ids] = _STALE if is_stale else 0
        local.enter(self._links, self.spec.capacity_max, row_ids)

    def read(self, keys: Keys) -> Floats:
        """Return (U, dim) weights of keys that have a row; this is a use."""
        out = np.empty(keys.size * self.spec.dim, np.float32)
        self.peek(keys, out)
        self._use(self._find(keys))
        return out.reshape(keys.size, self.spec.dim)

    def use(self, keys: Keys) -> None:
        """Make those of the keys that have a row the ones that were used last."""
        row_ids = self._find(keys)
        self._use(row_ids[row_ids >= 0])

    def step(self, keys: Keys, grads: Floats) -> None:
        """Apply one optimizer step to keys that have a row, which makes them dirty; a use.

        Args:
            keys: all of which have a row.
            grads: (U * dim,) float32.

        Raises:
            NotFiniteError, TableStoppedError: as ``on_nan`` of the spec says; nothing was changed.
        """
        row_ids = self._find(keys)
        assert row_ids.size == 0 or row_ids.min() >= 0
        self.push(keys, self.check_push(keys, grads))
        self.version += 1
        self._marks[row_ids] |= _DIRTY
        self._use(row_ids)

    def take(self, keys: Keys) -> tuple[Keys, Floats]:
        """Take the progress of keys that have a row.

        Returns:
            The (V,) keys of those that are dirty, in their order, and (V * dim,) differences; they
            are clean now, and their weights are their base.
        """
        row_ids = self._find(keys)
        return self._take(row_ids[(self._marks[row_ids] & _DIRTY) != 0])

    def take_all(self) -> tuple[Keys, Floats]:
        """Take the progress of all rows, in the order of their row ids; see ``take``."""
        marks = self._marks[: self._index.num_rows_touched]
        return self._take(np.flatnonzero(marks & _DIRTY))

    def mark_stale(self, keys: Keys) -> None:
        """Let ``take_stale`` name keys, all of which have a row."""
        self._marks[self._find(keys)] |= _STALE

    def take_stale(self) -> Keys:
        """Return the keys that are stale, once each; they are no longer."""
        row_ids = np.flatnonzero(self._marks[: self._index.num_rows_touched] & _STALE)
        self._marks[row_ids] &= ~_STALE
        return self._keys[row_ids]

    def all_keys(self) -> Keys:
        """Return the keys of all rows, oldest use first."""
        return self.oldest(self.num_rows)

    def settle(self, keys: Keys, values: Floats) -> None:
        """Take over newer values of the servers, and keep the progress made since ``take``.

        Args:
            keys: those without a row are passed over.
            values: (U * dim,) float32, finite.
        """
        check_values(f"settle {self.spec.name!r}", keys, values, dim=self.spec.dim)
        row_ids = self._find(keys)
        local.settle(
            self._rows, self._stride, self.spec.dim, row_ids, self._base, read_only(values)
        )

    def oldest(self, count: int) -> Keys:
        """Return the keys of the rows that were used longest ago, oldest first."""
        row_ids = np.empty(count, np.int64)
        local.oldest(self._links, self.spec.capacity_max, row_ids)
        return self._keys[row_ids]

    def drop(self, keys: Keys) -> None:
        """Remove the rows of keys that have one, none of it dirty; their optimizer state is gone."""
        row_ids = self._find(keys)
        assert not np.any(self._marks[row_ids] & _DIRTY)
        self._marks[row_ids] = 0
        local.leave(self._links, row_ids)
        self.erase(keys)

    @override
    def check(self) -> None:
        """Assert every invariant; linear in the table's size."""
        super().check()
        keys = self.all_keys()
        row_ids = self._find(keys)
        assert np.array_equal(np.sort(keys), np.unique(keys))
        assert np.array_equal(self._keys[row_ids], keys)
        clean = row_ids[(self._marks[row_ids] & _DIRTY) == 0]
        assert not np.any(self._progress(clean))

    def _find(self, keys: Keys) -> RowIds:
        row_ids = np.empty(keys.size, np.int64)
        self._index.find(read_only(keys), row_ids)
        return row_ids

    def _use(self, row_ids: RowIds) -> None:
        local.leave(self._links, row_ids)
        local.enter(self._links, self.spec.capacity_max, row_ids)

    def _take(self, row_ids: RowIds) -> tuple[Keys, Floats]:
        dim = self.spec.dim
        out = np.empty(row_ids.size * dim, np.float32)
        local.take(self._rows, self._stride, dim, row_ids, self._base, out)
        self._marks[row_ids] &= ~_DIRTY
        return self._keys[row_ids], out

    def _progress(self, row_ids: RowIds) -> Floats:
        """Return (U, dim) weights minus base."""
        dim = self.spec.dim
        mine = self._rows.reshape(-1, self._stride)[row_ids, :dim]
        progress: Floats = mine - self._base.reshape(-1, dim)[row_ids]
        return progress


class LocalDense:
    """A dense table's vector, kept and trained in this process. Owner: one thread.

    Attributes:
        table: weights, optimizer state and version.
    """

    def __init__(self, spec: DenseSpec, values: Floats) -> None:
        """Begin with the servers' values.

        Args:
            spec: of the table on the servers; its optimizer is the one that ``step`` applies.
            values: (length,) float32; copied.
        """
        self.table = DenseTable(spec, size=spec.length)
        self._bounds = parts_of_slice(spec.length)
        for part, (begin, end) in enumerate(self._bounds):
            self.table.init(part, values[begin:end], trainer=b"")
        self._base = values.copy()

    def values(self) -> Floats:
        """Return a copy of the (length,) weights."""
        return np.concatenate([self.table.pull(part) for part in range(len(self._bounds))])

    def step(self, grads: Floats) -> None:
        """Apply one optimizer step.

        Args:
            grads: (length,) float32.

        Raises:
            ShapeError, NotFiniteError: nothing was changed.
        """
        for part, (begin, end) in enumerate(self._bounds):
            self.table.check_push(part, grads[begin:end])
        for part, (begin, end) in enumerate(self._bounds):
            self.table.push(part, grads[begin:end])
        self.table.version += 1

    def take(self) -> Floats:
        """Return the (length,) progress since the last time; the weights are the base now."""
        values = self.values()
        progress, self._base = values - self._base, values
        return progress

    def settle(self, values: Floats) -> None:
        """Take over newer values of the servers, and keep the progress made since ``take``."""
        for part, (begin, end) in enumerate(self._bounds):
            weights = self.table.pull(part)
            size = end - begin
            base, new = self._base[begin:end], read_only(values[begin:end])
            local.settle(weights, size, size, np.zeros(1, np.int64), base, new)
