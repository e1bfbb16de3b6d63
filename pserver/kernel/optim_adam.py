"""The optimizer kernels that follow two moments of the gradient: adam and its kin.

Rooms before and after, signature and rules: as in ``optim``. All but ``shared_adam`` keep m and v
for each weight and, last in the row, t, its own count of steps; with ``step=table`` the count is
the table's and the row has none. Corrections for t come from a table made once: 1 / (1 - beta1^t)
and 1 / sqrt(1 - beta2^t), both 1 to float32 beyond its end.

Cost: memory. With dim 16 a row is 196 bytes, on four cache lines (three with ``step=table``) against
adagrad's two. Measured on 8 M rows, in ns a row: adagrad 9, adam 12.5, with ``step=table`` 10.5; with all in
the second cache 5.5, 9 and 8. Before rows were asked for into the second cache (``ahead``) and their parts known
to lie apart (``apart``) it was 14, 29 and 26.
"""

import numpy as np
from numba import njit

from pserver.arrays import Doubles, Floats, RowIds
from pserver.kernel.ahead import FAR, NEAR, ask, ask_first, ask_near
from pserver.kernel.apart import FIRST, GRADS, LARGEST, SECOND, WEIGHTS, read, write

_RATE_MAX = 1e30
"""Most that lamb multiplies a direction with: of a subnormal one the quotient would be infinite."""


@njit(nogil=True, cache=True, error_model="numpy")
def adam(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, beta1, beta2, eps, step
    table: Doubles,  # (2 * T,) 1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t) for t = 0 .. T - 1
) -> None:
    """Lazy Adam: m, v and the step count t of a row move only when the row gets a gradient.

    t += 1; m += (1 - beta1) * (g - m); v += (1 - beta2) * (g * g - v);
    w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps).
    State: m, then v, one a weight each, then t unless ``step=table``.

    Source:
        Kingma and Ba, ICLR 2015; torch.optim.SparseAdam for "lazy", here with t kept by row.
    """
    lr = options[0]
    beta1 = np.float32(options[2])
    beta2 = np.float32(options[3])
    # Subtracted in float64: 1 - float32(0.999) would be off by 1e-5.
    share1 = np.float32(1.0 - options[2])
    share2 = np.float32(1.0 - options[3])
    eps = np.float32(options[4])
    one = np.float32(1.0)
    by_table = int(options[5])
    last = table.size // 2 - 1
    common = int(min(options[1], np.float64(last)))
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        if i + NEAR < row_ids.size:
            ask_near(slab, row_ids[i + NEAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        m = w + width
        v = m + width
        g = np.uint64(i) * width
        t = common
        if by_table != 1:
            count = slab[v + width] + one
            slab[v + width] = count
            t = min(int(count), last)
        rate = np.float32(lr * table[np.uint64(2 * t)])
        root = np.float32(table[np.uint64(2 * t + 1)])
        for k in range(dim):
            d = np.uint64(k)
            grad = read(grads, g + d, GRADS)
            # Not as m + share * (g - m): with a small beta that would cancel.
            first = beta1 * read(slab, m + d, FIRST) + share1 * grad
            second = beta2 * read(slab, v + d, SECOND) + share2 * (grad * grad)
            write(slab, m + d, FIRST, first)
            write(slab, v + d, SECOND, second)
            weight = read(slab, w + d, WEIGHTS)
            write(slab, w + d, WEIGHTS, weight - rate * first / (np.sqrt(second) * root + eps))


@njit(nogil=True, cache=True, error_model="numpy")
def amsgrad(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, beta1, beta2, eps, step
    table: Doubles,  # (2 * T,) see ``adam``
) -> None:
    """Adam, lazy as above, that divides by the largest v so far.

    m and v as in ``adam``; x = max(x, v);
    w -= lr / (1 - beta1^t) * m / (sqrt(x) / sqrt(1 - beta2^t) + eps).
    State: m, v and x, one a weight each, then t unless ``step=table``.

    Source:
        Reddi, Kale and Kumar, ICLR 2018; torch.optim.Adam(amsgrad=True).
    """
    lr = options[0]
    beta1 = np.float32(options[2])
    beta2 = np.float32(options[3])
    # Subtracted in float64: 1 - float32(0.999) would be off by 1e-5.
    share1 = np.float32(1.0 - options[2])
    share2 = np.float32(1.0 - options[3])
    eps = np.float32(options[4])
    one = np.float32(1.0)
    by_table = int(options[5])
    last = table.size // 2 - 1
    common = int(min(options[1], np.float64(last)))
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        if i + NEAR < row_ids.size:
            ask_near(slab, row_ids[i + NEAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        m = w + width
        v = m + width
        x = v + width
        g = np.uint64(i) * width
        t = common
        if by_table != 1:
            count = slab[x + width] + one
            slab[x + width] = count
            t = min(int(count), last)
        rate = np.float32(lr * table[np.uint64(2 * t)])
        root = np.float32(table[np.uint64(2 * t + 1)])
        for k in range(dim):
            d = np.uint64(k)
            grad = read(grads, g + d, GRADS)
            first = beta1 * read(slab, m + d, FIRST) + share1 * grad
            second = beta2 * read(slab, v + d, SECOND) + share2 * (grad * grad)
            largest = max(read(slab, x + d, LARGEST), second)
            write(slab, m + d, FIRST, first)
            write(slab, v + d, SECOND, second)
            write(slab, x + d, LARGEST, largest)
            weight = read(slab, w + d, WEIGHTS)
            write(slab, w + d, WEIGHTS, weight - rate * first / (np.sqrt(largest) * root + eps))


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _go(
    slab: Floats,
    w: np.uint64,
    dim: int,
    rate: np.float32,
    scale: np.float32,
    root: np.float32,
    eps: np.float32,
    decay: np.float32,
) -> None:
    """Move the row at ``w`` along lamb's direction; m and v behind it have moved."""
    m = w + np.uint64(dim)
    v = m + np.uint64(dim)
    for k in range(dim):
        d = np.uint64(k)
        weight = slab[w + d]
        ratio = scale * slab[m + d] / (np.sqrt(slab[v + d]) * root + eps)
        slab[w + d] = weight - rate * (ratio + decay * weight)


@njit(nogil=True, cache=True, error_model="numpy")
def lamb(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, beta1, beta2, eps, weight_decay, step
    table: Doubles,  # (2 * T,) see ``adam``
) -> None:
    """Adam's direction, at a length that follows the length of the row's weights.

    m and v as in ``adam``; r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
    + weight_decay * w; w -= lr * |w| / |r| * r, where the quotient is 1 if |w| or |r| is 0; norms
    are the row's, in float64. State: m, then v, then t unless ``step=table``.

    Source:
        You et al., ICLR 2020, algorithm 2, a row being a layer.
    """
    lr = options[0]
    beta1 = np.float32(options[2])
    beta2 = np.float32(options[3])
    # Subtracted in float64: 1 - float32(0.999) would be off by 1e-5.
    share1 = np.float32(1.0 - options[2])
    share2 = np.float32(1.0 - options[3])
    eps = np.float32(options[4])
    decay = np.float32(options[5])
    by_table = int(options[6])
    last = table.size // 2 - 1
    common = int(min(options[1], np.float64(last)))
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * np.uint64(stride)
        m = w + width
        v = m + width
        g = np.uint64(i) * width
        t = common
        if by_table != 1:
            count = slab[v + width] + np.float32(1.0)
            slab[v + width] = count
            t = min(int(count), last)
        scale = np.float32(table[np.uint64(2 * t)])
        root = np.float32(table[np.uint64(2 * t + 1)])
        weights = steps = 0.0
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            first = beta1 * slab[m + d] + share1 * grad
            second = beta2 * slab[v + d] + share2 * (grad * grad)
            slab[m + d] = first
            slab[v + d] = second
            weight = slab[w + d]
            r = np.float64(scale * first / (np.sqrt(second) * root + eps) + decay * weight)
            weights += np.float64(weight) * np.float64(weight)
            steps += r * r
        long = weights > 0.0 and steps > 0.0
        rate = np.float32(min(lr * np.sqrt(weights / steps), _RATE_MAX) if long else lr)
        _go(slab, w, dim, rate, scale, root, eps, decay)


@njit(nogil=True, cache=True, error_model="numpy")
def shared_adam(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, beta1, beta2, eps
    table: Doubles,
) -> None:
    """Adam with one m and one v for the whole row, the means of what its weights would keep.

    For each weight: m' = beta1 * m + (1 - beta1) * g; v' = beta2 * v + (1 - beta2) * g * g;
    w -= lr * sqrt(1 - b2) / (1 - b1) * m' / (sqrt(v') + eps). Then m = mean(m'), v = mean(v'),
    b1 *= beta1, b2 *= beta2. State: m, v, b1 from beta1, b2 from beta2: 4 floats.

    Source:
        The SharedAdam rule of PaddlePaddle (sparse_sgd_rule.cc).
    """
    lr = options[0]
    beta1 = np.float32(options[2])
    beta2 = np.float32(options[3])
    # Subtracted in float64: 1 - float32(0.999) would be off by 1e-5.
    share1 = np.float32(1.0 - options[2])
    share2 = np.float32(1.0 - options[3])
    eps = np.float32(options[4])
    one = np.float32(1.0)
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width
        g = np.uint64(i) * width
        m = beta1 * slab[s]
        v = beta2 * slab[s + np.uint64(1)]
        power1 = slab[s + np.uint64(2)]
        power2 = slab[s + np.uint64(3)]
        rate = np.float32(lr * np.sqrt(np.float64(one - power2)) / np.float64(one - power1))
        sum1 = 0.0
        sum2 = 0.0
        for k in range(dim):
            value = np.float64(grads[g + np.uint64(k)])
            sum1 += value
            sum2 += value * value
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            first = m + share1 * grad
            second = v + share2 * (grad * grad)
            slab[w + d] -= rate * first / (np.sqrt(second) + eps)
        slab[s] = np.float32(m + (1.0 - options[2]) * (sum1 / dim))
        slab[s + np.uint64(1)] = np.float32(v + (1.0 - options[3]) * (sum2 / dim))
        slab[s + np.uint64(2)] = power1 * beta1
        slab[s + np.uint64(3)] = power2 * beta2
