"""What optimizer kernels share: a sum, and what may stand around a step.

Rooms before and after: the kernels of ``optim*.py`` call ``mean_square``;
``table.optimizer`` runs ``divide``, ``ready``, ``shrink`` and ``bound`` around a step, each only if the rule's
text asks for it, so a table that does not use them pays nothing.

What always holds: nothing is allocated; rows are visited in the order given.
"""

import numpy as np
from numba import njit

from pserver.arrays import Floats, RowIds
from pserver.kernel.ahead import FAR, ask, ask_first

POWERS = 2**24
"""Whole numbers that a float32 of state can count: beyond, adding 1 changes nothing."""


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def mean_square(grads: Floats, start: np.uint64, dim: int) -> np.float32:
    """Return mean(g * g) of one gradient, summed in float64."""
    total = 0.0
    for k in range(dim):
        grad = np.float64(grads[start + np.uint64(k)])
        total += grad * grad
    return np.float32(total / dim)


@njit(nogil=True, cache=True, error_model="numpy")
def divide(
    grads: Floats,  # (U * dim,)
    dim: int,
    shows: Floats,  # (U,) over 0
    out: Floats,  # (U * dim,) written
) -> None:
    """Write g / show: the gradient of a mean over the shows of a key, not of their sum."""
    width = np.uint64(dim)
    for i in range(shows.size):
        show = shows[np.uint64(i)]
        g = np.uint64(i) * width
        for k in range(dim):
            out[g + np.uint64(k)] = grads[g + np.uint64(k)] / show


@njit(nogil=True, cache=True, error_model="numpy")
def ready(
    slab: Floats,  # (C * stride,)
    stride: int,
    dim: int,
    row_ids: RowIds,  # (U,) in [0, C), distinct
    grads: Floats,  # (U * dim,)
    limit: np.float32,  # over 0; infinity for none
    decay: np.float32,  # 0 for none
    out: Floats,  # (U * dim,) written
) -> None:
    """Write max(-limit, min(limit, g)) + decay * w: the gradients that the step will see."""
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            out[g + d] = max(-limit, min(limit, grads[g + d])) + decay * slab[w + d]


@njit(nogil=True, cache=True, error_model="numpy")
def shrink(slab: Floats, stride: int, dim: int, row_ids: RowIds, share: np.float32) -> None:
    """W -= share * w, for the named rows: decoupled weight decay.

    Not as w * (1 - share), which loses the low bits of a small share.
    """
    step = np.uint64(stride)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        for k in range(dim):
            d = np.uint64(k)
            slab[w + d] -= share * slab[w + d]


@njit(nogil=True, cache=True, error_model="numpy")
def bound(
    slab: Floats, stride: int, dim: int, row_ids: RowIds, low: np.float32, high: np.float32
) -> None:
    """W = max(low, min(high, w)), for the named rows."""
    step = np.uint64(stride)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        for k in range(dim):
            d = np.uint64(k)
            slab[w + d] = max(low, min(high, slab[w + d]))
