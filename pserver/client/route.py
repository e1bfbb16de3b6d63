"""Which shard gets which keys, and how many messages that takes.

Rooms before and after: ``dedupe`` brings distinct keys; ``client`` builds one message a cargo and
puts answers back by the positions in it.

What always holds: the cargoes of all shards together name each position once; a key goes to the
shard that ``placement`` says; the order inside a shard is the order of the batch.

Cost: two passes over the keys, 8 bytes written a key; with one shard nothing is moved.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pserver.arrays import Keys, RowIds
from pserver.config import PART_BYTES_MAX
from pserver.mix import mix64


@dataclass(frozen=True, slots=True)
class Cargo:
    """What one message to one shard carries.

    Attributes:
        tables: pairs of a table's index in the batch and (V,) int64 positions in its keys.
        is_last: no further part of this batch goes to this shard.
    """

    tables: Sequence[tuple[int, RowIds]]
    is_last: bool


@njit(nogil=True, cache=True, error_model="numpy")
def _split(
    keys: Keys,  # (U,)
    shards: NDArray[np.int32],  # (1024,) the shard of each partition
    ends: RowIds,  # (S,) written: where each shard's positions end in ``order``
    order: RowIds,  # (U,) written: positions, grouped by shard
) -> None:
    """Sort the positions of the keys by shard, keeping their order (a counting sort)."""
    for shard in range(ends.size):
        ends[shard] = 0
    for i in range(keys.size):
        ends[shards[mix64(keys[i]) >> np.uint64(54)]] += 1
    start = 0
    for shard in range(ends.size):
        count = ends[shard]
        ends[shard] = start
        start += count
    for i in range(keys.size):
        shard = shards[mix64(keys[i]) >> np.uint64(54)]
        order[ends[shard]] = i
        ends[shard] += 1


class Router:
    """Splits batches by a placement. Thread-safe: what changes is replaced whole."""

    def __init__(self, shards: NDArray[np.int32], num_shards: int) -> None:
        """Take the placement.

        Args:
            shards: (1024,) int32, the shard of each partition.
            num_shards: of the cluster.
        """
        self._shards = shards
        self._num_shards = num_shards
        self._identity: RowIds = np.empty(0, np.int64)

    def split(self, keys: Keys) -> Sequence[RowIds]:
        """Return for each shard the (V,) int64 positions of its keys, in the batch's order.

        Args:
            keys: (U,) uint64.
        """
        if self._num_shards == 1:
            identity = self._identity
            if identity.size < keys.size:
                identity = np.arange(2 * keys.size)
                self._identity = identity
            return [identity[: keys.size]]
        order = np.empty(keys.size, np.int64)
        ends = np.empty(self._num_shards, np.int64)
        _split(keys, self._shards, ends, order)
        return np.split(order, ends[:-1])


def cargoes(parts: Sequence[tuple[RowIds, int]]) -> Sequence[Cargo]:
    """Pack what goes to one shard into as few messages as the limit on their size allows.

    Args:
        parts: for each table the (V,) positions of its keys, and the bytes that a key takes in
            the request or the reply, whichever is more.

    Returns:
        The messages in order; tables without keys are in none.
    """
    messages: list[list[tuple[int, RowIds]]] = []
    room = 0
    for table_index, (order, key_bytes) in enumerate(parts):
        start = 0
        while start < order.size:
            if room < key_bytes:
                messages.append([])
                room = PART_BYTES_MAX
            count = min(order.size - start, room // key_bytes)
            messages[-1].append((table_index, order[start : start + count]))
            room -= count * key_bytes
            start += count
    return [Cargo(message, is_last=i == len(messages) - 1) for i, message in enumerate(messages)]


def naming_all_last(parts: Sequence[Cargo], also: Iterable[int] = ()) -> Sequence[Cargo]:
    """Return the cargoes of a push, the last of which names every table that any of them names.

    A shard raises the version of the tables in the last part: one whose keys all went before is
    named there without keys, or its version would not rise.

    Args:
        parts: in order.
        also: tables that it names though none of their keys goes to this shard.
    """
    named = {index for cargo in parts for index, _ in cargo.tables}.union(also)
    if not parts:
        return parts
    *earlier, last = parts
    gone = named - {index for index, _ in last.tables}
    if not gone:
        return parts
    none = np.empty(0, np.int64)
    tables = [*((index, none) for index in sorted(gone)), *last.tables]
    return [*earlier, Cargo(tables, is_last=True)]
