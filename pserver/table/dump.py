"""The one seam between tables and what outlives them: rows as named arrays, whole.

Rooms before and after: ``cut`` copies rows out of a table that is in use; ``checkpoint`` stores the
named arrays and knows none of the names; a new array beside the slab is added here and nowhere else.

A table's memory is a few blocks with the same row ids; a block's columns have names. A row in a file
is its key and its column of each name: ``weights``, ``state.NAME`` of the optimizer, ``epochs``.

What always holds: what ``columns`` gives, ``put_rows`` takes back to the bit, in any order of rows.
Owner: the shard's owner thread, or whoever made a table that nobody else has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys, RowIds
from pserver.errors import CheckpointError
from pserver.kernel import copies
from pserver.table.sparse import SparseTable
from pserver.table.values import read_only

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
        copies.take_rows(self.memory, self.width, row_ids, out)
        return out.reshape(row_ids.size, self.width)


def blocks_of(table: SparseTable) -> tuple[Block, ...]:
    """Return all memory that makes up a table's rows."""
    blocks = []
    for memory, parts in table.memory():
        ends = np.cumsum([count for _, _, count in parts]).tolist()
        found = [
            Column(name, dtype, end - count, end)
            for (name, dtype, count), end in zip(parts, ends, strict=True)
        ]
        blocks.append(Block(memory, ends[-1], found))
    return tuple(blocks)


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
        copies.put_rows(read_only(rows.reshape(-1)), block.width, row_ids, block.memory)


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
        copies.put_rows(read_only(rows.reshape(-1)), block.width, row_ids, block.memory)
