"""The keys of a table that are pushed most, in fixed memory.

Rooms before and after: ``sparse`` shows each push; ``pserver top-keys`` asks; ``kernel.hot`` counts.

One of ``STEP`` keys of a push is looked at, from a place that a hash of the push's number chooses, so
that each key of each push has the same chance.

What always holds: 64 KiB a table. A push of 27,600 keys looks at 216 of them: under 10 us of its 1.5 ms.
Owner: the shard's owner thread.
"""

from dataclasses import dataclass

import numpy as np

from pserver.arrays import Keys, RowIds
from pserver.kernel import hot as kernel
from pserver.mix import mix64

STEP = 128


@dataclass(frozen=True, slots=True, eq=False)
class HotKeys:
    """The keys counted most often, most first.

    Attributes:
        keys: (U,) uint64.
        low: (U,) how often each was pushed, estimated; it was not counted more often.
        missed: what the counters may have missed of each: its count is at most ``low + missed``.
        seen: keys that all pushes had, estimated.
    """

    keys: Keys
    low: RowIds
    missed: int
    seen: int


class Hot:
    """Counters since the table was made or cleared."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._slots = np.zeros(kernel.SLOTS, np.uint64)
        self._counts = np.zeros(kernel.SLOTS, np.int64)
        self._state = np.zeros(3, np.int64)
        self._spare_keys = np.empty(kernel.SLOTS, np.uint64)
        self._spare_counts = np.empty(kernel.SLOTS, np.int64)
        self._num_pushes = 0

    def note(self, keys: Keys) -> None:
        """See the keys of a push, (U,) read-only."""
        self._num_pushes += 1
        start = int(mix64(np.uint64(self._num_pushes))) % STEP
        kernel.note(
            self._slots,
            self._counts,
            self._state,
            self._spare_keys,
            self._spare_counts,
            keys,
            start,
            STEP,
        )

    def top(self, count: int) -> HotKeys:
        """Return the keys counted most often, at most ``count``; of equal ones the smaller first."""
        used = np.flatnonzero(self._counts)
        order = used[np.lexsort((self._slots[used], -self._counts[used]))][:count]
        return HotKeys(
            keys=self._slots[order],
            low=self._counts[order] * STEP,
            missed=int(self._state[kernel.TAKEN]) * STEP,
            seen=int(self._state[kernel.SEEN]) * STEP,
        )
