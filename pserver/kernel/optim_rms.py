"""The optimizer kernels that divide by a running mean of squares: rmsprop and adadelta.

Rooms before and after, signature and rules: as in ``optim``.
"""

import numpy as np
from numba import njit

from pserver.arrays import Doubles, Floats, RowIds
from pserver.kernel.ahead import FAR, ask, ask_first


@njit(nogil=True, cache=True, error_model="numpy")
def rmsprop(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, rho, eps, momentum, variant, eps_at
    table: Doubles,
) -> None:
    """N = rho * n + c * g * g, then w -= lr * g / (sqrt(n + inside) + outside). State: n.

    c is 1 - rho for ``variant=v1``, 1 for v2; ``eps_at`` says which of the two is eps, the other is 0.

    Source:
        v1: Tieleman and Hinton, Coursera lecture 6e (2012); torch.optim.RMSprop has eps outside,
        TensorFlow inside. v2: the RmspropV2 of Monolith, whose eps is 1.
    """
    lr = np.float32(options[0])
    rho = np.float32(options[2])
    share = np.float32(1.0) if options[5] == 1.0 else np.float32(1.0 - options[2])
    outside = np.float32(0.0) if options[6] == 1.0 else np.float32(options[3])
    inside = np.float32(options[3]) if options[6] == 1.0 else np.float32(0.0)
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
            mean = rho * slab[s + d] + share * (grad * grad)
            slab[s + d] = mean
            slab[w + d] -= lr * grad / (np.sqrt(mean + inside) + outside)


@njit(nogil=True, cache=True, error_model="numpy")
def rmsprop_momentum(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, rho, eps, momentum, variant, eps_at
    table: Doubles,
) -> None:
    """N as in ``rmsprop``; b = momentum * b + g / (sqrt(n + inside) + outside); w -= lr * b.

    State: n, then b, one a weight each.

    Source:
        torch.optim.RMSprop(momentum=...).
    """
    lr = np.float32(options[0])
    rho = np.float32(options[2])
    momentum = np.float32(options[4])
    share = np.float32(1.0) if options[5] == 1.0 else np.float32(1.0 - options[2])
    outside = np.float32(0.0) if options[6] == 1.0 else np.float32(options[3])
    inside = np.float32(options[3]) if options[6] == 1.0 else np.float32(0.0)
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width
        b = s + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            mean = rho * slab[s + d] + share * (grad * grad)
            speed = momentum * slab[b + d] + grad / (np.sqrt(mean + inside) + outside)
            slab[s + d] = mean
            slab[b + d] = speed
            slab[w + d] -= lr * speed


@njit(nogil=True, cache=True, error_model="numpy")
def adadelta(
    slab: Floats,
    stride: int,
    dim: int,
    row_ids: RowIds,
    grads: Floats,
    options: Doubles,  # lr, t, rho, eps
    table: Doubles,
) -> None:
    """Step by the ratio of two running means, of steps and of gradients.

    n = rho * n + (1 - rho) * g * g; u = sqrt(x + eps) / sqrt(n + eps) * g;
    x = rho * x + (1 - rho) * u * u; w -= lr * u. State: n, then x, one a weight each.

    Source:
        Zeiler, arXiv 1212.5701 (2012); torch.optim.Adadelta.
    """
    lr = np.float32(options[0])
    rho = np.float32(options[2])
    share = np.float32(1.0 - options[2])
    eps = np.float32(options[3])
    step = np.uint64(stride)
    width = np.uint64(dim)
    ask_first(slab, row_ids, stride, stride)
    for i in range(row_ids.size):
        if i + FAR < row_ids.size:
            ask(slab, row_ids[i + FAR] * stride, stride)
        w = np.uint64(row_ids[i]) * step
        s = w + width
        x = s + width
        g = np.uint64(i) * width
        for k in range(dim):
            d = np.uint64(k)
            grad = grads[g + d]
            mean = rho * slab[s + d] + share * (grad * grad)
            moved = slab[x + d]
            change = np.sqrt(moved + eps) / np.sqrt(mean + eps) * grad
            slab[s + d] = mean
            slab[x + d] = rho * moved + share * (change * change)
            slab[w + d] -= lr * change
