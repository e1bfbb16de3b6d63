"""The optimizer kernels that can set weights to exactly 0: ftrl and group_adagrad.

Rooms before and after, signature and rules: as in ``optim``.
"""

import numpy as np
from numba import njit

from pserver.arrays import Doubles, Floats, RowIds
from pserver.kernel.ahead import FAR, ask, ask_first


@njit(nogil=True, cache=True, error_model="numpy")
def ftrl(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, l1, l2, beta, initial, lr_power
    table: Doubles,
) -> None:
    """FTRL-proximal with lr_power -0.5; the state z is kept times the learning rate.

    n' = n + g * g; z += lr * g - (sqrt(n') - sqrt(n)) * w;
    w = 0 if |z| <= lr * l1, else -(z - sign(z) * lr * l1) / (beta + sqrt(n') + lr * l2).
    State: n from ``initial``, then z from 0, one a weight each.

    Papers and peers keep z / lr, which is the same rule as long as lr is constant. Under a schedule
    theirs would scale all past gradients with the rate of today, and weights would go to 0 with it;
    here a gradient keeps the rate at which it came, and a rate of 0 divides nothing.

    The weights are a function of the state: what a row began with lasts until its first push.

    Source:
        McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1.
    """
    lr = np.float32(options[0])
    edge = np.float32(options[0] * options[2])
    base = np.float32(options[4] + options[0] * options[3])
    zero = np.float32(0.0)
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        n = w + width
        z = n + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            before = slab[n + d]
            total = before + grad * grad
            root = np.sqrt(total)
            scaled = slab[z + d] + (lr * grad - (root - np.sqrt(before)) * slab[w + d])
            slab[n + d] = total
            slab[z + d] = scaled
            slab[w + d] = -(max(scaled - edge, zero) + min(scaled + edge, zero)) / (base + root)


@njit(nogil=True, cache=True, error_model="numpy")
def ftrl_power(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, l1, l2, beta, initial, lr_power
    table: Doubles,
) -> None:
    """``ftrl`` with n^-lr_power in place of sqrt(n), for any other lr_power.

    Source:
        The lr_power of TensorFlow's Ftrl.
    """
    lr = np.float32(options[0])
    edge = np.float32(options[0] * options[2])
    base = np.float32(options[4] + options[0] * options[3])
    power = np.float32(-options[6])
    zero = np.float32(0.0)
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        n = w + width
        z = n + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            before = slab[n + d]
            total = before + grad * grad
            root = total**power
            scaled = slab[z + d] + (lr * grad - (root - before**power) * slab[w + d])
            slab[n + d] = total
            slab[z + d] = scaled
            slab[w + d] = -(max(scaled - edge, zero) + min(scaled + edge, zero)) / (base + root)


@njit(nogil=True, cache=True, error_model="numpy")
def group_adagrad(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, l2, beta, initial
    table: Doubles,
) -> None:
    """Adagrad with one accumulator a row, and a group lasso that sets whole rows to 0.

    n += max(g * g); a = lr / (sqrt(n) + beta); u = w - a * g;
    w = 0 if |u| <= a * l2, else u * (1 - a * l2 / |u|). State: n, one a row, from ``initial``.

    Source:
        The GroupAdaGrad of Monolith, which writes u / a for u.
    """
    beta = np.float32(options[3])
    l2 = options[2]
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        g = np.uint64(i) * width
        largest = np.float32(0.0)
        for k in range(dim):
            largest = max(largest, abs(grads[g + np.uint64(k)]))
        total = slab[w + width] + largest * largest
        slab[w + width] = total
        rate = np.float32(options[0] / np.float64(np.sqrt(total) + beta))
        squares = 0.0
        for k in range(dim):
            d = np.uint64(k)
            moved = slab[w + d] - rate * grads[g + d]
            slab[w + d] = moved
            squares += np.float64(moved) * np.float64(moved)
        norm = np.sqrt(squares)
        edge = np.float64(rate) * l2
        keep = np.float32(0.0)
        if norm > edge:
            keep = np.float32(1.0 - edge / norm)
        for k in range(dim):
            slab[w + np.uint64(k)] *= keep
