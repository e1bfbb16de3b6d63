"""Moves between the slab and flat blocks: gather, assign, stamps, and checks of a push.

Rooms before and after: ``hashmap`` found the row ids; ``optim`` changes rows; ``table.slab``
owns the memory.

The slab is one flat float32 array; row r is ``slab[r * stride : (r + 1) * stride]``, weights
first. Flat indices are unsigned, so numba adds no negative-index branch.

What always holds:
    * Row ids are in range: the caller took them from the index. -1 means "no row".
    * Nothing is allocated.

Cost: a row of dim 16 with adagrad state is two cache lines; gather reads one of them.
"""

import numpy as np
from numba import njit

from pserver.arrays import Counts, Epochs, Floats, Keys, RowIds, Words
from pserver.kernel.ahead import FAR, NEAR, ask, ask_first, ask_near
from pserver.mix import prefetch_far

_MAGNITUDE = np.uint32(0x7FFFFFFF)  # the bits of a float32 without its sign
_BEHIND = 1
"""Floats behind the weights that are asked for too. Where weights end with a line that is the next one; some
processors read lines in pairs, and 9.2 became 6 ns a row."""


@njit(nogil=True, cache=True, error_model="numpy")
def gather(
    slab: Floats,  # (C * stride,)
    stride: int,
    dim: int,
    row_ids: RowIds,  # (U,) in [-1, C)
    out: Floats,  # (U * dim,) written; left alone where the row id is -1
) -> None:
    """Copy the weights of the named rows into one block."""
    count = row_ids.size
    step = np.uint64(stride)
    width = np.uint64(dim)
    wanted = min(dim + _BEHIND, stride)
    ask_first(slab, row_ids, stride, wanted)
    for i in range(count):
        if i + FAR < count:
            ask(slab, row_ids[i + FAR] * stride, wanted)
        if i + NEAR < count:
            ask_near(slab, row_ids[i + NEAR] * stride, wanted)
        if row_ids[i] < 0:
            continue
        source = np.uint64(row_ids[i]) * step
        target = np.uint64(i) * width
        for k in range(dim):
            out[target + np.uint64(k)] = slab[source + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def assign(
    slab: Floats,  # (C * stride,) written
    stride: int,
    dim: int,
    row_ids: RowIds,  # (U,) in [0, C); of repeats the last one counts
    weights: Floats,  # (U * dim,)
) -> None:
    """Write weights into the named rows as they are. Optimizer state is not touched."""
    count = row_ids.size
    step = np.uint64(stride)
    width = np.uint64(dim)
    wanted = min(dim + _BEHIND, stride)
    ask_first(slab, row_ids, stride, wanted)
    for i in range(count):
        if i + FAR < count:
            ask(slab, row_ids[i + FAR] * stride, wanted)
        if i + NEAR < count:
            ask_near(slab, row_ids[i + NEAR] * stride, wanted)
        target = np.uint64(row_ids[i]) * step
        source = np.uint64(i) * width
        for k in range(dim):
            slab[target + np.uint64(k)] = weights[source + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def take(
    block: Floats,  # (U * dim,)
    dim: int,
    order: RowIds,  # (V,) positions in the block
    out: Floats,  # (V * dim,) written
) -> None:
    """Copy the rows of a block in another order: what leaves for one shard."""
    width = np.uint64(dim)
    for i in range(order.size):
        source = np.uint64(order[i]) * width
        target = np.uint64(i) * width
        for k in range(dim):
            out[target + np.uint64(k)] = block[source + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def put(
    block: Floats,  # (V * dim,)
    dim: int,
    order: RowIds,  # (V,) positions in ``out``
    out: Floats,  # (U * dim,) written
) -> None:
    """Copy the rows of a block back to where they belong: what one shard answered."""
    width = np.uint64(dim)
    for i in range(order.size):
        source = np.uint64(i) * width
        target = np.uint64(order[i]) * width
        for k in range(dim):
            out[target + np.uint64(k)] = block[source + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def stamp(epochs: Epochs, row_ids: RowIds, epoch: np.uint32) -> None:
    """Write the epoch of the named rows: they changed now."""
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            prefetch_far(epochs, row_ids[i + FAR])
        epochs[np.uint64(row_ids[i])] = epoch


@njit(nogil=True, cache=True, error_model="numpy")
def first_repeat(
    marks: Words,  # (C / 64,) uint64, all zero; zero again afterwards
    row_ids: RowIds,  # (U,) in [0, C)
) -> int:
    """Return the position of the first row id that came before, or -1 if all are distinct."""
    one = np.uint64(1)
    found = -1
    marked = row_ids.size
    for i in range(row_ids.size):
        row_id = np.uint64(row_ids[i])
        bit = one << (row_id & np.uint64(63))
        word = row_id >> np.uint64(6)
        if marks[word] & bit != np.uint64(0):
            found = i
            marked = i
            break
        marks[word] |= bit
    for i in range(marked):
        marks[np.uint64(row_ids[i]) >> np.uint64(6)] = np.uint64(0)
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def first_beyond(
    values: Floats,
    limit: np.uint32,  # the bits of a float32 over 0
) -> int:
    """Return the position of the first value that is NaN or over the limit in magnitude, or -1.

    Without their sign, the bits of floats are ordered as their magnitudes, infinity and NaN last, so
    a maximum over integers finds them: many values an instruction.
    """
    bits = values.view(np.uint32)
    worst = np.uint32(0)
    for i in range(bits.size):
        worst = max(worst, np.uint32(bits[np.uint64(i)] & _MAGNITUDE))
    if worst <= limit:
        return -1
    for i in range(bits.size):
        if bits[np.uint64(i)] & _MAGNITUDE > limit:
            return i
    return -1


@njit(nogil=True, cache=True, error_model="numpy")
def sum_repeats(
    inverse: RowIds,  # (N,) positions in [0, U)
    grads: Floats,  # (N * dim,)
    dim: int,
    out: Floats,  # (U * dim,) written; zeroed by the caller
) -> None:
    """Add up the gradients of repeated keys, in the order in which they came."""
    width = np.uint64(dim)
    for i in range(inverse.size):
        source = np.uint64(i) * width
        target = np.uint64(inverse[i]) * width
        for k in range(dim):
            out[target + np.uint64(k)] += grads[source + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def pick(keys: Keys, order: RowIds, out: Keys) -> None:
    """Copy keys in another order: ``out[i] = keys[order[i]]``."""
    for i in range(order.size):
        out[np.uint64(i)] = keys[np.uint64(order[i])]


@njit(nogil=True, cache=True, error_model="numpy")
def pick_counts(counts: Counts, order: RowIds, out: Counts) -> None:
    """Copy counts in another order: ``out[i] = counts[order[i]]``."""
    for i in range(order.size):
        out[np.uint64(i)] = counts[np.uint64(order[i])]
