"""Which shard owns a key: the one rule of the system, imported by both sides.

Rooms before and after: ``client.route`` splits a batch by it; the server refuses keys that are
not its own by it; the index inside a shard uses other bits of the same hash.

What always holds: ``partition_of`` never changes, being part of the checkpoint format. The
partitions lie on the shards in contiguous runs whose lengths differ by at most one.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pserver.arrays import Keys
from pserver.config import PART_BYTES_MAX
from pserver.errors import ConfigError
from pserver.mix import mix64

NUM_PARTITIONS = 1024
"""Fixed parts of the key space: the unit of placement, checkpoint order and index growth."""

SHARDS_MAX = NUM_PARTITIONS
"""A shard owns at least one partition."""

DENSE_PART = PART_BYTES_MAX // 4
"""Floats of a part of a dense slice; both sides cut it so, and each part has its own state."""

PLACEMENT_VERSION = 1
"""Raised when partitions move between shards."""


@njit(nogil=True, cache=True, error_model="numpy")
def _partitions(keys: Keys, out: NDArray[np.int32]) -> None:
    for i in range(keys.size):
        out[i] = np.int32(mix64(keys[i]) >> np.uint64(54))


def partition_of(keys: Keys) -> NDArray[np.int32]:
    """Return the partition of each key: the top ten bits of its hash.

    Args:
        keys: (N,) uint64, any order, repeats allowed. Not modified.

    Returns:
        (N,) int32, each in [0, 1024).

    >>> partition_of(np.array([0, 1, 2**64 - 1], np.uint64)).tolist()
    [0, 346, 723]
    """
    out = np.empty(keys.size, np.int32)
    _partitions(keys, out)
    return out


def shard_of_partition(num_shards: int) -> NDArray[np.int32]:
    """Return the shard of each partition under the contiguous placement.

    Args:
        num_shards: 1 to SHARDS_MAX.

    Returns:
        (1024,) int32, ascending.

    Raises:
        ConfigError: ``num_shards`` is out of range.

    >>> np.bincount(shard_of_partition(3)).tolist()
    [342, 341, 341]
    """
    if not 1 <= num_shards <= SHARDS_MAX:
        raise ConfigError(f"num_shards must be in [1, {SHARDS_MAX}], got {num_shards}")
    partitions = np.arange(NUM_PARTITIONS, dtype=np.int64)
    return (partitions * num_shards // NUM_PARTITIONS).astype(np.int32)


def shard_of(keys: Keys, num_shards: int) -> NDArray[np.int32]:
    """Return the index of the shard that owns each key.

    Args:
        keys: (N,) uint64, any order, repeats allowed. Not modified.
        num_shards: 1 to SHARDS_MAX.

    Returns:
        (N,) int32, each in [0, num_shards).

    Raises:
        ConfigError: ``num_shards`` is out of range.
    """
    return shard_of_partition(num_shards)[partition_of(keys)]


def partitions_of_shard(shard: int, num_shards: int) -> tuple[int, int]:
    """Return the first partition of a shard, and the one behind its last.

    >>> [partitions_of_shard(shard, 3) for shard in range(3)]
    [(0, 342), (342, 683), (683, 1024)]
    """
    shards = shard_of_partition(num_shards)
    return int(np.searchsorted(shards, shard)), int(np.searchsorted(shards, shard, side="right"))


def slice_of_shard(length: int, shard: int, num_shards: int) -> tuple[int, int]:
    """Return where the slice of a dense table on a shard begins, and where it ends.

    >>> [slice_of_shard(2, shard, 3) for shard in range(3)]
    [(0, 0), (0, 1), (1, 2)]
    """
    return length * shard // num_shards, length * (shard + 1) // num_shards


def parts_of_slice(size: int) -> list[tuple[int, int]]:
    """Return begin and end of each part of a slice: one message each. An empty slice has one.

    >>> parts_of_slice(DENSE_PART + 1)
    [(0, 1048576), (1048576, 1048577)]
    """
    begins = range(0, max(size, 1), DENSE_PART)
    return [(begin, min(begin + DENSE_PART, size)) for begin in begins]


@njit(nogil=True, cache=True, error_model="numpy")
def first_foreign(keys: Keys, begin: int, end: int) -> int:
    """Return the position of the first key whose partition is not in [begin, end), or -1."""
    if begin == 0 and end == NUM_PARTITIONS:  # a cluster of one shard
        return -1
    for i in range(keys.size):
        partition = np.int64(mix64(keys[i]) >> np.uint64(54))
        if partition < begin or partition >= end:
            return i
    return -1
