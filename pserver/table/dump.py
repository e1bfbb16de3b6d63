"""The one seam between tables and what outlives them: rows as named arrays, whole.

Rooms before and after: ``cut`` copies rows out of a table that is in use; ``checkpoint`` stores the
named arrays and knows none of the names; a new array beside the slab is added here and nowhere else.

A table's memory is a few blocks with the same row ids; a block's columns have names. A row in a file
is its key and its column of each name: ``weights``, ``state.NAME`` of the optimizer, ``field.NAME`` of its
words, ``epochs``; of the ctr accessor also ``embedx.weights`` and ``embedx.state.NAME``, 0 where ``field.embedx`` is.
What admission counted of keys without a row is apart, by partition: ``filter_state``.

What always holds: what ``columns`` gives, ``put_rows`` takes back to the bit, in any order of rows.
Owner: the shard's owner thread, or whoever made a table that nobody else has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from pserver.arrays import Keys, RowIds
from pserver.errors import CheckpointError
from pserver.kernel import copies
from pserver.table.ctr import CtrSlab
from pserver.table.layout import memory_of
from pserver.table.slab import Parts
from pserver.table.sparse import SparseTable
from pserver.table.values import read_only

EMBEDX = "field.embedx"
"""Column of 1 or 0: whether a row of ctr has its second part."""

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays by name; the first axis is the row."""


@dataclass(frozen=True, slots=True)
class Column:
    """A named part of a block's row: items [begin, end), their bits read as ``dtype``."""

    name: str
    dtype: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Memory of a table that has a row for each row id.

    Attributes:
        memory: flat; row r is ``memory[r * width : (r + 1) * width]``.
        width: items a row.
        columns: what they are.
    """

    memory: NDArray[Any]
    width: int
    columns: Sequence[Column]

    def take(self, row_ids: RowIds) -> NDArray[Any]:
        """Return a copy of the named rows, (U, width)."""
        out = np.empty(row_ids.size * self.width, self.memory.dtype)
        copies.take_rows(self.memory, self.width, row_ids, 0, self.width, out)
        return out.reshape(row_ids.size, self.width)

    def put(self, row_ids: RowIds, rows: NDArray[Any]) -> None:
        """Write the named rows, distinct, from (U, width) as ``take`` returned them."""
        copies.put_rows(read_only(rows.reshape(-1)), self.width, row_ids, self.memory)


@dataclass(frozen=True, slots=True, eq=False)
class WordsBlock(Block):
    """The words of rows with a second part: which one it is becomes 1, or 0 for none.

    Attributes:
        second: what holds the second parts.
        position: of the word in a record.
    """

    second: CtrSlab
    position: int

    @override
    def take(self, row_ids: RowIds) -> NDArray[Any]:
        rows = Block.take(self, row_ids)
        rows[:, self.position] = rows[:, self.position] > 0
        return rows

    @override
    def put(self, row_ids: RowIds, rows: NDArray[Any]) -> None:
        has_second = rows[:, self.position] > 0
        rows[:, self.position] = 0
        Block.put(self, row_ids, rows)
        self.second.take(row_ids[has_second])


@dataclass(frozen=True, slots=True, eq=False)
class SecondBlock(Block):
    """Memory of second parts, by the row ids of first ones; 0 where there is none.

    Attributes:
        second: what holds it.
    """

    second: CtrSlab

    @override
    def take(self, row_ids: RowIds) -> NDArray[Any]:
        found = self.second.embedx_of(row_ids)
        rows = np.zeros((row_ids.size, self.width), self.memory.dtype)
        rows[found >= 0] = Block.take(self, read_only(found[found >= 0]))
        return rows

    @override
    def put(self, row_ids: RowIds, rows: NDArray[Any]) -> None:
        found = self.second.embedx_of(row_ids)
        Block.put(self, found[found >= 0], np.ascontiguousarray(rows[found >= 0]))


def blocks_of(table: SparseTable) -> tuple[Block, ...]:
    """Return all memory that makes up a table's rows."""
    second = table.slab if isinstance(table.slab, CtrSlab) else None
    blocks: list[Block] = []
    for memory, parts in memory_of(table.slab, table.fields):
        width, columns = _columns(parts)
        named = [column for column in columns if column.name == EMBEDX]
        if named and second is not None:
            blocks.append(WordsBlock(memory, width, columns, second, named[0].begin))
        else:
            blocks.append(Block(memory, width, columns))
    if second is not None:
        for memory, parts in filter(lambda block: block[1], second.embedx.blocks()):
            named_parts = [(f"embedx.{name}", dtype, count) for name, dtype, count in parts]
            blocks.append(SecondBlock(memory, *_columns(named_parts), second))
    return tuple(blocks)


def _columns(parts: Parts) -> tuple[int, list[Column]]:
    """Return the items a row, and where in it the parts are."""
    ends = np.cumsum([count for _, _, count in parts]).tolist()
    found = [
        Column(name, dtype, end - count, end)
        for (name, dtype, count), end in zip(parts, ends, strict=True)
    ]
    return ends[-1], found


def columns(blocks: Sequence[Block], copied: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return copied rows by the names of their columns.

    Args:
        blocks: of the table.
        copied: (U, width) of each block.

    Returns:
        Name to (U, items) or, where a column has one item, (U,). Views.
    """
    named: dict[str, NDArray[Any]] = {}
    for block, rows in zip(blocks, copied, strict=True):
        for column in block.columns:
            part = rows[:, column.begin : column.end].view(column.dtype)
            named[column.name] = part[:, 0] if column.end - column.begin == 1 else part
    return named


def sorted_columns(
    blocks: Sequence[Block], copied: Sequence[NDArray[Any]], order: RowIds
) -> dict[str, NDArray[Any]]:
    """Return copied rows in another order, by the names of their columns, as ``columns``; copies."""
    named: dict[str, NDArray[Any]] = {}
    for block, rows in zip(blocks, copied, strict=True):
        for column in block.columns:
            count = column.end - column.begin
            out = np.empty(order.size * count, block.memory.dtype)
            copies.take_rows(rows.reshape(-1), block.width, order, column.begin, column.end, out)
            out = out.view(column.dtype)
            named[column.name] = out if count == 1 else out.reshape(order.size, count)
    return named


def shapes(table: SparseTable) -> dict[str, tuple[str, int]]:
    """Return the dtype and the items a row of each column, by name.

    >>> from pserver.spec import TableSpec
    >>> shapes(SparseTable(TableSpec(name="t", dim=4, optimizer="adagrad", capacity_max=8)))
    {'weights': ('float32', 4), 'state.G': ('float32', 4), 'epochs': ('uint32', 1)}
    """
    return {
        column.name: (column.dtype, column.end - column.begin)
        for block in blocks_of(table)
        for column in block.columns
    }


def put_rows(table: SparseTable, keys: Keys, arrays: Arrays) -> None:
    """Give keys their rows as they were; a row that is there is replaced.

    Args:
        table: that nobody uses yet, or that this thread owns.
        keys: (U,) distinct.
        arrays: of the table's very columns, (U,) or (U, items) each.

    Raises:
        CheckpointError: a column is missing, too many or of another shape. Nothing was written.
        TableFullError: there is no room for the rows. Nothing was written.
    """
    blocks = blocks_of(table)
    wanted = shapes(table)
    if set(arrays) != set(wanted):
        raise CheckpointError(
            f"table {table.spec.name!r}: its rows have {', '.join(sorted(wanted))}, "
            f"the stored ones {', '.join(sorted(arrays))}"
        )
    for name, (dtype, count) in wanted.items():
        shape = (keys.size,) if count == 1 else (keys.size, count)
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            raise CheckpointError(
                f"table {table.spec.name!r}: {name} must be {shape} {dtype}, got "
                f"{arrays[name].shape} {arrays[name].dtype}"
            )
    row_ids = table.rows_to_fill(keys)
    for block in blocks:
        rows = np.empty((keys.size, block.width), block.memory.dtype)
        for column in block.columns:
            part = np.ascontiguousarray(arrays[column.name]).view(block.memory.dtype)
            rows[:, column.begin : column.end] = part.reshape(keys.size, column.end - column.begin)
        block.put(row_ids, rows)


def overlay_rows(table: SparseTable, keys: Keys, arrays: Arrays) -> None:
    """Give keys rows that begin as new ones do, then take what fits of columns of another table.

    Args:
        table: that nobody uses yet.
        keys: (U,) distinct, without rows.
        arrays: of any columns; what the table has no column for is left out, and of a column with
            another number of items the first ones count.

    Raises:
        TableFullError: there is no room for the rows. Nothing was written.
    """
    row_ids = table.rows_to_fill(keys)
    for block in blocks_of(table):
        rows = block.take(row_ids)
        for column in block.columns:
            if column.name in arrays:
                part = np.ascontiguousarray(arrays[column.name].reshape(keys.size, -1))
                part = part.astype(column.dtype, copy=False).view(block.memory.dtype)
                count = min(part.shape[1], column.end - column.begin)
                rows[:, column.begin : column.begin + count] = part[:, :count]
        block.put(row_ids, rows)


def filter_state(table: SparseTable, partition: int) -> dict[str, NDArray[Any]]:
    """Return what admission counted in a partition, as named arrays; none if it counts nothing.

    ``keys``, ascending, with a column of each word; or the ``counters`` of a sketch, (0,) if untouched.
    """
    return {} if table.gate is None else table.gate.filter.read(partition)


def put_filter_state(table: SparseTable, partition: int, arrays: Arrays) -> None:
    """Take what ``filter_state`` returned, into a table that counted nothing in that partition.

    Raises:
        TableFullError: there is no room for the keys. Nothing was written.
    """
    if table.gate is not None:
        table.gate.filter.write(partition, arrays)
