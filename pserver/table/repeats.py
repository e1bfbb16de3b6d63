"""Keys that a command names more than once: values of a push are added up, and each row counts once.

Rooms before and after: ``sparse`` found the rows of the keys; the slab steps each row once.
"""

import numpy as np

from pserver.arrays import Floats, Keys, RowIds
from pserver.kernel import rows
from pserver.occurrences import Occurrences
from pserver.table.layout import AnySlab
from pserver.table.values import read_only


def distinct_rows(slab: AnySlab, row_ids: RowIds) -> RowIds:
    """Return each of (U,) row ids once."""
    return row_ids if rows.first_repeat(slab.marks, row_ids) < 0 else np.unique(row_ids)


def without_repeats(
    slab: AnySlab, keys: Keys, row_ids: RowIds, values: Floats, said: Occurrences
) -> tuple[Keys, RowIds, Floats, Occurrences]:
    """Return distinct rows, each with the sum of the values of its repeats, in order.

    Args:
        slab: of the rows.
        keys: (U,) uint64.
        row_ids: (U,) theirs.
        values: (U * dim,) float32, read-only.
        said: of the keys, beside.

    Returns:
        Keys, row ids, values and what is said; keys and values read-only.
    """
    if rows.first_repeat(slab.marks, row_ids) < 0:
        return read_only(keys), row_ids, values, said
    distinct, at, inverse = np.unique(row_ids, return_index=True, return_inverse=True)
    summed = np.zeros(distinct.size * slab.dim, np.float32)
    rows.sum_repeats(inverse.astype(np.int64), values, slab.dim, summed)
    said = said.summed(inverse, distinct.size)
    return read_only(keys[at]), distinct, read_only(summed), said
