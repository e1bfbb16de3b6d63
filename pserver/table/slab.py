"""The rows of a table: weights, optimizer state, epochs and the free list, never moved.

Rooms before and after: ``sparse`` finds row ids and asks for what is to happen with those rows;
``storage`` gives the arrays, in memory or on a file; ``kernel`` does the loops. Rows are float32 here;
``slab_half`` keeps weights in 16 bits, and ``make_slab`` there chooses.

What always holds: weights go in and out as float32, whatever they are kept in; fresh memory reads as
zero; the arrays keep their addresses for life. Epochs, marks and the free list are always in memory.
Owner: the shard's owner thread.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import override

from pserver.arrays import Doubles, Epochs, Floats, Keys, RowIds, Words
from pserver.kernel import initializer as first
from pserver.kernel import optim, rows
from pserver.occurrences import NO_FLOATS, Occurrences
from pserver.spec import TableSpec
from pserver.table.initializer import Initializer
from pserver.table.optimizer import Optimizer
from pserver.table.storage import AnyMapping, Mapping, Storage
from pserver.table.values import VALUE_MAX

Parts: TypeAlias = list[tuple[str, str, int]]
"""The parts of a row in one array: name, dtype and count of each."""


class Slab(ABC):
    """The arrays that hold a table's rows, each ``dim`` weights and what the optimizer keeps.

    Attributes:
        dim: weights a row.
        stride: floats of a row, weights and then state.
        epochs: (rows_max,) uint32: the table's epoch when the row last changed.
        free_rows: (rows_max,) int64: a stack of freed row ids; its height is in the index.
        marks: (rows_max / 64,) uint64: all zero between calls, see ``rows.first_repeat``.
        row_bytes: of a row: weights, state and epoch.
        file_row_bytes: of these, what lies on a file.
        weight_max: the largest magnitude of a weight that is assigned.
        place: which weight of the whole row is the first here, and how many the whole row has, where
            this is one of two parts.
    """

    def __init__(self, spec: TableSpec, optimizer: Optimizer, *, storage: Storage) -> None:
        """Reserve address space for what all kinds have.

        Args:
            spec: of the table.
            optimizer: steps the rows, and says how many floats they have.
            storage: where files lie.
        """
        what, rows_max = f"table {spec.name!r}", spec.capacity_max
        self.dim = optimizer.dim
        self.stride = optimizer.dim + optimizer.state_dim
        self._spec, self._optimizer, self._storage = spec, optimizer, storage
        self._kept: list[tuple[AnyMapping, int]] = []  # arrays of rows, and items a row
        self._mappings = (
            Mapping(rows_max, np.uint32, what=what),
            Mapping(rows_max, np.int64, what=what),
            Mapping(-(-rows_max // 64), np.uint64, what=what),
        )
        self.epochs: Epochs = self._mappings[0].array
        self.free_rows: RowIds = self._mappings[1].array
        self.marks: Words = self._mappings[2].array
        self.row_bytes = self.epochs.itemsize
        self.file_row_bytes = 0
        self.weight_max = VALUE_MAX
        self.place = (0, self.dim)

    def _keep(self, width: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array for ``width`` items of each row, where the spec says it lies."""
        if not width:
            return np.empty(0, dtype)
        spec = self._spec
        count = spec.capacity_max * width
        mapping = self._storage.map_rows(spec.storage, count, dtype, table=spec.name)
        self._kept.append((mapping, width))
        num_bytes = width * mapping.array.itemsize
        self.row_bytes += num_bytes
        self.file_row_bytes += num_bytes if spec.storage == "file" else 0
        return mapping.array

    @property
    def mappings(self) -> list[AnyMapping]:
        """Return the memory of the rows."""
        return [*(mapping for mapping, _ in self._kept), *self._mappings]

    @property
    def refusal(self) -> str:
        """Return why ``reserve`` granted less than was asked for."""
        return next((kept.refusal for kept, _ in self._kept if kept.refusal), "")

    def reserve(self, num_rows: int) -> int:
        """Make room for row ids below ``num_rows``, and return below which there is room now."""
        return min(kept.reserve(num_rows * width) // width for kept, width in self._kept)

    @property
    def scales(self) -> bool:
        """Return whether gradients are divided by the shows of their keys."""
        return self._optimizer.scales

    @property
    def extra_bytes(self) -> int:
        """Return the bytes in use beside those of every row."""
        return 0

    def _ask(self, row_ids: RowIds) -> None:
        """Let rows that lie on a file be read side by side; call it before they are touched."""
        for kept, width in self._kept:
            kept.ask(row_ids, width)

    def _state_parts(self) -> Parts:
        return [(f"state.{n}", "float32", count) for n, count in self._optimizer.parts.items()]

    @abstractmethod
    def blocks(self) -> list[tuple[NDArray[Any], Parts]]:
        """Return every array of rows, flat, with the parts of a row in it, in order."""

    @abstractmethod
    def gather(self, row_ids: RowIds, out: Floats) -> None:
        """Write the weights of the named rows.

        Args:
            row_ids: (U,) int64; -1 means no row.
            out: (U * dim,) float32, written; left alone where there is no row.
        """

    @abstractmethod
    def assign(self, row_ids: RowIds, weights: Floats) -> None:
        """Write weights, (U * dim,) read-only, into the named rows; state stays."""

    @abstractmethod
    def add(self, keys: Keys, row_ids: RowIds, deltas: Floats, *, version: int) -> None:
        """Add (U * dim,) read-only ``deltas`` to the weights; otherwise as ``step``; state stays."""

    @abstractmethod
    def step(
        self, keys: Keys, row_ids: RowIds, grads: Floats, said: Occurrences, *, version: int
    ) -> None:
        """Apply one step of the optimizer to the named rows.

        Args:
            keys: (U,) of the rows, read-only.
            row_ids: (U,) distinct.
            grads: (U * dim,) finite, read-only.
            said: of the keys, beside their gradients.
            version: pushes applied before this one.
        """

    @abstractmethod
    def write_first(self, rule: Initializer, keys: Keys, where: RowIds, row_ids: RowIds) -> None:
        """Write first weights and first state.

        Args:
            rule: of the weights.
            keys: (U,) read-only.
            where: (V,) positions of the keys whose row is new.
            row_ids: (V,) of these rows.
        """

    def preview_first(self, rule: Initializer, keys: Keys, where: RowIds, out: Floats) -> None:
        """Write the first weights that ``keys[where]`` would get into the rows ``where`` of a block.

        Args:
            rule: of the weights.
            keys: (U,) read-only.
            where: (V,) positions in ``keys``.
            out: (U * dim,) float32, written.
        """
        self._draw(rule, keys, where, where, stride=self.dim, out=out)

    @abstractmethod
    def row(self, row_id: int) -> Floats:
        """Return a copy of a row, (stride,) float32: weights, then state."""

    def weights_of(self, row_id: int) -> Floats:
        """Return a copy of a row's weights, (dim,) float32."""
        return self.row(row_id)[: self.dim]

    def state_of(self, row_id: int) -> dict[str, Floats]:
        """Return a copy of a row's state, by the name of each part, in the row's order."""
        floats, parts, start = self.row(row_id), {}, self.dim
        for name, count in self._optimizer.parts.items():
            parts[name] = floats[start : start + count]
            start += count
        return parts

    def release(self, row_ids: RowIds) -> None:
        """Be told that rows are gone; their row ids may come again."""
        del row_ids

    def check(self, row_ids: RowIds, num_rows: int) -> None:
        """Assert every invariant; ``row_ids`` are alive, ``num_rows`` were ever taken."""
        del row_ids
        assert self.is_finite(num_rows)

    @abstractmethod
    def is_finite(self, num_rows: int) -> bool:
        """Return whether every float of the first ``num_rows`` rows is a finite number."""

    def _draw(
        self,
        rule: Initializer,
        keys: Keys,
        where: RowIds,
        targets: RowIds,
        *,
        stride: int,
        out: Floats,
    ) -> None:
        """Write first weights into rows of ``out``, and first state as far as ``stride`` has room."""
        state: Doubles = self._optimizer.first_state
        first.first_weights(
            rule.seed,
            rule.kind,
            rule.options,
            keys,
            where,
            targets,
            stride,
            *self.place,
            self.dim,
            stride - self.dim,
            state,
            out,
        )


class FloatSlab(Slab):
    """Rows of float32, weights and state side by side.

    Attributes:
        rows: (rows_max * stride,) float32.
    """

    def __init__(self, spec: TableSpec, optimizer: Optimizer, *, storage: Storage) -> None:
        """Reserve address space; see ``Slab``.

        Raises:
            ConfigError: the system refused, or there is no place for files.
        """
        super().__init__(spec, optimizer, storage=storage)
        self.rows: Floats = self._keep(self.stride, np.float32)

    @override
    def blocks(self) -> list[tuple[NDArray[Any], Parts]]:
        return [(self.rows, [("weights", "float32", self.dim), *self._state_parts()])]

    @override
    def gather(self, row_ids: RowIds, out: Floats) -> None:
        self._ask(row_ids)
        rows.gather(self.rows, self.stride, self.dim, row_ids, out)

    @override
    def assign(self, row_ids: RowIds, weights: Floats) -> None:
        self._ask(row_ids)
        rows.assign(self.rows, self.stride, self.dim, row_ids, weights)

    @override
    def add(self, keys: Keys, row_ids: RowIds, deltas: Floats, *, version: int) -> None:
        self._ask(row_ids)
        one = np.ones(1)  # the learning rate of a plain sum
        optim.sum_up(self.rows, self.stride, self.dim, row_ids, deltas, one, one)

    @override
    def step(
        self, keys: Keys, row_ids: RowIds, grads: Floats, said: Occurrences, *, version: int
    ) -> None:
        self._ask(row_ids)
        shows = said.shown(row_ids.size) if self.scales else NO_FLOATS
        self._optimizer.apply(self.rows, row_ids, grads, version=version, shows=shows)

    @override
    def write_first(self, rule: Initializer, keys: Keys, where: RowIds, row_ids: RowIds) -> None:
        self._draw(rule, keys, where, row_ids, stride=self.stride, out=self.rows)

    @override
    def row(self, row_id: int) -> Floats:
        return self.rows[row_id * self.stride : (row_id + 1) * self.stride].copy()

    @override
    def is_finite(self, num_rows: int) -> bool:
        return bool(np.all(np.isfinite(self.rows[: num_rows * self.stride])))
