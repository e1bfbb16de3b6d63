"""Rows whose weights are kept in 16 bits: bfloat16 or float16, with state in float32.

Rooms before and after: as of ``slab``, whose promises these are; ``kernel.halves`` rounds.

A step takes the rows of a push, some hundred at a time, into a float32 block that stays in the
processor's cache, runs the optimizer's own kernel on the block, and rounds the weights back by chance;
so every optimizer works, and steps that are too small for 16 bits count on average. First weights and
assigned ones are rounded to the nearest, so what was written once is what is read.

What always holds:
    * A rounded weight is a function of (table, key, version, weight before rounding).
    * Finite stays finite: a step beyond the largest number (65504 for float16) ends there. To assign
      such a weight is refused (``weight_max``), and so is to begin with one (``make_slab``).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from pserver.arrays import Floats, Halves, Keys, RowIds
from pserver.errors import ConfigError
from pserver.kernel import halves, optim
from pserver.occurrences import NO_FLOATS, Occurrences
from pserver.spec import TableSpec
from pserver.table.initializer import Initializer, table_seed
from pserver.table.optimizer import Optimizer
from pserver.table.slab import FloatSlab, Parts, Slab
from pserver.table.storage import Storage

FLOAT16_MAX = 65504.0
"""The largest float16."""

_KINDS = {"bfloat16": halves.BFLOAT16, "float16": halves.FLOAT16}
_SAVED_AS = {"bfloat16": "uint16", "float16": "float16"}  # numpy has no bfloat16

_BLOCK_FLOATS = 1 << 16
"""Floats of rows that are stepped at once: 256 KiB, half of a small second-level cache."""


class HalfSlab(Slab):
    """Rows of 16-bit weights, and their state.

    Attributes:
        weights: (rows_max * dim,) uint16, the bits.
        state: (rows_max * state_dim,) float32; empty if the optimizer keeps none.
    """

    def __init__(
        self, spec: TableSpec, optimizer: Optimizer, *, storage: Storage, part: str
    ) -> None:
        """Reserve address space; see ``Slab``."""
        super().__init__(spec, optimizer, storage=storage)
        self._kind = _KINDS[spec.row_dtype]
        self._state_dim = optimizer.state_dim
        if self._kind == halves.FLOAT16:
            self.weight_max = FLOAT16_MAX
        self._seed = table_seed(f"{spec.name} rounding {part}", spec.seed)
        self.weights: Halves = self._keep(self.dim, np.uint16)
        self.state: Floats = self._keep(self._state_dim, np.float32)
        self._block_rows = max(1, _BLOCK_FLOATS // self.stride)
        self._order = np.arange(self._block_rows)
        self._block = np.empty(self._block_rows * self.stride, np.float32)

    @override
    def blocks(self) -> list[tuple[NDArray[Any], Parts]]:
        dtype = _SAVED_AS[self._spec.row_dtype]
        return [(self.weights, [("weights", dtype, self.dim)]), (self.state, self._state_parts())]

    @override
    def gather(self, row_ids: RowIds, out: Floats) -> None:
        self._ask(row_ids)
        halves.gather(self.weights, self.dim, self._kind, row_ids, self.dim, out)

    @override
    def assign(self, row_ids: RowIds, weights: Floats) -> None:
        self._ask(row_ids)
        halves.put(weights, self.dim, self.dim, self._kind, row_ids, self.weights)

    @override
    def add(self, keys: Keys, row_ids: RowIds, deltas: Floats, *, version: int) -> None:
        self._ask(row_ids)
        one = np.ones(1)  # the learning rate of a plain sum
        for start in range(0, max(1, row_ids.size), self._block_rows):
            part = slice(start, start + self._block_rows)
            ids, block, order = self._take(row_ids[part])
            some = deltas[part.start * self.dim : part.stop * self.dim]
            optim.sum_up(block, self.stride, self.dim, order, some, one, one)
            self._put(keys[part], ids, version)

    @override
    def step(
        self, keys: Keys, row_ids: RowIds, grads: Floats, said: Occurrences, *, version: int
    ) -> None:
        self._ask(row_ids)
        shows = said.shown(row_ids.size) if self.scales else NO_FLOATS
        for start in range(0, max(1, row_ids.size), self._block_rows):
            part = slice(start, start + self._block_rows)
            ids, block, order = self._take(row_ids[part])
            some = grads[part.start * self.dim : part.stop * self.dim]
            self._optimizer.apply(block, order, some, version=version, shows=shows[part])
            self._put(keys[part], ids, version)

    @override
    def write_first(self, rule: Initializer, keys: Keys, where: RowIds, row_ids: RowIds) -> None:
        for start in range(0, max(1, where.size), self._block_rows):
            part = slice(start, start + self._block_rows)
            ids = row_ids[part]
            self._draw(
                rule,
                keys,
                where[part],
                self._order[: ids.size],
                stride=self.stride,
                out=self._block,
            )
            halves.put(self._block, self.stride, self.dim, self._kind, ids, self.weights)
            self._put_state(ids)

    @override
    def preview_first(self, rule: Initializer, keys: Keys, where: RowIds, out: Floats) -> None:
        super().preview_first(rule, keys, where, out)
        halves.round_rows(out, self.dim, self._kind, where)

    @override
    def row(self, row_id: int) -> Floats:
        _, block, _ = self._take(np.array([row_id], np.int64))
        return block[: self.stride].copy()

    @override
    def is_finite(self, num_rows: int) -> bool:
        bits = self.weights[: num_rows * self.dim] & np.uint16(0x7FFF)
        limit = 0x7F80 if self._kind == halves.BFLOAT16 else 0x7C00
        state = self.state[: num_rows * self._state_dim]
        return bool(np.all(bits < limit) and np.all(np.isfinite(state)))

    def _take(self, row_ids: RowIds) -> tuple[RowIds, Floats, RowIds]:
        """Return row ids, the block with their rows as float32, and their positions in it."""
        block = self._block
        halves.gather(self.weights, self.dim, self._kind, row_ids, self.stride, block)
        if self._state_dim:
            halves.gather_state(self.state, self._state_dim, row_ids, self.stride, block)
        return row_ids, block, self._order[: row_ids.size]

    def _put(self, keys: Keys, row_ids: RowIds, version: int) -> None:
        """Write the block back into these rows, its weights rounded by chance."""
        halves.put_by_chance(
            self._block,
            self.stride,
            self.dim,
            self._kind,
            row_ids,
            keys,
            self._seed,
            np.uint64(version),
            self.weights,
        )
        self._put_state(row_ids)

    def _put_state(self, row_ids: RowIds) -> None:
        if self._state_dim:
            halves.put_state(self._block, self.stride, self._state_dim, row_ids, self.state)


def make_slab(
    spec: TableSpec, optimizer: Optimizer, rule: Initializer, *, storage: Storage, part: str = ""
) -> Slab:
    """Return the rows of a table, or of one part of them, as its spec says.

    Args:
        spec: of the table.
        optimizer: of the part.
        rule: of its first weights.
        storage: where files lie.
        part: of the rows; two parts of one key draw apart when they are rounded.

    Raises:
        ConfigError: the system refused, there is no place for files, or first weights could be beyond
            the largest float16.
    """
    if spec.row_dtype == "float32":
        return FloatSlab(spec, optimizer, storage=storage)
    largest = float(np.abs(rule.options).max())
    if spec.row_dtype == "float16" and largest > FLOAT16_MAX:
        raise ConfigError(
            f"table {spec.name!r}: initializer {rule.text}: {largest:g} is beyond the largest "
            f"float16, {FLOAT16_MAX:g}; take row_dtype=bfloat16 or float32"
        )
    return HalfSlab(spec, optimizer, storage=storage, part=part)


def widened(weights: NDArray[Any]) -> Floats:
    """Return saved weights of any ``row_dtype`` as float32, exactly.

    Args:
        weights: of any shape; float32 or float16 numbers, or uint16, the bits of bfloat16.

    >>> widened(np.array([0x3F80, 0xC000], np.uint16)).tolist()
    [1.0, -2.0]
    """
    if weights.dtype == np.uint16:
        return (weights.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return weights.astype(np.float32, copy=False)


def narrowed(weights: Floats, row_dtype: str) -> NDArray[Any]:
    """Return weights as a table with that ``row_dtype`` is saved, each rounded to the nearest.

    Beyond the largest number there is the largest number; who does not want that asks for ``largest``.

    >>> narrowed(np.array([1.0, -2.0], np.float32), "bfloat16").tolist()
    [16256, 49152]
    """
    if row_dtype == "float32":
        return weights
    bits = np.empty(weights.size, np.uint16)
    flat = np.ascontiguousarray(weights).reshape(-1)
    halves.put(flat, flat.size, flat.size, _KINDS[row_dtype], np.zeros(1, np.int64), bits)
    return bits.view(_SAVED_AS[row_dtype]).reshape(weights.shape)


def largest(row_dtype: str) -> float:
    """Return the largest weight that a table with that ``row_dtype`` takes."""
    return FLOAT16_MAX if row_dtype == "float16" else math.inf
