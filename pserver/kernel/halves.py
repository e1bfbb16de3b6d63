"""Weights of 16 bits: from and to float32, rounded to the nearest or by chance.

Rooms before and after: ``table.slab_half`` keeps weights so and steps them as float32 in a block.

A weight is the 16 bits of a bfloat16 (8 of exponent, 7 of fraction) or of an IEEE float16 (5 and 10).
All arithmetic is on whole numbers, so it needs no instruction that a processor may lack.

Rounding by chance goes up with the probability that the number is along its way to the upper
neighbour: the mean is the number itself, so steps that are too small for 16 bits are not lost. The
draws come from (seed, key, version, position) and from nothing else: two runs and a replay round alike.

What always holds:
    * A number that 16 bits hold is kept as it is, whatever the rounding.
    * Finite stays finite: beyond the largest number there is the largest number. NaN stays NaN.
    * Row ids are in range, nothing is allocated.

Cost: about 1 ns a weight, beside the two cache lines of a row.
"""

import numpy as np
from numba import njit

from pserver.arrays import Floats, Halves, Keys, RowIds
from pserver.mix import GOLDEN, mix64, prefetch

BFLOAT16, FLOAT16 = 0, 1
"""Kinds of half, as the kernels take them."""

_AHEAD = 16
_LINE = 32  # halves a cache line
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITE = np.uint32(0x7F800000)
_NORMAL16 = np.uint32(0x38800000)  # 2^-14, the smallest normal float16, as float32
_REBIAS16 = np.uint32(112 << 10)  # between the exponents of float32 and of float16
_SCALE16 = np.float32(2.0**24)  # subnormal float16 are multiples of 2^-24
_UNIT16 = np.float32(2.0**-24)
_CENTRE = np.float32(2.0**-17)
_DRAW = np.float32(2.0**-16)
_HALF = np.float32(0.5)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _widened(half: np.uint16, kind: int) -> np.float32:
    """Return the float32 that a half stands for."""
    if kind == BFLOAT16:
        return np.uint32(np.uint32(half) << np.uint32(16)).view(np.float32)
    sign = np.uint32((np.uint32(half) & np.uint32(0x8000)) << np.uint32(16))
    size = np.uint32(np.uint32(half) & np.uint32(0x7FFF))
    if size < np.uint32(0x400):
        bits = np.float32(np.float32(np.int32(size)) * _UNIT16).view(np.uint32)
    elif size < np.uint32(0x7C00):
        bits = np.uint32((size + _REBIAS16) << np.uint32(13))
    else:
        bits = np.uint32((size << np.uint32(13)) | _INFINITE)
    return np.uint32(bits | sign).view(np.float32)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _brain(size: np.uint32, added: np.uint32) -> np.uint32:
    """Return the bfloat16 bits of a magnitude after adding to the 16 bits that go."""
    if size > _INFINITE:
        return np.uint32(0x7FC0)
    up = np.uint32(np.uint32(size + added) >> np.uint32(16))
    return min(up, np.uint32(0x7F7F))


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _ieee(size: np.uint32, added: np.uint32, threshold: np.float32) -> np.uint32:
    """Return the float16 bits of a magnitude.

    ``added`` is for the 13 bits that go of a normal number. The fraction of a subnormal one goes up
    if it is over ``threshold``, or equal to it and the number below is odd.
    """
    if size > _INFINITE:
        return np.uint32(0x7E00)
    if size >= _NORMAL16:
        up = np.uint32((np.uint32(size + added) >> np.uint32(13)) - _REBIAS16)
        return min(up, np.uint32(0x7BFF))
    units = np.float32(size.view(np.float32) * _SCALE16)
    below = np.uint32(np.int32(units))
    rest = np.float32(units - np.float32(np.int32(below)))
    odd = below & np.uint32(1)
    if rest > threshold or (rest == threshold and odd == np.uint32(1)):
        return np.uint32(below + np.uint32(1))
    return below


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _nearest(value: np.float32, kind: int) -> np.uint16:
    """Return the half that is nearest to a float32; of two equally near ones the even one."""
    bits = np.float32(value).view(np.uint32)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    size = np.uint32(bits & _MAGNITUDE)
    if kind == BFLOAT16:
        odd = np.uint32((size >> np.uint32(16)) & np.uint32(1))
        return np.uint16(sign | _brain(size, np.uint32(np.uint32(0x7FFF) + odd)))
    odd = np.uint32((size >> np.uint32(13)) & np.uint32(1))
    return np.uint16(sign | _ieee(size, np.uint32(np.uint32(0xFFF) + odd), _HALF))


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _by_chance(value: np.float32, kind: int, draw: np.uint32) -> np.uint16:
    """Return one of the two halves beside a float32, by a draw in [0, 2^16)."""
    bits = np.float32(value).view(np.uint32)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    size = np.uint32(bits & _MAGNITUDE)
    if kind == BFLOAT16:
        return np.uint16(sign | _brain(size, draw))
    # In the middle of each of the 2^16 steps, so 0 never goes up.
    threshold = np.float32(np.float32(np.int32(draw)) * _DRAW + _CENTRE)
    return np.uint16(sign | _ieee(size, np.uint32(draw >> np.uint32(3)), threshold))


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _draw(low: np.uint32, high: np.uint32, position: int) -> np.uint32:
    """Return a draw in [0, 2^16) for one weight of a row: 32-bit words, many an instruction.

    Source:
        The finalizer is MurmurHash3's fmix32 (Appleby, 2011, public domain).
    """
    x = np.uint32(low + np.uint32(np.uint32(position) * np.uint32(0x9E3779B9)))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32((np.uint32(x ^ (x >> np.uint32(16))) ^ high) >> np.uint32(16))


@njit(nogil=True, cache=True, error_model="numpy")
def gather(
    weights: Halves,  # (C * dim,)
    dim: int,
    kind: int,
    row_ids: RowIds,  # (U,) in [-1, C)
    stride: int,  # of ``out``
    out: Floats,  # (U * stride,) the first dim of each row written; left alone where the id is -1
) -> None:
    """Copy the weights of the named rows into one block, as float32."""
    count = row_ids.size
    for i in range(count):
        j = i + _AHEAD
        if j < count:
            for k in range(0, dim, _LINE):
                prefetch(weights, row_ids[j] * dim + k)
        if row_ids[i] < 0:
            continue
        source = np.uint64(row_ids[i]) * np.uint64(dim)
        target = np.uint64(i) * np.uint64(stride)
        for k in range(dim):
            d = np.uint64(k)
            out[target + d] = _widened(weights[source + d], kind)


@njit(nogil=True, cache=True, error_model="numpy")
def put(
    block: Floats,  # (U * stride,)
    stride: int,
    dim: int,
    kind: int,
    row_ids: RowIds,  # (U,) in [0, C); of repeats the last one counts
    weights: Halves,  # (C * dim,) written
) -> None:
    """Write the weights of a block into the named rows, each rounded to the nearest."""
    for i in range(row_ids.size):
        target = np.uint64(row_ids[i]) * np.uint64(dim)
        source = np.uint64(i) * np.uint64(stride)
        for k in range(dim):
            d = np.uint64(k)
            weights[target + d] = _nearest(block[source + d], kind)


@njit(nogil=True, cache=True, error_model="numpy")
def put_by_chance(
    block: Floats,  # (U * stride,)
    stride: int,
    dim: int,
    kind: int,
    row_ids: RowIds,  # (U,) in [0, C), distinct
    keys: Keys,  # (U,) of the rows
    seed: np.uint64,
    version: np.uint64,
    weights: Halves,  # (C * dim,) written
) -> None:
    """Write the weights of a block into the named rows, each rounded by chance."""
    for i in range(row_ids.size):
        target = np.uint64(row_ids[i]) * np.uint64(dim)
        source = np.uint64(i) * np.uint64(stride)
        mixed = mix64(mix64(keys[i] ^ seed) + (version + np.uint64(1)) * GOLDEN)
        low, high = np.uint32(mixed & np.uint64(0xFFFFFFFF)), np.uint32(mixed >> np.uint64(32))
        for k in range(dim):
            d = np.uint64(k)
            weights[target + d] = _by_chance(block[source + d], kind, _draw(low, high, k))


@njit(nogil=True, cache=True, error_model="numpy")
def round_rows(
    block: Floats,  # (U * dim,) written
    dim: int,
    kind: int,
    where: RowIds,  # (V,) rows of the block
) -> None:
    """Round the named rows of a block to the nearest: what they would be once they were kept."""
    for i in range(where.size):
        start = np.uint64(where[i]) * np.uint64(dim)
        for k in range(dim):
            d = np.uint64(k)
            block[start + d] = _widened(_nearest(block[start + d], kind), kind)


@njit(nogil=True, cache=True, error_model="numpy")
def gather_state(
    state: Floats,  # (C * state_dim,)
    state_dim: int,
    row_ids: RowIds,  # (U,) in [0, C)
    stride: int,
    out: Floats,  # (U * stride,) the last state_dim of each row written
) -> None:
    """Copy the state of the named rows behind their weights in a block."""
    count = row_ids.size
    shift = np.uint64(stride - state_dim)
    for i in range(count):
        j = i + _AHEAD
        if j < count:
            for k in range(0, state_dim, _LINE // 2):
                prefetch(state, row_ids[j] * state_dim + k)
        source = np.uint64(row_ids[i]) * np.uint64(state_dim)
        target = np.uint64(i) * np.uint64(stride) + shift
        for k in range(state_dim):
            out[target + np.uint64(k)] = state[source + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def put_state(
    block: Floats,  # (U * stride,)
    stride: int,
    state_dim: int,
    row_ids: RowIds,  # (U,) in [0, C)
    state: Floats,  # (C * state_dim,) written
) -> None:
    """Copy the state of a block into the named rows."""
    shift = np.uint64(stride - state_dim)
    for i in range(row_ids.size):
        source = np.uint64(i) * np.uint64(stride) + shift
        target = np.uint64(row_ids[i]) * np.uint64(state_dim)
        for k in range(state_dim):
            state[target + np.uint64(k)] = block[source + np.uint64(k)]
