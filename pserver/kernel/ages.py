"""When rows were last written, how often, and which of them go.

Rooms before and after: ``table.lifecycle`` says which words a record has and what the numbers are;
``table.eviction`` and ``table.shrink`` walk over the rows and erase those that are named here.

Words. ``stamp``: the table's clock when the row was last written or made; the clock counts writes, so
``clock - stamp`` modulo 2^32 is the row's age in writes. ``uses``: how often it was written, halved at
each multiple of ``half_life`` of the clock. ``seen_day``: 0 if the row was written since the last
shrink, else the day of the first shrink after that.

What always holds: row ids are in range and distinct; nothing is allocated; no clock but the table's.
"""

import numpy as np
from numba import njit

from pserver.arrays import Keys, RowIds, Uint32s, Words
from pserver.mix import mix64, prefetch

LRU, LFU, SCORE = range(3)
"""What was written least recently, or least often, or scores least goes first."""

NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)
"""The rank of a row that must not go."""

USES_MAX = np.uint32((1 << 20) - 1)
"""A count of uses stops here."""

_AHEAD = 16
_ABSENT = -1  # the position of a word that the records do not have


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _age(clock: int, stamp: np.uint32) -> np.int64:
    """Return how many writes ago a row was written, less than 2^32."""
    return (np.int64(clock) - np.int64(stamp)) & np.int64(0xFFFFFFFF)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _uses_now(uses: np.uint32, age: np.int64, clock: int, half_life: int) -> np.uint32:
    """Return a count of uses as it has faded since the row was written."""
    halvings = clock // half_life - (clock - age) // half_life
    if halvings > 31:
        return np.uint32(0)
    return np.uint32(uses >> np.uint32(halvings))


@njit(nogil=True, cache=True, error_model="numpy")
def begin(
    words: Uint32s,  # (C * K,) written
    stride: int,  # K
    stamp_at: int,
    row_ids: RowIds,  # (U,)
    clock: int,
) -> None:
    """Stamp rows that are new; their other words begin at 0."""
    if stamp_at == _ABSENT:
        return
    step, stamp = np.uint64(stride), np.uint32(clock & 0xFFFFFFFF)
    for i in range(row_ids.size):
        words[np.uint64(row_ids[i]) * step + np.uint64(stamp_at)] = stamp


@njit(nogil=True, cache=True, error_model="numpy")
def wrote(
    words: Uint32s,  # (C * K,) written
    stride: int,  # K
    stamp_at: int,  # positions in a record, or -1
    uses_at: int,
    seen_at: int,
    row_ids: RowIds,  # (U,) distinct
    clock: int,
    half_life: int,
) -> None:
    """Note that rows were written."""
    step, stamp = np.uint64(stride), np.uint32(clock & 0xFFFFFFFF)
    for i in range(row_ids.size):
        if i + _AHEAD < row_ids.size:
            prefetch(words, row_ids[i + _AHEAD] * stride)
        row = np.uint64(row_ids[i]) * step
        if uses_at != _ABSENT:
            age = _age(clock, words[row + np.uint64(stamp_at)])
            uses = _uses_now(words[row + np.uint64(uses_at)], age, clock, half_life)
            words[row + np.uint64(uses_at)] = min(np.uint32(uses + np.uint32(1)), USES_MAX)
        if stamp_at != _ABSENT:
            words[row + np.uint64(stamp_at)] = stamp
        if seen_at != _ABSENT:
            words[row + np.uint64(seen_at)] = np.uint32(0)


@njit(nogil=True, cache=True, error_model="numpy")
def mark(marks: Words, row_ids: RowIds) -> None:
    """Set the bits of rows."""
    one = np.uint64(1)
    for i in range(row_ids.size):
        row_id = np.uint64(row_ids[i])
        marks[row_id >> np.uint64(6)] |= one << (row_id & np.uint64(63))


@njit(nogil=True, cache=True, error_model="numpy")
def unmark(marks: Words, row_ids: RowIds) -> None:
    """Clear the words in which the bits of rows are."""
    for i in range(row_ids.size):
        marks[np.uint64(row_ids[i]) >> np.uint64(6)] = np.uint64(0)


@njit(nogil=True, cache=True, error_model="numpy")
def ranks(
    words: Uint32s,  # (C * K,)
    stride: int,  # K
    stamp_at: int,
    uses_at: int,
    kind: int,  # LRU, LFU or SCORE
    clock: int,
    half_life: int,
    worths: Uint32s,  # (U,) of SCORE: ordered as the scores are; else (0,)
    marks: Words,  # (C / 64,) a bit for each row that must not go
    keys: Keys,  # (U,)
    row_ids: RowIds,  # (U,)
    out: Words,  # (U,) written: rows with lower ranks go first
) -> None:
    """Rank rows by what they are worth; equals go the older first, then by a hash of the key.

    LRU: 32 bits of age, 32 of hash. LFU: 20 of uses, 24 of age, 20 of hash. SCORE: 32 of score, 20 of age,
    12 of hash. Ages beyond their bits are equal.
    """
    step, one = np.uint64(stride), np.uint64(1)
    for i in range(row_ids.size):
        at = np.uint64(i)
        if i + _AHEAD < row_ids.size:
            prefetch(words, row_ids[i + _AHEAD] * stride)
        row_id = np.uint64(row_ids[at])
        row = row_id * step
        age = _age(clock, words[row + np.uint64(stamp_at)])
        rank = mix64(keys[at])
        if kind == LRU:
            rank &= np.uint64(0xFFFFFFFF)
            rank |= np.uint64(0xFFFFFFFF - age) << np.uint64(32)
        elif kind == SCORE:
            rank &= np.uint64(0xFFF)
            recency = np.int64(0xFFFFF) - min(age, np.int64(0xFFFFF))
            rank |= np.uint64(recency) << np.uint64(12)
            rank |= np.uint64(worths[at]) << np.uint64(32)
        else:
            uses = _uses_now(words[row + np.uint64(uses_at)], age, clock, half_life)
            rank &= np.uint64(0xFFFFF)
            recency = np.int64(0xFFFFFF) - min(age, np.int64(0xFFFFFF))
            rank |= np.uint64(recency) << np.uint64(20)
            rank |= np.uint64(uses) << np.uint64(44)
        if (marks[row_id >> np.uint64(6)] >> (row_id & np.uint64(63))) & one:
            rank = NEVER
        out[at] = rank
