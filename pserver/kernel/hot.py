"""Which keys are pushed most: counters of a few keys, however many there are.

Rooms before and after: ``table.hot`` owns the counters; ``sparse`` shows each push.

A table of slots, probed linearly, counts sampled keys. When it is three quarters full, the median of some
of its counts is taken from all, which frees about half of the slots: so a key costs O(1) on average. What
was taken so far is how much too low any count can be.

What always holds: nothing is allocated; a slot is free if its count is 0.

Source:
    Anderson et al., "A High-Performance Algorithm for Identifying Frequent Items in Data Streams",
    IMC 2017, after Misra and Gries (1982).
"""

import numpy as np
from numba import njit

from pserver.arrays import Keys, RowIds
from pserver.mix import mix64

SLOTS = 2048
USED_MAX = 1536
JUDGED = 65  # slots are in the order of a hash, so these are a fair sample

USED, TAKEN, SEEN = range(3)
"""Words of ``state``: slots in use, what was taken from every count, keys counted."""


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _slot_of(slots: Keys, counts: RowIds, key: np.uint64) -> np.uint64:
    """Return the slot of a key, or the free one where it belongs."""
    mask = np.uint64(SLOTS - 1)
    slot = mix64(key) & mask
    while counts[slot] > 0 and slots[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True, error_model="numpy")
def _thin(
    slots: Keys, counts: RowIds, state: RowIds, spare_keys: Keys, spare_counts: RowIds
) -> None:
    """Take the median of the first ``JUDGED`` counts from every count, and keep what is left over 0."""
    used = 0
    for i in range(SLOTS):
        if counts[i] > 0:
            spare_keys[used] = slots[i]
            spare_counts[used] = counts[i]
            counts[i] = 0
            used += 1
    median = np.sort(spare_counts[:JUDGED])[JUDGED // 2]
    state[USED] = 0
    state[TAKEN] += median
    for i in range(used):
        if spare_counts[i] > median:
            slot = _slot_of(slots, counts, spare_keys[i])
            slots[slot] = spare_keys[i]
            counts[slot] = spare_counts[i] - median
            state[USED] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def note(
    slots: Keys,  # (SLOTS,) written
    counts: RowIds,  # (SLOTS,) written
    state: RowIds,  # (3,) written
    spare_keys: Keys,  # (SLOTS,) of no meaning
    spare_counts: RowIds,  # (SLOTS,) of no meaning
    keys: Keys,  # (U,)
    start: int,
    step: int,
) -> None:
    """Count the keys at ``start``, ``start + step`` and so on."""
    for i in range(start, keys.size, step):
        key = keys[i]
        slot = _slot_of(slots, counts, key)
        if counts[slot] == 0:
            if state[USED] == USED_MAX:
                _thin(slots, counts, state, spare_keys, spare_counts)
                slot = _slot_of(slots, counts, key)
            slots[slot] = key
            state[USED] += 1
        counts[slot] += 1
        state[SEEN] += 1
