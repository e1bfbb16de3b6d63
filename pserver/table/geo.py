"""The change log of a table: which keys were written to, by whom, in the order of the writes.

Rooms before and after: ``server.geo`` notes every write to a table whose log somebody asked for, and
answers trainers that ask what others changed.

A trainer's mark is a position in the log. The log holds nothing of its readers: reading changes
nothing, so an answer may be lost, come twice or late, and a reader that is gone leaves nothing
behind. A reader that fell behind the oldest entry is told so, and takes every row for changed.

What always holds:
    * The last ``capacity`` keys written are in it, whatever they were before; its memory is bounded.
    * Between two positions each key of another writer is named, and none of the reader's own unless
      another wrote to it too.
Owner: the shard's owner thread.

Cost: 16 bytes and 3 ns a key written; a reply goes through ``REPLY_KEYS_MAX`` entries, 1 ms.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys, Words
from pserver.kernel.dedupe import dedupe
from pserver.mix import mix64
from pserver.table.storage import Mapping

LOG_KEYS_MAX: Final = 1 << 22
"""Keys that a log remembers, 16 bytes each: 64 MiB, touched as it fills. With 27,600 distinct keys a
batch and eight trainers that share half of them, about 40 batches of each."""

REPLY_KEYS_MAX: Final = 1 << 16
"""Entries that one answer goes through: 512 KiB of keys at most, and 1 ms of the owner thread."""


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """What others wrote to since a mark.

    Attributes:
        keys: (V,) uint64, distinct, in the order of their first write; empty where ``is_all``.
        position: the next mark.
        is_all: the log does not reach back to the mark.
        more: further entries follow.
    """

    keys: Keys
    position: int
    is_all: bool
    more: bool


class ChangeLog:
    """A ring of keys with their writers. Positions count keys, from 1.

    Attributes:
        position: where the next key goes.
    """

    def __init__(self, *, table: str, capacity: int = LOG_KEYS_MAX, position: int = 1) -> None:
        """Begin empty.

        Args:
            table: named in an error.
            capacity: keys that are remembered.
            position: where the first key goes: where a log ended that is not here any more.

        Raises:
            ConfigError: the system refused the address space.
        """
        what = f"table {table!r}: change log"
        self._mappings = [Mapping(capacity, np.uint64, what=what) for _ in range(2)]
        self._keys: Keys = self._mappings[0].array
        self._writers: Words = self._mappings[1].array
        self._capacity = capacity
        self._begin = self.position = position

    def note(self, keys: Keys, writer: bytes) -> None:
        """Append the keys of one write.

        Args:
            keys: (U,) uint64, repeats allowed.
            writer: the trainer, 16 bytes.
        """
        kept = keys[-self._capacity :]
        start = (self.position + keys.size - kept.size) % self._capacity
        first = min(kept.size, self._capacity - start)
        for begin, part in ((start, kept[:first]), (0, kept[first:])):
            self._keys[begin : begin + part.size] = part
            self._writers[begin : begin + part.size] = _number(writer)
        self.position += keys.size

    def changed(self, since: int, reader: bytes) -> Changed:
        """Return what others wrote to since a mark, or its first part; changes nothing.

        Args:
            since: a mark, or 0 for none.
            reader: whose own writes are left out.
        """
        oldest = max(self._begin, self.position - self._capacity)
        if not oldest <= since <= self.position:
            return Changed(np.empty(0, np.uint64), self.position, is_all=True, more=False)
        end = min(self.position, since + REPLY_KEYS_MAX)
        others = self._range(self._writers, since, end) != _number(reader)
        keys = dedupe(self._range(self._keys, since, end)[others]).keys
        return Changed(keys, end, is_all=False, more=end < self.position)

    def _range(self, ring: NDArray[np.uint64], begin: int, end: int) -> NDArray[np.uint64]:
        """Return entries in their order."""
        return ring.take(np.arange(begin, end), mode="wrap")


def _number(trainer: bytes) -> np.uint64:
    """Return what stands for a trainer: a hash of its name."""
    low, high = np.frombuffer(trainer, np.uint64)
    return np.uint64(mix64(low) ^ high)
