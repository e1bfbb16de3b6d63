"""The rows of a table: weights, optimizer state, epochs and the free list, never moved.

Rooms before and after: ``sparse`` finds row ids and asks for what is to happen with those rows;
``storage`` gives the arrays, in memory or on a file; ``kernel`` does the loops.

What always holds: weights go in and out as float32, whatever they are kept in; fresh memory reads as
zero; the arrays keep their addresses for life. Epochs, marks and the free list are always in memory.
Owner: the shard's owner thread.
"""

import numpy as np

from pserver.arrays import Doubles, Epochs, Floats, Keys, RowIds, Words
from pserver.kernel import initializer as first
from pserver.kernel import optim, rows
from pserver.table.initializer import Initializer
from pserver.table.optimizer import Optimizer
from pserver.table.storage import AnyMapping, Mapping, Storage


class Slab:
    """The arrays that hold a table's rows, each ``dim`` weights and what the optimizer keeps.

    Attributes:
        stride: floats of a row, weights and then state.
        epochs: (rows_max,) uint32: the table's epoch when the row last changed.
        free_rows: (rows_max,) int64: a stack of freed row ids; its height is in the index.
        marks: (rows_max / 64,) uint64: all zero between calls, see ``rows.first_repeat``.
    """

    def __init__(
        self, rows_max: int, optimizer: Optimizer, *, table: str, kind: str, storage: Storage
    ) -> None:
        """Reserve address space for ``rows_max`` rows.

        Args:
            rows_max: rows at most.
            optimizer: steps the rows, and says how many floats they have.
            table: named in errors.
            kind: ``memory`` or ``file``.
            storage: where files lie.

        Raises:
            ConfigError: the system refused, or there is no place for files.
        """
        what = f"table {table!r}"
        self.dim = optimizer.dim
        self.stride = optimizer.dim + optimizer.state_dim
        self._optimizer = optimizer
        self._mappings = (
            Mapping(rows_max, np.uint32, what=what),
            Mapping(rows_max, np.int64, what=what),
            Mapping(-(-rows_max // 64), np.uint64, what=what),
        )
        self.epochs: Epochs = self._mappings[0].array
        self.free_rows: RowIds = self._mappings[1].array
        self.marks: Words = self._mappings[2].array
        count = rows_max * self.stride
        self._floats: AnyMapping = storage.map_rows(kind, count, np.float32, table=table)
        self.rows: Floats = self._floats.array

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row: weights, state and epoch."""
        return 4 * self.stride + 4

    @property
    def refusal(self) -> str:
        """Return why ``reserve`` granted less than was asked for."""
        return self._floats.refusal

    def reserve(self, num_rows: int) -> int:
        """Make room for row ids below ``num_rows``, and return below which there is room now."""
        return self._floats.reserve(num_rows * self.stride) // self.stride

    def gather(self, row_ids: RowIds, out: Floats) -> None:
        """Write the weights of the named rows.

        Args:
            row_ids: (U,) int64; -1 means no row.
            out: (U * dim,) float32, written; left alone where there is no row.
        """
        rows.gather(self.rows, self.stride, self.dim, row_ids, out)

    def assign(self, row_ids: RowIds, weights: Floats) -> None:
        """Write weights, (U * dim,) read-only, into the named rows; state stays."""
        rows.assign(self.rows, self.stride, self.dim, row_ids, weights)

    def add(self, row_ids: RowIds, deltas: Floats) -> None:
        """Add (U * dim,) read-only ``deltas`` to the weights of the named rows; state stays."""
        one = np.ones(1)  # the learning rate of a plain sum
        optim.sum_up(self.rows, self.stride, self.dim, row_ids, deltas, one, one)

    def step(self, keys: Keys, row_ids: RowIds, grads: Floats, *, version: int) -> None:
        """Apply one step of the optimizer to the named rows.

        Args:
            keys: (U,) of the rows.
            row_ids: (U,) distinct.
            grads: (U * dim,) finite, read-only.
            version: pushes applied before this one.
        """
        del keys
        self._optimizer.apply(self.rows, row_ids, grads, version=version)

    def write_first(self, rule: Initializer, keys: Keys, where: RowIds, row_ids: RowIds) -> None:
        """Write first weights and first state.

        Args:
            rule: of the weights.
            keys: (U,).
            where: (V,) positions of the keys whose row is new.
            row_ids: (V,) of these rows.
        """
        state = self._optimizer.first_state
        _draw(
            rule, keys, where, row_ids, dim=self.dim, state=state, stride=self.stride, out=self.rows
        )

    def preview_first(self, rule: Initializer, keys: Keys, where: RowIds, out: Floats) -> None:
        """Write the first weights that ``keys[where]`` would get into the rows ``where`` of a block.

        Args:
            rule: of the weights.
            keys: (U,).
            where: (V,) positions in ``keys``.
            out: (U * dim,) float32, written.
        """
        state = self._optimizer.first_state
        _draw(rule, keys, where, where, dim=self.dim, state=state, stride=self.dim, out=out)

    def row(self, row_id: int) -> Floats:
        """Return a copy of a row, (stride,) float32: weights, then state."""
        return self.rows[row_id * self.stride : (row_id + 1) * self.stride].copy()

    def is_finite(self, num_rows: int) -> bool:
        """Return whether every float of the first ``num_rows`` rows is a finite number."""
        return bool(np.all(np.isfinite(self.rows[: num_rows * self.stride])))


def _draw(  # noqa: PLR0913 - the kernel's arguments
    rule: Initializer,
    keys: Keys,
    where: RowIds,
    targets: RowIds,
    *,
    dim: int,
    state: Doubles,
    stride: int,
    out: Floats,
) -> None:
    """Write first weights, and first state as far as ``stride`` has room, into rows of ``out``."""
    first.first_weights(
        rule.seed,
        rule.kind,
        rule.options,
        keys,
        where,
        targets,
        stride,
        dim,
        stride - dim,
        state,
        out,
    )
