"""A copy of one row, and who wants to know of rows before they change.

Rooms before and after: ``sparse`` gives and asks; ``server.servicer`` shows rows, ``cut`` watches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pserver.arrays import Floats, Keys, RowIds
from pserver.table.fields import FieldValue


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A copy of what a table holds for one key.

    Attributes:
        weights: (dim,) float32.
        state: the optimizer's floats, by the name of each part, in the row's order.
        epoch: in which the row last changed.
        fields: the words that the table's rules keep in each row, by name.
    """

    weights: Floats
    state: Mapping[str, Floats]
    epoch: int
    fields: Mapping[str, FieldValue]


class Watch(Protocol):
    """Is told of rows before they change or go: what a table remembers for saves."""

    @property
    def is_saving(self) -> bool:
        """Return whether a save is under way, so that the table's memory must stay."""
        ...

    def before_change(self, keys: Keys, row_ids: RowIds) -> None:
        """See the rows of (U,) keys as they are; a row id of -1 means no row."""
        ...

    def before_erase(self, keys: Keys, row_ids: RowIds) -> None:
        """See the rows of (U,) keys that are about to go; a row id of -1 means no row."""
        ...
