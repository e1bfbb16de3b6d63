"""First weights: what a row holds before its first gradient.

Rooms before and after: ``table.sparse`` calls this for rows just created, and for keys without
a row when a pull must not create.

What always holds: a weight is a function of (seed of the table, key, position in the row) and
of nothing else: not of the shard count, the order of requests, or who asks first. The random
numbers come from a counter-based generator (SplitMix64's finalizer over key and counter), never
from a shared stream.
"""

import math

import numpy as np
from numba import njit

from pserver.arrays import Doubles, Floats, Keys, RowIds
from pserver.mix import GOLDEN, mix64

CONSTANT, UNIFORM, NORMAL, TRUNCATED = 0, 1, 2, 3
"""Kinds of initializer, as the kernel takes them."""

_UNIT = 1.0 / 9007199254740992.0  # 2^-53
_HALF = 0.5 / 9007199254740992.0
_TRIES_MAX = 64  # a draw falls outside two deviations with p 0.046; 64 misses never happen


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _unit(base: np.uint64, counter: int) -> float:
    """Return draw number ``counter`` of a key, in (0, 1]: never 0, so it has a log."""
    word = mix64(base + np.uint64(counter + 1) * GOLDEN)
    return (word >> np.uint64(11)) * _UNIT + _HALF


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _normal(base: np.uint64, counter: int) -> float:
    """Return a standard normal draw made of draws ``counter`` and ``counter + 1``.

    Source:
        Box and Muller, Annals of Mathematical Statistics 29 (1958).
    """
    radius = math.sqrt(-2.0 * math.log(_unit(base, counter)))
    return radius * math.cos(2.0 * math.pi * _unit(base, counter + 1))


@njit(nogil=True, cache=True, error_model="numpy")
def first_weights(
    seed: np.uint64,
    kind: int,
    options: Doubles,  # (2,) low and high; or mean and deviation; or the constant
    keys: Keys,  # (U,) uint64
    where: RowIds,  # (V,) positions in ``keys`` that want weights
    targets: RowIds,  # (V,) the row of ``out`` for each
    stride: int,
    begin: int,  # draw of the first weight that is written: its position in the whole row
    of_dim: int,  # weights of the whole row
    dim: int,
    state_dim: int,
    state: Doubles,  # (S,) first values of the optimizer's state, S at least 1; the last repeats
    out: Floats,  # (rows * stride,) written: dim weights and then state_dim floats of state
) -> None:
    """Write first weights, and the first state behind them if there is state."""
    low = options[0]
    high = options[1]
    last = state.size - 1
    for i in range(where.size):
        base = mix64(keys[where[i]] ^ seed)
        start = np.uint64(targets[i]) * np.uint64(stride)
        for k in range(dim):
            value = low
            if kind == UNIFORM:
                value = low + (high - low) * _unit(base, begin + k)
            elif kind == NORMAL:
                value = low + high * _normal(base, 2 * (begin + k))
            elif kind == TRUNCATED:
                draw = 0.0
                for attempt in range(_TRIES_MAX):
                    draw = _normal(base, 2 * (begin + k + attempt * of_dim))
                    if abs(draw) <= 2.0:
                        break
                value = low + high * draw
            out[start + np.uint64(k)] = np.float32(value)
        for k in range(state_dim):
            out[start + np.uint64(dim + k)] = np.float32(state[min(k, last)])
