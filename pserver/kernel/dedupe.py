"""From the occurrences of a batch to its distinct keys, and the way back.

Rooms before and after: ``trainer.embedding`` or a caller brings keys, and ``client.route`` splits
what is distinct; ``server.rounds`` brings the keys of all trainers of a round.

What always holds: ``keys[inverse]`` is the input; distinct keys stand in the order of their first
occurrence; the counts add up to N.

Cost: one probe an occurrence in a table of 4 bytes a bucket, asked for 16 keys ahead: for 106,496
occurrences under 1 ms, against 6 to 19 of ``np.unique``.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pserver.arrays import Counts, Keys, RowIds
from pserver.mix import mix64, prefetch

BATCH_MAX = 2**31 - 1
"""Occurrences of one call at most; positions are int32 inside the kernel."""

_AHEAD = 16  # keys between the prefetch and the probe: from 2.8 to 0.7 ms a batch


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct keys of a batch.

    Attributes:
        keys: (U,) uint64, in order of first occurrence.
        inverse: (N,) int64: the position in ``keys`` of each occurrence.
        counts: (U,) uint32: occurrences of each key.
    """

    keys: Keys
    inverse: RowIds
    counts: Counts


@njit(nogil=True, cache=True, error_model="numpy")
def _distinct(
    keys: Keys,  # (N,)
    buckets: NDArray[np.int32],  # a power of two over N, all zero; position + 1 of a distinct key
    found: Keys,  # (N,) written up to U
    inverse: RowIds,  # (N,) written
    counts: Counts,  # (N,) written up to U
) -> int:
    """Fill the three outputs and return U."""
    mask = np.uint64(buckets.size - 1)
    one = np.uint64(1)
    num_found = 0
    for i in range(keys.size):
        at = np.uint64(i)
        if i + _AHEAD < keys.size:
            prefetch(buckets, mix64(keys[np.uint64(i + _AHEAD)]) & mask)
        key = keys[at]
        bucket = mix64(key) & mask
        while True:
            position = buckets[bucket]
            if position == 0:
                found[np.uint64(num_found)] = key
                counts[np.uint64(num_found)] = 1
                inverse[at] = num_found
                num_found += 1
                buckets[bucket] = num_found
                break
            where = np.uint64(position - 1)
            if found[where] == key:
                inverse[at] = position - 1
                counts[where] += np.uint32(1)
                break
            bucket = (bucket + one) & mask
    return num_found


def dedupe(keys: Keys) -> Distinct:
    """Return the distinct keys of a batch, the way back, and how often each occurs.

    Args:
        keys: (N,) uint64, any values. Not modified.

    >>> distinct = dedupe(np.array([7, 7, 9, 7], np.uint64))
    >>> distinct.keys.tolist(), distinct.inverse.tolist(), distinct.counts.tolist()
    ([7, 9], [0, 0, 1, 0], [3, 1])
    """
    count = keys.size
    assert count <= BATCH_MAX
    found = np.empty(count, np.uint64)
    inverse = np.empty(count, np.int64)
    counts = np.empty(count, np.uint32)
    # At most half full; 16 buckets serve the smallest batches.
    buckets = np.zeros(1 << max(4, (2 * count - 1).bit_length()), np.int32)
    num_found = _distinct(keys, buckets, found, inverse, counts)
    return Distinct(found[:num_found], inverse, counts[:num_found])
