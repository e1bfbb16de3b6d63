"""A copy of one row, and who wants to know of rows before they change.

Rooms before and after: ``sparse`` gives and asks; ``server.servicer`` shows rows, ``cut`` watches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pserver.arrays import Floats, Keys, RowIds
from pserver.table.accessor import Accessor
from pserver.table.fields import Fields, FieldValue
from pserver.table.layout import AnySlab


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A copy of what a table holds for one key.

    Attributes:
        weights: (dim,) float32.
        state: the optimizer's floats, by the name of each part, in the row's order.
        epoch: in which the row last changed.
        fields: the words that the table's rules keep in each row, by name.
        score: of a row of ctr, from its shows and clicks; else None.
        has_embedx: whether a row of ctr has its second part; else None.
    """

    weights: Floats
    state: Mapping[str, Floats]
    epoch: int
    fields: Mapping[str, FieldValue]
    score: float | None = None
    has_embedx: bool | None = None


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


def row_of(row_id: int, slab: AnySlab, fields: Fields, accessor: Accessor) -> Row:
    """Return a copy of one row, by its row id."""
    words = fields.row(row_id)
    score = has_embedx = None
    if accessor.is_ctr:
        score = accessor.score(words["show"], words["click"])
        has_embedx = words.pop("embedx") > 0
    return Row(
        slab.weights_of(row_id),
        slab.state_of(row_id),
        int(slab.epochs[row_id]),
        words,
        score,
        has_embedx,
    )
