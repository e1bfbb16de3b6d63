"""The records of words that rows have beside their weights.

Rooms before and after: ``table.fields`` owns the memory and says what a record holds.

What always holds: row ids are in range, nothing is allocated.
"""

import numpy as np
from numba import njit

from pserver.arrays import RowIds, Uint32s


@njit(nogil=True, cache=True, error_model="numpy")
def begin(
    words: Uint32s,  # (C * K,) written
    first: Uint32s,  # (K,)
    row_ids: RowIds,  # (U,) in [0, C)
) -> None:
    """Write the first record of each named row."""
    step = np.uint64(first.size)
    for i in range(row_ids.size):
        start = np.uint64(row_ids[i]) * step
        for k in range(first.size):
            words[start + np.uint64(k)] = first[np.uint64(k)]
