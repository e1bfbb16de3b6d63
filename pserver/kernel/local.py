"""The loops of a local copy of rows: the order of use, differences to a base, and values that come in.

Rooms before and after: ``table.local`` owns the arrays and says which rows; ``rows`` moves weights.

The order of use is a ring of row ids, two links a row: ``links[2r]`` is the row used just before row
r and ``links[2r + 1]`` the one used just after. Row C, behind the last real one, stands between the
newest and the oldest.

What always holds: a row that is in the ring is in it once; nothing is allocated.

Cost: a use is three random cache lines; the others are one pass over the rows they name.
"""

import numpy as np
from numba import njit

from pserver.arrays import Floats, RowIds


@njit(nogil=True, cache=True, error_model="numpy")
def open_ring(links: RowIds, end: int) -> None:
    """Make the ring of no rows; ``end`` is C."""
    links[2 * end] = end
    links[2 * end + 1] = end


@njit(nogil=True, cache=True, error_model="numpy")
def leave(
    links: RowIds,  # (2 * C + 2,) written
    row_ids: RowIds,  # (U,) in the ring
) -> None:
    """Take rows out of the ring."""
    for i in range(row_ids.size):
        row = row_ids[i]
        before, after = links[2 * row], links[2 * row + 1]
        links[2 * before + 1] = after
        links[2 * after] = before


@njit(nogil=True, cache=True, error_model="numpy")
def enter(
    links: RowIds,  # (2 * C + 2,) written
    end: int,
    row_ids: RowIds,  # (U,) not in the ring
) -> None:
    """Put rows into the ring as the newest, the last one newest of all."""
    for i in range(row_ids.size):
        row = row_ids[i]
        before = links[2 * end]
        links[2 * before + 1] = row
        links[2 * row] = before
        links[2 * row + 1] = end
        links[2 * end] = row


@njit(nogil=True, cache=True, error_model="numpy")
def oldest(
    links: RowIds,
    end: int,
    out: RowIds,  # (count,) written; the ring has as many rows
) -> None:
    """Write the row ids that were used longest ago, oldest first."""
    row = end
    for i in range(out.size):
        row = links[2 * row + 1]
        out[i] = row


@njit(nogil=True, cache=True, error_model="numpy")
def take(
    slab: Floats,  # (C * stride,)
    stride: int,
    dim: int,
    row_ids: RowIds,  # (U,) in [0, C)
    base: Floats,  # (C * dim,) written
    out: Floats,  # (U * dim,) written
) -> None:
    """Write weights minus base, and make the weights the base."""
    step, width = np.uint64(stride), np.uint64(dim)
    for i in range(row_ids.size):
        w = np.uint64(row_ids[i]) * step
        b = np.uint64(row_ids[i]) * width
        o = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            out[o + d] = slab[w + d] - base[b + d]
            base[b + d] = slab[w + d]


@njit(nogil=True, cache=True, error_model="numpy")
def settle(
    slab: Floats,  # (C * stride,) written
    stride: int,
    dim: int,
    row_ids: RowIds,  # (U,) in [-1, C); -1 is passed over
    base: Floats,  # (C * dim,) written
    values: Floats,  # (U * dim,)
) -> None:
    """Make the values the base, and keep what was done since: w += value - base.

    Where nothing was done since, w is the value to the bit.
    """
    step, width = np.uint64(stride), np.uint64(dim)
    for i in range(row_ids.size):
        if row_ids[i] < 0:
            continue
        w = np.uint64(row_ids[i]) * step
        b = np.uint64(row_ids[i]) * width
        v = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            if slab[w + d] == base[b + d]:
                slab[w + d] = values[v + d]
            else:
                slab[w + d] += values[v + d] - base[b + d]
            base[b + d] = values[v + d]
