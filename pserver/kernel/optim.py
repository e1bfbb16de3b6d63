"""The optimizer kernels of plain and accumulated gradients: sgd, momentum, the adagrad family.

Rooms before and after: ``table.sparse`` found the rows and checked the gradients; the options
come from ``table.optimizer``; ``table.optimizer_rules`` says in one line each what the rule is.
The kernels of other rules stand beside this file, as ``optim_*.py``.

All kernels have one signature. A row is its weights and then its state, in the order named in
each docstring. ``options`` begins with the learning rate of this push and t, the pushes that the
table will have applied with it; then come the rule's own options in their order, a word as its
position. The caller has checked every shape, that row ids are distinct (a step is not linear in
the gradient) and that gradients are finite. Rows are visited in the order given and nothing is
allocated, so results are reproducible to the bit.

Divisions follow numpy (``error_model``), not Python: a test for zero and an exception at each of
them keep the compiler from using vector instructions, half of adagrad's speed.

Cost: memory. A row of dim 16 with one float of state a weight is two cache lines read and
written, asked for ahead.
"""

import numpy as np
from numba import njit

from pserver.arrays import Doubles, Floats, RowIds
from pserver.kernel.ahead import FAR, ask, ask_first
from pserver.kernel.optim_shared import POWERS, mean_square


@njit(nogil=True, cache=True, error_model="numpy")
def sgd(
    slab: Floats,  # (C * stride,) written
    stride: int,
    dim: int,
    row_ids: RowIds,  # (U,) in [0, C), distinct
    grads: Floats,  # (U * dim,)
    options: Doubles,  # lr, t
    table: Doubles,  # unused
) -> None:
    """W -= lr * g. No state."""
    lr = np.float32(options[0])
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
            slab[w + d] -= lr * grads[g + d]


@njit(nogil=True, cache=True, error_model="numpy")
def momentum(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, momentum
    table: Doubles,
) -> None:
    """M = momentum * m + g, then w -= lr * m. State: m, one a weight.

    Source:
        Polyak, USSR Comp. Math. 4 (1964), in the form of torch.optim.SGD.
    """
    lr = np.float32(options[0])
    share = np.float32(options[2])
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            speed = share * slab[s + d] + grads[g + d]
            slab[s + d] = speed
            slab[w + d] -= lr * speed


@njit(nogil=True, cache=True, error_model="numpy")
def nesterov(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, momentum
    table: Doubles,
) -> None:
    """M = momentum * m + g, then w -= lr * (g + momentum * m). State: m, one a weight.

    Source:
        Sutskever et al., ICML 2013, in the form of torch.optim.SGD(nesterov=True).
    """
    lr = np.float32(options[0])
    share = np.float32(options[2])
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            speed = share * slab[s + d] + grad
            slab[s + d] = speed
            slab[w + d] -= lr * (grad + share * speed)


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_element_before(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, eps, initial
    table: Doubles,
) -> None:
    """G += g * g, then w -= lr * g / (sqrt(G) + eps). State: G, one a weight.

    Source:
        Duchi, Hazan and Singer, JMLR 12 (2011); torch.optim.Adagrad.
    """
    lr = np.float32(options[0])
    eps = np.float32(options[2])
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
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
    options: Doubles,  # lr, t, eps, initial
    table: Doubles,
) -> None:
    """W -= lr * g * sqrt(G0 / (G0 + G)), then G += g * g. State: G, one a weight, from 0.

    Source:
        The element-wise AdaGrad rule of PaddlePaddle (StdAdaGrad).
    """
    lr = np.float32(options[0])
    initial = np.float32(options[3])
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            total = slab[s + d]
            slab[w + d] -= lr * grad * np.sqrt(initial / (initial + total))
            slab[s + d] = total + grad * grad


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_row_before(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, eps, initial
    table: Doubles,
) -> None:
    """G += mean(g * g), then w -= lr * g / (sqrt(G) + eps). State: G, one a row.

    Source:
        The row-wise form of Adagrad: facebookresearch/dlrm, optim/rwsadagrad.py.
    """
    lr = np.float32(options[0])
    eps = np.float32(options[2])
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        g = np.uint64(i) * width
        total = slab[w + width] + mean_square(grads, g, dim)
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
    options: Doubles,  # lr, t, eps, initial
    table: Doubles,
) -> None:
    """W -= lr * g * sqrt(G0 / (G0 + G)), then G += mean(g * g). State: G, one a row, from 0.

    Source:
        The AdaGrad rule of PaddlePaddle (one g2sum a row).
    """
    lr = np.float32(options[0])
    initial = np.float32(options[3])
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        g = np.uint64(i) * width
        total = slab[w + width]
        factor = lr * np.sqrt(initial / (initial + total))
        for k in range(dim):
            d = np.uint64(k)
            slab[w + d] -= factor * grads[g + d]
        slab[w + width] = total + mean_square(grads, g, dim)


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_decay(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, initial, decay_rate, decay_step
    table: Doubles,
) -> None:
    """Adagrad that forgets: at push t = decay_step, 2 * decay_step, ... all G shrink first.

    Shrink: G = max(initial, decay_rate * G). Then G += g * g; w -= lr * g / sqrt(G).
    State: p, how often the row shrank (modulo 2^24), then G, one a weight, from ``initial``.

    A row shrinks when it is next touched, n times at once: G = max(initial, decay_rate^n * G). As
    decay_rate is at most 1, n single shrinks give the same number, so this is what shrinking every
    row at once would give. If t went back, which needs a row of another table, it does not shrink.

    Source:
        AdagradDecayOptimizer of DeepRec, where t is the global step.
    """
    lr = np.float32(options[0])
    initial = np.float32(options[2])
    now = int(options[1] // options[4]) % POWERS
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width + np.uint64(1)
        g = np.uint64(i) * width
        factor = np.float32(1.0)
        times = (now - int(slab[w + width])) % POWERS
        if 0 < times < POWERS // 2:
            factor = np.float32(options[3] ** times)
        slab[w + width] = np.float32(now)
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            total = max(initial, slab[s + d] * factor) + grad * grad
            slab[s + d] = total
            slab[w + d] -= lr * grad / np.sqrt(total)


@njit(nogil=True, cache=True, error_model="numpy")
def sum_up(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t
    table: Doubles,
) -> None:
    """W += lr * g: what is pushed are addends, such as counts. No state."""
    lr = np.float32(options[0])
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
            slab[w + d] += lr * grads[g + d]


@njit(nogil=True, cache=True, error_model="numpy")
def summary(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, decay
    table: Doubles,
) -> None:
    """W = decay * w + lr * g: a sum that forgets, such as statistics of a stream. No state.

    In float64, since 1 - 0.999999 is wrong by 5 % once 0.999999 is a float32.
    """
    lr = options[0]
    decay = options[2]
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
            slab[w + d] = np.float32(decay * slab[w + d] + lr * grads[g + d])
