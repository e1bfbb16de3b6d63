"""The words of a row: what it keeps beside weights and state, such as statistics, marks and ages.

Rooms before and after: ``sparse`` puts together the words that a table's rules ask for, and stamps
them on new rows; kernels read and write them; ``inspect`` and checkpoints read them by name.

A word is a uint32 or a float32. The words of a row stand side by side in one record, so that a push
which touches five of them still touches one cache line; a table whose rules ask for none has no
records and pays nothing.

What always holds: a row that is new, or used again after an erase, has the first value of each word.
Owner: the shard's owner thread.
"""

from collections.abc import Mapping as Names
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Floats, RowIds, Uint32s
from pserver.kernel import words as kernel
from pserver.table.storage import Mapping

WORD_BYTES = 4

FieldValue: TypeAlias = int | float
"""What one word holds."""


@dataclass(frozen=True, slots=True)
class Field:
    """One word of a row.

    Attributes:
        name: as ``inspect`` and checkpoints show it; unique in a table.
        kind: how its 32 bits are read.
        first: what it begins with.
    """

    name: str
    kind: Literal["uint32", "float32"]
    first: FieldValue = 0


class Fields:
    """The records of a table.

    Attributes:
        fields: the words by name, in the record's order.
        stride: words a record; 0 if no rule asks for any.
        words: (rows_max * stride,) uint32; row r's record begins at r * stride.
        floats: the same memory as float32.
    """

    def __init__(self, rows_max: int, fields: Sequence[Field], *, table: str) -> None:
        """Reserve address space for the records of ``rows_max`` rows."""
        self.fields: Names[str, Field] = {field.name: field for field in fields}
        assert len(self.fields) == len(fields), "a word of a row is named twice"
        self.stride = len(fields)
        if self.stride:
            what = f"table {table!r}"
            self._mapping = Mapping(rows_max * self.stride, np.uint32, what=what)
            self.words: Uint32s = self._mapping.array
        else:
            self.words = np.empty(0, np.uint32)
        self.floats: Floats = self.words.view(np.float32)
        self._first = np.empty(self.stride, np.uint32)
        for position, field in enumerate(fields):
            self._first[position : position + 1].view(field.kind)[0] = field.first

    @property
    def mappings(self) -> list[Mapping]:
        """Return the memory of the records."""
        return [self._mapping] if self.stride else []

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a record."""
        return WORD_BYTES * self.stride

    def position(self, name: str) -> int:
        """Return where in a record the word of that name stands."""
        return list(self.fields).index(name)

    def view(self, name: str) -> NDArray[Any]:
        """Return the words of that name of all rows: (rows_max,), strided, not a copy.

        For loops over rows in numpy, and for tests; a kernel takes ``words`` or ``floats``, and
        ``position``, so that it finds the other words of the row in the same cache line.
        """
        column: NDArray[Any] = self.words[self.position(name) :: self.stride]
        return column.view(self.fields[name].kind)

    def begin(self, row_ids: RowIds) -> None:
        """Write the first values of new rows."""
        if self.stride:
            kernel.begin(self.words, self._first, row_ids)

    def row(self, row_id: int) -> dict[str, FieldValue]:
        """Return a copy of one row's words by name."""
        record = self.words[row_id * self.stride : (row_id + 1) * self.stride]
        return {
            name: record[position : position + 1].view(field.kind)[0].item()
            for position, (name, field) in enumerate(self.fields.items())
        }
