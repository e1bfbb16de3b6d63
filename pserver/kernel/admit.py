"""Which keys get a row: counts in a sketch of fixed size, counts of candidates, and draws.

Rooms before and after: ``table.admission`` says what is counted; ``table.candidates`` and
``table.sketch`` own the memory.

What always holds: nothing is allocated; keys of one call are distinct, and whether a key is admitted
depends on what was counted before the call and on its own occurrences, not on the others in it.
"""

import numpy as np
from numba import njit

from pserver.arrays import Bytes, Counts, Doubles, Floats, Keys, RowIds, Uint32s
from pserver.kernel.hashmap import PARTITION_SHIFT
from pserver.mix import GOLDEN, mix64, prefetch

LINE = 64
"""Counters of a cache line; a key's four are in one, each in a quarter of its own."""

COUNT_MAX = 255
"""A counter of a sketch stops here."""

_AHEAD = 16
_UNIT = 1.0 / 9007199254740992.0  # 2^-53
_QUARTER = np.uint64(15)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _line_of(key: np.uint64, lines: int) -> np.uint64:
    """Return the first counter of the line that a key has, among ``lines`` a partition."""
    hashed = mix64(key)
    partition = hashed >> PARTITION_SHIFT
    high = mix64(hashed) >> np.uint64(32)
    line = (high * np.uint64(lines)) >> np.uint64(32)
    return (partition * np.uint64(lines) + line) * np.uint64(LINE)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _place(bits: np.uint64, quarter: int) -> np.uint64:
    """Return where in its line the counter of one quarter stands, from the bits of a hash."""
    shift = np.uint64(4 * quarter)
    return np.uint64(16 * quarter) + ((bits >> shift) & _QUARTER)


@njit(nogil=True, cache=True, error_model="numpy")
def sketch_estimate(
    counters: Bytes,  # (1024 * lines * 64,)
    lines: int,
    keys: Keys,  # (U,)
    out: Counts,  # (U,) written
) -> None:
    """Write how often each key was counted: never too low, too high where four others coincide."""
    for i in range(keys.size + _AHEAD):
        if i < keys.size:
            prefetch(counters, _line_of(keys[i], lines))
        j = i - _AHEAD
        if j >= 0:
            line = _line_of(keys[j], lines)
            bits = mix64(mix64(keys[j]))
            least = np.uint8(COUNT_MAX)
            for quarter in range(4):
                least = min(least, counters[line + _place(bits, quarter)])
            out[j] = least


@njit(nogil=True, cache=True, error_model="numpy")
def sketch_add(
    counters: Bytes,  # (1024 * lines * 64,) written
    lines: int,
    keys: Keys,  # (U,) distinct
    amounts: Counts,  # (U,)
    touched: Bytes,  # (1024,) written: 1 for each partition that was counted in
) -> None:
    """Count each key: of its four counters, those below least + amount are raised to it.

    Source:
        Count-min sketch with conservative update: Estan and Varghese, SIGCOMM 2002.
    """
    for i in range(keys.size + _AHEAD):
        if i < keys.size:
            prefetch(counters, _line_of(keys[i], lines))
        j = i - _AHEAD
        if j >= 0:
            line = _line_of(keys[j], lines)
            hashed = mix64(keys[j])
            bits = mix64(hashed)
            least = np.int64(COUNT_MAX)
            for quarter in range(4):
                least = min(least, np.int64(counters[line + _place(bits, quarter)]))
            raised = min(least + np.int64(amounts[j]), np.int64(COUNT_MAX))
            for quarter in range(4):
                place = line + _place(bits, quarter)
                counters[place] = np.uint8(max(np.int64(counters[place]), raised))
            touched[hashed >> PARTITION_SHIFT] = np.uint8(1)


@njit(nogil=True, cache=True, error_model="numpy")
def add_counts(words: Uint32s, ids: RowIds, amounts: Counts) -> None:
    """Add to the counts of candidates, one word each; a count stops at 2^32 - 1."""
    for i in range(ids.size):
        at = np.uint64(i)
        place = np.uint64(ids[at])
        total = np.uint64(words[place]) + np.uint64(amounts[at])
        words[place] = np.uint32(min(total, np.uint64(0xFFFFFFFF)))


@njit(nogil=True, cache=True, error_model="numpy")
def add_shows(floats: Floats, ids: RowIds, shows: Floats, clicks: Floats) -> None:
    """Add to the shows and clicks of candidates, two words each."""
    for i in range(ids.size):
        at = np.uint64(i)
        place = np.uint64(ids[at]) * np.uint64(2)
        floats[place] += shows[at]
        floats[place + np.uint64(1)] += clicks[at]


@njit(nogil=True, cache=True, error_model="numpy")
def draw(seed: np.uint64, trial: np.uint64, keys: Keys, out: Doubles) -> None:
    """Write a number in [0, 1) for each key: a function of the seed, the key and the trial."""
    for i in range(keys.size):
        base = mix64(keys[np.uint64(i)] ^ seed)
        word = mix64(base + (trial + np.uint64(1)) * GOLDEN)
        out[np.uint64(i)] = (word >> np.uint64(11)) * _UNIT
