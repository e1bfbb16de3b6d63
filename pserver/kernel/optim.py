"""The optimizer kernels: one gradient step on each named row, in place.

Rooms before and after: ``table.sparse`` found the rows and checked the gradients; the options
come from ``table.optimizer``, which says in one line each what the rule is.

All kernels have one signature. A row is its weights and then its state, in the order named in
each docstring. The caller has checked every shape, that row ids are distinct (a step is not
linear in the gradient) and that gradients are finite. Rows are visited in the order given and
nothing is allocated, so results are reproducible to the bit.

Divisions follow numpy (``error_model``), not Python: a test for zero and an exception at each of
them keep the compiler from using vector instructions, half of adagrad's speed.

Cost: a row of dim 16 with element state is two cache lines read and written; 16 rows ahead are
asked for.
"""

import numpy as np
from numba import njit

from pserver.arrays import Doubles, Floats, RowIds
from pserver.mix import prefetch

_AHEAD = 16
_LINE = 16  # float32 a cache line


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _ask(slab: Floats, row_ids: RowIds, i: int, stride: int) -> None:
    """Prefetch every cache line of the row that comes ``_AHEAD`` steps later."""
    if i + _AHEAD < row_ids.size:
        start = row_ids[i + _AHEAD] * stride
        for k in range(0, stride, _LINE):
            prefetch(slab, start + k)


@njit(nogil=True, cache=True, error_model="numpy")
def sgd(
    slab: Floats,  # (C * stride,) written
    stride: int,
    dim: int,
    row_ids: RowIds,  # (U,) in [0, C), distinct
    grads: Floats,  # (U * dim,)
    options: Doubles,  # lr
    table: Doubles,  # unused
) -> None:
    """W -= lr * g. No state."""
    lr = np.float32(options[0])
    step = np.uint64(stride)
    width = np.uint64(dim)
    for i in range(row_ids.size):
        _ask(slab, row_ids, i, stride)
        w = np.uint64(row_ids[i]) * step
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            slab[w + d] -= lr * grads[g + d]


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_element_before(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, eps, initial
    table: Doubles,
) -> None:
    """G += g * g, then w -= lr * g / (sqrt(G) + eps). State: G, one a weight.

    Source:
        Duchi, Hazan and Singer, JMLR 12 (2011); torch.optim.Adagrad.
    """
    lr = np.float32(options[0])
    eps = np.float32(options[1])
    step = np.uint64(stride)
    width = np.uint64(dim)
    for i in range(row_ids.size):
        _ask(slab, row_ids, i, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            total = slab[s + d] + grad * grad
            slab[s + d] = total
            slab[w + d] -= lr * grad / (np.sqrt(total) + eps)


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_element_after(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, eps, initial
    table: Doubles,
) -> None:
    """W -= lr * g * sqrt(G0 / (G0 + G)), then G += g * g. State: G, one a weight, from 0.

    Source:
        The element-wise AdaGrad rule of PaddlePaddle (StdAdaGrad).
    """
    lr = np.float32(options[0])
    initial = np.float32(options[2])
    step = np.uint64(stride)
    width = np.uint64(dim)
    for i in range(row_ids.size):
        _ask(slab, row_ids, i, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            total = slab[s + d]
            slab[w + d] -= lr * grad * np.sqrt(initial / (initial + total))
            slab[s + d] = total + grad * grad


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _mean_square(grads: Floats, start: np.uint64, dim: int) -> np.float32:
    """Return mean(g * g) of one gradient, summed in float64."""
    total = 0.0
    for k in range(dim):
        grad = np.float64(grads[start + np.uint64(k)])
        total += grad * grad
    return np.float32(total / dim)


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_row_before(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, eps, initial
    table: Doubles,
) -> None:
    """G += mean(g * g), then w -= lr * g / (sqrt(G) + eps). State: G, one a row.

    Source:
        The row-wise form of Adagrad: facebookresearch/dlrm, optim/rwsadagrad.py.
    """
    lr = np.float32(options[0])
    eps = np.float32(options[1])
    step = np.uint64(stride)
    width = np.uint64(dim)
    for i in range(row_ids.size):
        _ask(slab, row_ids, i, stride)
        w = np.uint64(row_ids[i]) * step
        g = np.uint64(i) * width
        total = slab[w + width] + _mean_square(grads, g, dim)
        slab[w + width] = total
        factor = lr / (np.sqrt(total) + eps)
        for k in range(dim):
            d = np.uint64(k)
            slab[w + d] -= factor * grads[g + d]


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_row_after(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, eps, initial
    table: Doubles,
) -> None:
    """W -= lr * g * sqrt(G0 / (G0 + G)), then G += mean(g * g). State: G, one a row, from 0.

    Source:
        The AdaGrad rule of PaddlePaddle (one g2sum a row).
    """
    lr = np.float32(options[0])
    initial = np.float32(options[2])
    step = np.uint64(stride)
    width = np.uint64(dim)
    for i in range(row_ids.size):
        _ask(slab, row_ids, i, stride)
        w = np.uint64(row_ids[i]) * step
        g = np.uint64(i) * width
        total = slab[w + width]
        factor = lr * np.sqrt(initial / (initial + total))
        for k in range(dim):
            d = np.uint64(k)
            slab[w + d] -= factor * grads[g + d]
        slab[w + width] = total + _mean_square(grads, g, dim)


@njit(nogil=True, cache=True, error_model="numpy")
def adam(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, beta1, beta2, eps
    table: Doubles,  # (2 * T,) 1 - beta1^t and sqrt(1 - beta2^t) for t = 0 .. T - 1
) -> None:
    """Lazy Adam: m, v and the step count t of a row move only when the row gets a gradient.

    t += 1; m += (1 - beta1) * (g - m); v += (1 - beta2) * (g * g - v);
    w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps).
    State: m, then v, one a weight each, then t. The powers come from a table made once;
    beyond its end both corrections are 1 to float32.

    Source:
        Kingma and Ba, ICLR 2015; torch.optim.SparseAdam for "lazy", here with t kept by row.
    """
    lr = options[0]
    beta1 = np.float32(options[1])
    beta2 = np.float32(options[2])
    # Subtracted in float64: 1 - float32(0.999) would be off by 1e-5.
    share1 = np.float32(1.0 - options[1])
    share2 = np.float32(1.0 - options[2])
    eps = np.float32(options[3])
    one = np.float32(1.0)
    last = table.size // 2 - 1
    step = np.uint64(stride)
    width = np.uint64(dim)
    for i in range(row_ids.size):
        _ask(slab, row_ids, i, stride)
        w = np.uint64(row_ids[i]) * step
        m = w + width
        v = m + width
        g = np.uint64(i) * width
        count = slab[v + width] + one
        slab[v + width] = count
        t = min(int(count), last)
        rate = np.float32(lr / table[2 * t])
        root = np.float32(1.0 / table[2 * t + 1])
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            # Not as m + share * (g - m): with a small beta that would cancel.
            first = beta1 * slab[m + d] + share1 * grad
            second = beta2 * slab[v + d] + share2 * (grad * grad)
            slab[m + d] = first
            slab[v + d] = second
            slab[w + d] -= rate * first / (np.sqrt(second) * root + eps)
