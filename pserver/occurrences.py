"""How the keys of a push occurred: how often, how often shown and clicked, in which slot.

Rooms before and after: ``client`` sums what a batch says of each key, ``wire`` carries what was given,
and ``table`` counts with it: rows of the ctr accessor, and keys that are not admitted yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Counts, Floats, RowIds, Uint32s

SHOW_MAX = 1e12
"""Most shows, and most clicks, that one push may say of a key."""


def _none(dtype: type[np.generic]) -> NDArray[Any]:
    """Return an empty array that nobody can write to."""
    array: NDArray[Any] = np.empty(0, dtype)
    array.flags.writeable = False
    return array


NO_COUNTS: Counts = _none(np.uint32)
NO_FLOATS: Floats = _none(np.float32)
NO_SLOTS: Uint32s = _none(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Occurrences:
    """What a push says of its U keys beside their gradients; what is not said is empty.

    Attributes:
        counts: (U,) or (0,) uint32 occurrences of each key in the batch; not given: 1 each.
        shows: (U,) or (0,) float32; not given: the counts.
        clicks: (U,) or (0,) float32; not given: 0.
        slots: (U,) or (0,) uint32; not given: a row keeps the slot that it has.
    """

    counts: Counts = field(default_factory=lambda: NO_COUNTS)
    shows: Floats = field(default_factory=lambda: NO_FLOATS)
    clicks: Floats = field(default_factory=lambda: NO_FLOATS)
    slots: Uint32s = field(default_factory=lambda: NO_SLOTS)

    @property
    def num_said(self) -> int:
        """Return how many things are said of each key."""
        return sum(
            map(bool, (self.counts.size, self.shows.size, self.clicks.size, self.slots.size))
        )

    def counted(self, num_keys: int) -> Counts:
        """Return the occurrences of each key, read-only."""
        counts = self.counts if self.counts.size else np.ones(num_keys, np.uint32)
        return _read_only(counts)

    def shown(self, num_keys: int) -> Floats:
        """Return the shows of each key, read-only."""
        shows = self.shows if self.shows.size else self.counted(num_keys).astype(np.float32)
        return _read_only(shows)

    def clicked(self, num_keys: int) -> Floats:
        """Return the clicks of each key, read-only."""
        clicks = self.clicks if self.clicks.size else np.zeros(num_keys, np.float32)
        return _read_only(clicks)

    def take(self, order: RowIds) -> "Occurrences":
        """Return what is said of some of the keys, by their positions."""

        def some(array: NDArray[Any]) -> NDArray[Any]:
            return _read_only(array[order]) if array.size else array

        return Occurrences(some(self.counts), some(self.shows), some(self.clicks), some(self.slots))

    @staticmethod
    def joined(parts: Sequence[tuple["Occurrences", int]]) -> "Occurrences":
        """Return what several batches say of their keys, one batch after the other.

        Where one of them does not say what another does, what that stands for is written out; slots are
        kept only if all say them.

        Args:
            parts: what each says, and the number of its keys.
        """
        has_counts, has_shows, has_clicks = (
            any(getattr(said, what).size for said, _ in parts)
            for what in ("counts", "shows", "clicks")
        )
        has_slots = all(said.slots.size or not count for said, count in parts)
        return Occurrences(
            _concatenated([said.counted(count) for said, count in parts if has_counts], NO_COUNTS),
            _concatenated([said.shown(count) for said, count in parts if has_shows], NO_FLOATS),
            _concatenated([said.clicked(count) for said, count in parts if has_clicks], NO_FLOATS),
            _concatenated([said.slots for said, _ in parts if has_slots], NO_SLOTS),
        )

    def summed(self, inverse: RowIds, num_distinct: int) -> "Occurrences":
        """Return what is said of distinct keys: sums, and of slots the last one.

        Args:
            inverse: (U,) which distinct key each key is.
            num_distinct: how many there are.
        """
        weights = self.counts if self.counts.size else None
        sums = np.bincount(inverse, weights, minlength=num_distinct)
        counts = np.minimum(sums, np.iinfo(np.uint32).max).astype(np.uint32)
        slots = self.slots
        if slots.size:
            last = np.zeros(num_distinct, np.uint32)
            last[inverse] = slots
            slots = last
        return Occurrences(
            _read_only(counts),
            _summed(self.shows, inverse, num_distinct),
            _summed(self.clicks, inverse, num_distinct),
            _read_only(slots),
        )


def _concatenated(arrays: list[NDArray[Any]], none: NDArray[Any]) -> NDArray[Any]:
    """Return arrays as one, read-only."""
    return _read_only(np.concatenate([none, *arrays]))


NO_OCCURRENCES = Occurrences()
"""A push that says nothing: each key occurred and was shown once, and not clicked."""


def _summed(values: Floats, inverse: RowIds, num_distinct: int) -> Floats:
    """Return sums in float64, rounded once; nothing of nothing."""
    if not values.size:
        return values
    return _read_only(np.bincount(inverse, values, minlength=num_distinct).astype(np.float32))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written to, so that kernels have one kind of input."""
    view = array.view()
    view.flags.writeable = False
    return view
