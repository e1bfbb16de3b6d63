"""A sparse table: named rows for an open key space, on one shard.

Rooms before and after: ``server.servicer`` calls this in the shard's owner thread with arrays
that view the message; ``index`` and ``slab`` hold the data; ``kernel`` does the loops.

What always holds:
    * A call either happens whole or raises and changes nothing.
    * ``version`` counts applied pushes; ``epoch`` is stamped on every row that changes.
    * A pull that must not create changes nothing at all.
Owner: the shard's owner thread.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Epochs, Floats, Keys, RowIds
from pserver.errors import TableFullError, TableStoppedError, UnavailableError
from pserver.kernel import rows
from pserver.spec import TableSpec
from pserver.table.fields import Fields
from pserver.table.hot import Hot
from pserver.table.index import Index
from pserver.table.initializer import make_initializer
from pserver.table.keeping import Keeping
from pserver.table.optimizer import make_optimizer
from pserver.table.repeats import without_repeats
from pserver.table.row import Row, Watch
from pserver.table.slab import Parts
from pserver.table.slab_half import make_slab
from pserver.table.storage import MEMORY_ONLY, AnyMapping, Storage
from pserver.table.values import check_values, mended_values, read_only


class SparseTable:
    """Rows of ``dim`` weights and optimizer state, one for each key that was ever created.

    Attributes:
        spec: what the table is, every rule spelled out.
        version: applied pushes.
        epoch: 1 and up; each row remembers the epoch in which it last changed.
        fields: the words of each row that the table's rules ask for.
        watch: is told of rows before they change; None costs nothing.
        hot: which keys are pushed most.
        keeping: which rows fall out, and what is remembered of them for that.
        stopped: why no push is taken any more, or an empty text. See ``stop``.
    """

    def __init__(self, spec: TableSpec, *, storage: Storage = MEMORY_ONLY) -> None:
        """Reserve address space; no memory is taken until rows come.

        Args:
            spec: what the table is.
            storage: where rows lie that are to be on a file.

        Raises:
            ConfigError: a rule of the spec is unknown, the system refused the address space, or the
                rows are to be on a file and there is no place for one.
        """
        self.spec = spec
        self.version = 0
        self.epoch = 1
        self.watch: Watch | None = None
        self.stopped = ""
        self._optimizer = make_optimizer(spec.optimizer, dim=spec.dim)
        self._initializer = make_initializer(spec.initializer, table=spec.name, seed=spec.seed)
        self._storage = storage
        self.keeping = Keeping(spec)
        self._open()
        self.keeping.check_capacity(spec)
        self._compile()

    def _open(self) -> None:
        """Begin without rows, in fresh memory. If the system refuses it, nothing is changed."""
        spec = self.spec
        slab = make_slab(spec, self._optimizer, self._initializer, storage=self._storage)
        fields = Fields(spec.capacity_max, self.keeping.fields, table=spec.name)
        self._index = Index(spec.capacity_max, slab.free_rows, table=spec.name)
        self._slab, self.fields = slab, fields
        self.keeping.use(fields, slab, self._index)
        self.hot = Hot()

    @property
    def num_rows(self) -> int:
        """Return the rows alive."""
        return self._index.num_rows

    @property
    def learning_rate(self) -> float:
        """Return the rate of the next push: the schedule at ``version`` applied ones."""
        return self._optimizer.schedule.at(self.version)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row in the slab: weights, state, epoch and words."""
        return self._slab.row_bytes + self.fields.row_bytes

    @property
    def num_bytes(self) -> int:
        """Return the bytes in use: rows ever touched, and the index."""
        return self._index.num_rows_touched * self.row_bytes + self._index.num_bytes

    def check_pull(self, keys: Keys) -> None:
        """Refuse keys whose new rows would not fit.

        Raises:
            TableFullError: there is no room for them; nothing was created.
        """
        self._check_room(keys)

    def pull(self, keys: Keys, out: Floats) -> None:
        """Write the weights of each key, creating rows with first weights where there are none.

        Args:
            keys: (U,) uint64, repeats allowed.
            out: (U * dim,) float32, written.

        Raises:
            TableFullError: no room for the new rows; nothing was created or written.
        """
        assert out.size == keys.size * self.spec.dim
        row_ids = self._rows_for(keys)
        self._slab.gather(row_ids, out)
        self.keeping.settle(row_ids, self.erase)

    def peek(self, keys: Keys, out: Floats) -> None:
        """Write the weights of each key and change nothing.

        A key without a row reads as the first weights that it would get, or as zeros, as the spec
        says.

        Args:
            keys: (U,) uint64, repeats allowed.
            out: (U * dim,) float32, written.
        """
        assert out.size == keys.size * self.spec.dim
        keys = read_only(keys)
        row_ids = np.empty(keys.size, np.int64)
        missing = self._index.find(keys, row_ids)
        self._slab.gather(row_ids, out)
        if missing:
            where = np.flatnonzero(row_ids < 0)
            if self.spec.unknown_reads == "zeros":
                out.reshape(keys.size, self.spec.dim)[where] = 0.0
                return
            self._slab.preview_first(self._initializer, keys, where, out)

    def row(self, key: int) -> Row | None:
        """Return a copy of the row of a key, or None where it has none; changes nothing."""
        row_ids = np.empty(1, np.int64)
        if self._index.find(read_only(np.array([key], np.uint64)), row_ids):
            return None
        row_id, dim = int(row_ids[0]), self.spec.dim
        floats = self._slab.row(row_id)
        state, start = {}, dim
        for name, count in self._optimizer.parts.items():
            state[name] = floats[start : start + count]
            start += count
        return Row(floats[:dim], state, int(self._slab.epochs[row_id]), self.fields.row(row_id))

    def stop(self, why: str) -> None:
        """Take no more pushes, until ``clear``. The first reason stays."""
        self.stopped = self.stopped or why

    def check_push(self, keys: Keys, grads: Floats) -> Floats:
        """Return the gradients that ``push`` may apply, or refuse what it could not apply whole.

        Args:
            keys: (U,) uint64.
            grads: (U * dim,) float32.

        Returns:
            ``grads`` itself; with ``on_nan`` "zero", a copy if any was NaN, infinite or over
            ``VALUE_MAX``: those are 0 in it.

        Raises:
            TableStoppedError: the table takes no more pushes.
            ShapeError: the lengths disagree.
            NotFiniteError: a gradient cannot be computed with; the key is named.
            TableFullError: there is no room for the new rows.
        """
        where = f"push {self.spec.name!r}"
        if self.stopped:
            raise TableStoppedError(f"{where}: {self.stopped}")
        if self.spec.on_nan == "zero":
            grads = mended_values(where, keys, grads, dim=self.spec.dim)
        else:
            check_values(where, keys, grads, dim=self.spec.dim)
        self._check_room(keys)
        return grads

    def push(self, keys: Keys, grads: Floats) -> None:
        """Apply one optimizer step to the row of each key, creating rows where there are none.

        Repeated keys are summed first. The caller has called ``check_push``.

        Args:
            keys: (U,) uint64, repeats allowed.
            grads: (U * dim,) float32, finite.
        """
        grads = read_only(grads)
        row_ids = self._rows_to_change(keys)
        keys, row_ids, grads = without_repeats(self._slab, keys, row_ids, grads)
        self._slab.step(keys, row_ids, grads, version=self.version)
        self.hot.note(keys)
        self._wrote(row_ids)

    def add(self, keys: Keys, deltas: Floats) -> None:
        """Add (U * dim,) ``deltas`` to weights; state stays. Otherwise as ``push``."""
        row_ids = self._rows_to_change(keys)
        keys, row_ids, deltas = without_repeats(self._slab, keys, row_ids, read_only(deltas))
        self._slab.add(keys, row_ids, deltas, version=self.version)
        self.hot.note(keys)
        self._wrote(row_ids)

    def check_assign(self, keys: Keys, weights: Floats) -> Floats:
        """Return the weights, or refuse what ``assign`` could not write whole.

        Raises:
            ShapeError, NotFiniteError, TableFullError: as of ``check_push``; ``on_nan`` is for
                pushes only.
        """
        where, limit = f"assign {self.spec.name!r}", self._slab.weight_max
        check_values(where, keys, weights, dim=self.spec.dim, limit=limit)
        self._check_room(keys)
        return weights

    def assign(self, keys: Keys, weights: Floats) -> None:
        """Write weights as they are, creating rows where there are none; state stays.

        The caller has called ``check_assign``.

        Args:
            keys: (U,) uint64; of repeats the last one counts.
            weights: (U * dim,) float32, finite.
        """
        row_ids = self._rows_to_change(keys)
        self._slab.assign(row_ids, read_only(weights))
        self._wrote(row_ids)

    def erase(self, keys: Keys) -> int:
        """Remove each key that has a row, and return how many had one.

        Freed row ids are used again; a key that comes back begins with first weights and state.
        """
        keys = read_only(keys)
        if self.watch is not None:
            row_ids = np.empty(keys.size, np.int64)
            self._index.find(keys, row_ids)
            self.watch.before_erase(keys, row_ids)
        return self._index.erase(keys)

    def clear(self) -> list[AnyMapping]:
        """Remove all rows at once; spec, version and epoch stay, and pushes are taken again.

        Returns:
            The memory that they were in, to be left in slices.

        Raises:
            UnavailableError: a save of the table is under way. Nothing was changed.
            ConfigError: the system refused fresh address space. Nothing was changed.
        """
        old = self.leave()
        self._open()
        self.stopped = ""
        return old

    def leave(self) -> list[AnyMapping]:
        """Return all memory of the rows, for whoever gives it back when the table is gone.

        Raises:
            UnavailableError: a save of the table is under way.
        """
        if self.watch is not None and self.watch.is_saving:
            raise UnavailableError(
                f"table {self.spec.name!r}: a save of it is under way; try again when it is done"
            )
        self.watch = None  # a delta cannot say that all rows are gone: the next save must be full
        return [*self._slab.mappings, *self.fields.mappings, *self._index.mappings]

    # --- for saves and loads, see ``dump`` and ``cut`` ------------------------------------------

    @property
    def epochs(self) -> Epochs:
        """Return the epoch of each row id."""
        return self._slab.epochs

    def memory(self) -> list[tuple[NDArray[Any], Parts]]:
        """Return every array that makes up the rows, flat, with the parts of a row in order.

        A part is its name, how its bits are read, and how many items it has.
        """
        words: Parts = [(f"field.{f.name}", f.kind, 1) for f in self.fields.fields.values()]
        blocks = [*self._slab.blocks(), (self.fields.words, words)]
        return [*(block for block in blocks if block[1]), (self.epochs, [("epochs", "uint32", 1)])]

    def entries(self, partition: int) -> tuple[Keys, RowIds]:
        """Return the keys and row ids of a partition, in no order."""
        return self._index.entries(partition)

    def rows_to_fill(self, keys: Keys) -> RowIds:
        """Return a row id for each of (U,) distinct keys; the caller writes all of each row.

        Raises:
            TableFullError: there is no room for the new rows; nothing was created.
        """
        return self._rows_to_change(keys)

    def check(self) -> None:
        """Assert every invariant of the table; linear in its size."""
        self._index.check()
        assert not self._slab.marks.any()
        touched = self._index.num_rows_touched
        assert touched <= self.spec.capacity_max
        assert np.all(self._slab.epochs[:touched] <= self.epoch)
        assert self._slab.is_finite(touched)

    def _compile(self) -> None:
        """Run every kernel of this table on nothing, so that no request waits for a compiler."""
        keys, values = np.empty(0, np.uint64), np.empty(0, np.float32)
        nowhere = np.empty(0, np.int64)
        self.check_push(keys, values)
        self.push(keys, values)
        self.add(keys, values)
        self.assign(keys, values)
        self.pull(keys, values)
        self.peek(keys, values)
        self.erase(keys)
        self.entries(0)
        self.keeping.compile()
        rows.sum_repeats(nowhere, read_only(values), self.spec.dim, values)
        self._slab.write_first(self._initializer, read_only(keys), nowhere, nowhere)

    def _wrote(self, row_ids: RowIds) -> None:
        """Note that rows changed, and let others fall out if there are too many now."""
        rows.stamp(self._slab.epochs, row_ids, np.uint32(self.epoch))
        self.keeping.wrote(row_ids)
        self.keeping.settle(row_ids, self.erase)

    def will_change(self, keys: Keys, row_ids: RowIds) -> None:
        """Tell who watches of (U,) rows that are about to change, and note that they do."""
        if self.watch is not None:
            self.watch.before_change(keys, row_ids)
        rows.stamp(self._slab.epochs, row_ids, np.uint32(self.epoch))

    def _rows_to_change(self, keys: Keys) -> RowIds:
        """Return the row id of each key as ``_rows_for``, after telling who watches the table."""
        row_ids = self._rows_for(keys)
        if self.watch is not None:
            self.watch.before_change(keys, row_ids)
        return row_ids

    def _rows_for(self, keys: Keys) -> RowIds:
        """Return the row id of each key; new rows have their first weights and state."""
        keys = read_only(keys)
        self._check_room(keys)
        row_ids = np.empty(keys.size, np.int64)
        created = np.empty(keys.size, np.int64)
        num_created = self._index.find_or_insert(keys, row_ids, created)
        if num_created:
            where = created[:num_created]
            new_rows = row_ids[where]
            self._slab.write_first(self._initializer, keys, where, new_rows)
            self.fields.begin(new_rows)
            self.keeping.begin(new_rows)
            rows.stamp(self._slab.epochs, new_rows, np.uint32(self.epoch))
        return row_ids

    def _check_room(self, keys: Keys) -> None:
        """Refuse keys whose new rows would not fit."""
        room = self._room(keys.size)
        if keys.size <= room:
            return
        row_ids = np.empty(keys.size, np.int64)
        self._index.find(read_only(keys), row_ids)
        missing = np.unique(keys[row_ids < 0]).size
        room = self._room(missing)
        if missing > room:
            what = f"of capacity_max {self.spec.capacity_max} on this shard; raise capacity_max"
            if self.num_rows + room < self.spec.capacity_max:
                what = f"on this shard: {self._slab.refusal}; free some space there"
            raise TableFullError(
                f"table {self.spec.name!r}: {missing} new rows needed, room for {room} {what}, "
                "or add shards"
            )

    def _room(self, wanted: int) -> int:
        """Return how many new rows there is room for, after making it for ``wanted`` if possible."""
        rows_max = min(self.num_rows + wanted, self.spec.capacity_max)
        top = max(rows_max, self._index.num_rows_touched)
        return min(self._slab.reserve(top), self.spec.capacity_max) - self.num_rows


def warmup() -> None:
    """Compile the kernels that every table uses, or load them from numba's cache.

    A table's own optimizer is compiled when the table is made, before its first request.
    """
    SparseTable(TableSpec(name="warmup", dim=1, capacity_max=1))
