"""Which rows of a table with scores are for serving, as Paddle's save modes 2 and 1 choose them.

Rooms before and after: ``checkpoint.export`` and ``server.checkpoint`` choose rows by it; ``server.marks``
takes away the marks of rows that were saved so.

What always holds: rows are judged by their own words only, so the same row is judged alike anywhere.

Source:
    CtrCommonAccessor::Save and UpdateStatAfterSave of PaddlePaddle.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pserver.errors import ConfigError
from pserver.table.accessor import Accessor
from pserver.table.dump import Arrays
from pserver.table.sparse import SparseTable

Choice: TypeAlias = Literal["all", "base", "delta"]
CHOICES: tuple[Choice, ...] = ("all", "base", "delta")

_READ = ("show", "click", "delta_score", "unseen_days")


def keeper(
    accessor: Accessor, choice: Choice, *, where: str
) -> Callable[[Arrays], NDArray[np.bool_]]:
    """Return what says which rows are chosen.

    Args:
        accessor: of the table.
        choice: all; or, as Paddle's save modes 2 and 1 choose for serving, base: score >=
            base_threshold and unseen_days <= delta_keep_days; delta: also delta_score >=
            delta_threshold.
        where: named in an error.

    Raises:
        ConfigError: rows are to be chosen by statistics that the table does not keep.
    """
    if choice == "all":
        return lambda rows: np.ones(len(rows["epochs"]), np.bool_)
    if not accessor.is_ctr:
        raise ConfigError(
            f"{where}: only a table with accessor ctr has scores to choose {choice} rows by"
        )
    base, keep_days = accessor.number("base_threshold"), accessor.number("delta_keep_days")
    delta = accessor.number("delta_threshold") if choice == "delta" else 0.0

    def kept(rows: Arrays) -> NDArray[np.bool_]:
        shows, clicks = (rows[f"field.{name}"].astype(np.float64) for name in ("show", "click"))
        is_kept: NDArray[np.bool_] = (
            (accessor.scores(shows, clicks) >= base)
            & (rows["field.delta_score"] >= delta)
            & (rows["field.unseen_days"] <= keep_days)
        )
        return is_kept

    return kept


def reset_marks(
    table: SparseTable, choice: Choice, *, epoch: int, partitions: tuple[int, int]
) -> None:
    """Set delta_score to 0 in the rows of some partitions that a save of an epoch chose.

    A row that changed since then keeps it: its new part was in no save. So a row may be chosen once more
    than need be, and never once too few. That a row changed here, the next delta says too.

    Args:
        table: with accessor ctr.
        choice: base or delta.
        epoch: of the save's cut.
        partitions: [begin, end).
    """
    kept = keeper(table.accessor, choice, where="save")
    views = {name: table.fields.view(name) for name in _READ}
    for partition in range(*partitions):
        keys, row_ids = table.entries(partition)
        rows = {f"field.{name}": view[row_ids] for name, view in views.items()}
        is_marked = rows["field.delta_score"] != 0.0
        chosen = kept(rows) & is_marked & (table.epochs[row_ids] <= epoch)
        if chosen.any():
            table.will_change(keys[chosen], row_ids[chosen])
            views["delta_score"][row_ids[chosen]] = 0.0
