"""Whole rows out of a table's memory and back, and which of them a cut must still keep.

Rooms before and after: ``table.cut`` copies the rows of a save, ``table.dump`` puts those of a load
back; ``table.index`` found the row ids.

Memory is any number of flat arrays with the same row ids, each with a width of its own: weights and
state in one, epochs in another. Bits are copied as they are.

What always holds: row ids are in range; nothing is allocated but by ``sort_keys``, which no request waits
for.

Cost: a row of dim 16 with its state is two or three cache lines, asked for 16 rows ahead.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pserver.arrays import Epochs, Keys, RowIds
from pserver.kernel.ahead import FAR, ask
from pserver.mix import mix64, prefetch, prefetch_far

_AHEAD = 16


@njit(nogil=True, cache=True, error_model="numpy")
def take_rows(
    memory: NDArray[Any],  # (C * width,)
    width: int,
    row_ids: RowIds,  # (U,) in [0, C)
    begin: int,
    end: int,
    out: NDArray[Any],  # (U * (end - begin),) written
) -> None:
    """Copy the items [begin, end) of the named rows into one block."""
    step = np.uint64(width)
    count = np.uint64(end - begin)
    for i in range(min(FAR, row_ids.size)):
        ask(memory, row_ids[i] * width + begin, end - begin)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(memory, row_ids[i + FAR] * width + begin, end - begin)
        source = np.uint64(row_ids[i]) * step + np.uint64(begin)
        target = np.uint64(i) * count
        for k in range(end - begin):
            out[target + np.uint64(k)] = memory[source + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def sort_keys(
    keys: Keys,  # (U,)
    ends: RowIds,  # (1024,) written: where each partition ends in ``order``
    order: RowIds,  # (U,) written
) -> None:
    """Sort the positions of keys by partition and then by key."""
    shift = np.uint64(54)
    ends[:] = 0
    for i in range(keys.size):
        ends[np.int64(mix64(keys[i]) >> shift)] += 1
    start = 0
    for p in range(ends.size):
        count = ends[p]
        ends[p] = start
        start += count
    for i in range(keys.size):
        partition = np.int64(mix64(keys[i]) >> shift)
        order[ends[partition]] = i
        ends[partition] += 1
    for p in range(ends.size):
        part = order[ends[p - 1] if p else 0 : ends[p]]
        part[:] = part[np.argsort(keys[part])]


@njit(nogil=True, cache=True, error_model="numpy")
def put_rows(
    block: NDArray[Any],  # (U * width,)
    width: int,
    row_ids: RowIds,  # (U,) in [0, C), distinct
    memory: NDArray[Any],  # (C * width,) written
) -> None:
    """Copy a block into the named rows."""
    step = np.uint64(width)
    for i in range(row_ids.size):
        j = i + _AHEAD
        if j < row_ids.size:
            prefetch(memory, row_ids[j] * width)
        source = np.uint64(i) * step
        target = np.uint64(row_ids[i]) * step
        for k in range(width):
            memory[target + np.uint64(k)] = block[source + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def find_old(
    epochs: Epochs,  # (C,)
    row_ids: RowIds,  # (U,) in [0, C)
    since: np.uint32,
    cut: np.uint32,
    picked: RowIds,  # (U,) written: positions of the rows that are wanted
    old_epochs: Epochs,  # (U,) written: what their epochs are
) -> int:
    """Find the rows that last changed after ``since`` and not after the cut, and return how many there are."""
    count = 0
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            prefetch_far(epochs, row_ids[i + FAR])
        epoch = epochs[np.uint64(row_ids[i])]
        if since < epoch <= cut:
            picked[count] = i
            old_epochs[count] = epoch
            count += 1
    return count


@njit(nogil=True, cache=True, error_model="numpy")
def claim_old(
    epochs: Epochs,  # (C,) written
    keys: Keys,  # (U,)
    row_ids: RowIds,  # (U,) in [-1, C), repeats allowed
    since: np.uint32,
    cut: np.uint32,
    first_partition: int,
    picked: RowIds,  # (U,) written: positions of the rows to keep
    old_epochs: Epochs,  # (U,) written: what their epochs were
) -> int:
    """Find the rows that a cut has not copied yet, and return how many there are.

    Those are the rows of partitions from ``first_partition`` on that last changed after ``since``
    and not after the cut. They are stamped with the epoch behind the cut at once, so a row is found
    once, however often it is named and whatever happens to it next.
    """
    count = 0
    for i in range(row_ids.size):
        j = i + _AHEAD
        if j < row_ids.size and row_ids[j] >= 0:
            prefetch(epochs, row_ids[j])
        if row_ids[i] < 0:
            continue
        row_id = np.uint64(row_ids[i])
        epoch = epochs[row_id]
        if epoch <= since or epoch > cut:
            continue
        if np.int64(mix64(keys[i]) >> np.uint64(54)) < first_partition:
            continue
        picked[count] = i
        old_epochs[count] = epoch
        count += 1
        epochs[row_id] = cut + np.uint32(1)
    return count
