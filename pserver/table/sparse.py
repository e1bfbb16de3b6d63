"""A sparse table: named rows for an open key space, on one shard.

Rooms before and after: ``server.servicer`` calls this in the shard's owner thread with arrays
that view the message; ``index`` and ``slab`` hold the data; ``kernel`` does the loops.

What always holds:
    * A call either happens whole or raises and changes nothing.
    * ``version`` counts applied pushes; ``epoch`` is stamped on every row that changes.
    * A pull that must not create changes nothing at all.
Owner: the shard's owner thread.
"""

import numpy as np

from pserver.arrays import Epochs, Floats, Keys, RowIds
from pserver.errors import TableStoppedError, UnavailableError
from pserver.kernel import rows
from pserver.occurrences import NO_OCCURRENCES, Occurrences
from pserver.spec import TableSpec
from pserver.table.accessor import make_accessor
from pserver.table.fields import Fields
from pserver.table.gate import make_gate
from pserver.table.hot import Hot
from pserver.table.index import Index
from pserver.table.initializer import make_initializer
from pserver.table.keeping import Keeping
from pserver.table.layout import AnySlab, first_part_of, make_rows
from pserver.table.repeats import distinct_rows, without_repeats
from pserver.table.room import Room
from pserver.table.row import Row, Watch, row_of
from pserver.table.storage import MEMORY_ONLY, AnyMapping, Storage
from pserver.table.values import check_said, check_values, mended_values, read_only


class SparseTable:
    """Rows of ``dim`` weights and optimizer state, one for each key that was ever created.

    Attributes:
        spec: what the table is, every rule spelled out.
        version: applied pushes.
        epoch: 1 and up; each row remembers the epoch in which it last changed.
        accessor: of the spec.
        fields: the words of each row that the table's rules ask for.
        gate: decides which pushed keys get a row; None: all, and pulled ones too.
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
        self.version, self.epoch = 0, 1
        self.watch: Watch | None = None
        self.stopped = ""
        self.accessor = make_accessor(spec.accessor)
        self._optimizer = first_part_of(spec, self.accessor)
        self._initializer = make_initializer(spec.initializer, table=spec.name, seed=spec.seed)
        self._storage = storage
        self.keeping = Keeping(spec)
        self._open()
        self.keeping.check_capacity(spec)
        self._compile()

    def _open(self) -> None:
        """Begin without rows, in fresh memory. If the system refuses it, nothing is changed."""
        spec, accessor = self.spec, self.accessor
        words = (*accessor.fields, *self.keeping.fields)
        fields = Fields(spec.capacity_max, words, table=spec.name)
        slab = make_rows(
            spec, accessor, self._optimizer, fields, self._initializer, storage=self._storage
        )
        index = Index(spec.capacity_max, slab.free_rows, table=spec.name)
        self.gate = make_gate(spec, accessor, index)
        self._index, self._slab, self.fields = index, slab, fields
        self._room = Room(spec, slab, index)
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
        """Return the bytes in use: rows ever touched, the index, and what admission counts."""
        touched = self._index.num_rows_touched * self.row_bytes + self._slab.extra_bytes
        counted = 0 if self.gate is None else self.gate.filter.num_bytes
        return touched + self._index.num_bytes + counted

    def check_pull(self, keys: Keys) -> None:
        """Refuse keys whose new rows would not fit.

        Raises:
            TableFullError: there is no room for them; nothing was created.
        """
        if self.gate is None:
            self._room.check(keys)

    def pull(self, keys: Keys, out: Floats) -> None:
        """Write the weights of each key, creating rows with first weights where there are none.

        With an admission other than ``always`` only a push creates rows: then this is ``peek``.

        Args:
            keys: (U,) uint64, repeats allowed.
            out: (U * dim,) float32, written.

        Raises:
            TableFullError: no room for the new rows; nothing was created or written.
        """
        if self.gate is not None:
            self.peek(keys, out)
            return
        assert out.size == keys.size * self.spec.dim
        row_ids = self._rows_for(keys)
        self._slab.gather(row_ids, out)
        self.keeping.settle(row_ids, self.erase)

    def peek(self, keys: Keys, out: Floats, *, unknown: str = "") -> Keys:
        """Write the weights of each key, change nothing, and return the keys that have no row.

        Args:
            keys: (U,) uint64, repeats allowed.
            out: (U * dim,) float32, written.
            unknown: what a key without a row reads as: its "first" weights to come, or "zeros"; empty:
                as the spec says.
        """
        assert out.size == keys.size * self.spec.dim
        row_ids = self.find(keys)
        self._slab.gather(row_ids, out)
        where = np.flatnonzero(row_ids < 0)
        if where.size and (unknown or self.spec.unknown_reads) == "zeros":
            out.reshape(keys.size, self.spec.dim)[where] = 0.0
        elif where.size:
            self._slab.preview_first(self._initializer, read_only(keys), where, out)
        return keys[where]

    def row(self, key: int) -> Row | None:
        """Return a copy of the row of a key, or None where it has none; changes nothing."""
        row_id = int(self.find(np.array([key], np.uint64))[0])
        return None if row_id < 0 else row_of(row_id, self._slab, self.fields, self.accessor)

    def stop(self, why: str) -> None:
        """Take no more pushes, until ``clear``. The first reason stays."""
        self.stopped = self.stopped or why

    def check_push(self, keys: Keys, grads: Floats, said: Occurrences = NO_OCCURRENCES) -> Floats:
        """Return the gradients that ``push`` may apply, or refuse what it could not apply whole.

        Args:
            keys: (U,) uint64.
            grads: (U * dim,) float32.
            said: of the keys, beside.

        Returns:
            ``grads`` itself; with ``on_nan`` "zero", a copy if any was NaN, infinite or over
            ``VALUE_MAX``: those are 0 in it.

        Raises:
            TableStoppedError: the table takes no more pushes.
            ShapeError: the lengths disagree, or shows or clicks are out of range.
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
        check_said(where, keys, said, divides=self._slab.scales)
        if self.gate is None:
            self._room.check(keys)
        else:
            self.gate.check_room(keys, said, self._room, version=self.version)
        return grads

    def push(self, keys: Keys, grads: Floats, said: Occurrences = NO_OCCURRENCES) -> None:
        """Apply one optimizer step to the row of each key, creating rows where there are none.

        Repeated keys are summed first. Keys without a row that admission does not let in are counted,
        and their gradients dropped. The caller has called ``check_push``.

        Args:
            keys: (U,) uint64, repeats allowed.
            grads: (U * dim,) float32, finite.
            said: of the keys, beside.
        """
        keys, grads = read_only(keys), read_only(grads)
        if self.gate is not None:
            to = (self._slab, self._rows_for)
            keys, grads, said = self.gate.let_in(keys, grads, said, *to, version=self.version)
        row_ids = self._rows_to_change(keys)
        keys, row_ids, grads, said = without_repeats(self._slab, keys, row_ids, grads, said)
        self._slab.step(keys, row_ids, grads, said, version=self.version)
        self.hot.note(keys)
        self._wrote(row_ids)

    def add(self, keys: Keys, deltas: Floats) -> None:
        """Add (U * dim,) ``deltas`` to weights; state stays, and no admission. Otherwise as ``push``."""
        row_ids = self._rows_to_change(keys)
        what = (keys, row_ids, read_only(deltas), NO_OCCURRENCES)
        keys, row_ids, deltas, _ = without_repeats(self._slab, *what)
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
        self._room.check(keys)
        return weights

    def assign(self, keys: Keys, weights: Floats) -> None:
        """Write weights as they are, creating rows where there are none, admitted or not; state stays.

        The caller has called ``check_assign``.

        Args:
            keys: (U,) uint64; of repeats the last one counts.
            weights: (U * dim,) float32, finite.
        """
        row_ids = self._rows_to_change(keys)
        self._slab.assign(row_ids, read_only(weights))
        self._wrote(distinct_rows(self._slab, row_ids))

    def erase(self, keys: Keys) -> int:
        """Remove each key that has a row, and return how many had one.

        Freed row ids are used again; a key that comes back begins with first weights and state. What
        admission counted of the keys one by one is forgotten too.
        """
        keys = read_only(keys)
        if self.watch is not None:
            self.watch.before_erase(keys, self.find(keys))
        if self.gate is not None:
            self.gate.filter.forget(keys)
        num_erased = self._index.erase(keys)
        self._slab.release(self._index.last_freed(num_erased))
        self.keeping.on_erase(keys)
        return num_erased

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
        counted = [] if self.gate is None else self.gate.filter.mappings
        return [*self._slab.mappings, *self.fields.mappings, *self._index.mappings, *counted]

    # --- for saves and loads, see ``dump`` and ``cut`` ------------------------------------------

    @property
    def epochs(self) -> Epochs:
        """Return the epoch of each row id."""
        return self._slab.epochs

    @property
    def slab(self) -> AnySlab:
        """Return what holds the rows."""
        return self._slab

    def find(self, keys: Keys) -> RowIds:
        """Return the (U,) row id of each key, -1 where it has no row."""
        row_ids = np.empty(keys.size, np.int64)
        self._index.find(read_only(keys), row_ids)
        return row_ids

    def entries(self, partition: int) -> tuple[Keys, RowIds]:
        """Return the keys and row ids of a partition, in no order."""
        return self._index.entries(partition)

    def rows_to_fill(self, keys: Keys) -> RowIds:
        """Return a row id for each of (U,) distinct keys; the caller writes all of each row anew.

        Raises:
            TableFullError: there is no room for the new rows; nothing was created.
        """
        row_ids = self._rows_to_change(keys)
        self._slab.release(row_ids)
        return row_ids

    def check(self) -> None:
        """Assert every invariant of the table; linear in its size."""
        self._index.check()
        assert not self._slab.marks.any()
        touched = self._index.num_rows_touched
        assert touched <= self.spec.capacity_max
        assert np.all(self._slab.epochs[:touched] <= self.epoch)
        self._slab.check(np.setdiff1d(np.arange(touched), self._index.free), touched)
        if self.gate is not None:
            self.gate.filter.check()

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
        self._room.check(keys)
        row_ids = np.empty(keys.size, np.int64)
        created = np.empty(keys.size, np.int64)
        num_created = self._index.find_or_insert(keys, row_ids, created)
        if num_created:
            where = created[:num_created]
            new_rows = row_ids[where]
            self._slab.write_first(self._initializer, keys, where, new_rows)
            self.fields.begin(new_rows)
            self.keeping.begin(new_rows)
            if self.gate is not None:
                self.gate.filter.forget(read_only(keys[where]))
            rows.stamp(self._slab.epochs, new_rows, np.uint32(self.epoch))
        return row_ids


def warmup() -> None:
    """Compile the kernels of all tables; an optimizer's own is when its table is made."""
    SparseTable(TableSpec(name="warmup", dim=1, capacity_max=1))
