"""How small whole numbers are spread: counts of each, and from them quantiles.

Rooms before and after: ``server.members`` counts the staleness of each trainer's pushes, a trainer
that of its own.
"""

from collections.abc import Sequence
from itertools import zip_longest

LARGEST = 1023
"""Numbers above this are counted as this one in quantiles; 8 KiB of counts."""


class Spread:
    """Counts of whole numbers from 0. Owner: whoever made it.

    >>> spread = Spread()
    >>> for number in (0, 1, 1, 5):
    ...     spread.add(number)
    >>> spread.quantile(0.5), spread.quantile(0.99), spread.max, spread.count
    (1, 5, 5, 4)
    """

    def __init__(self, counts: Sequence[int] = (), largest: int = 0) -> None:
        """Begin empty, or with what ``counts`` and ``max`` of another one were."""
        self.counts = list(counts)
        self.max = largest
        self.count = sum(self.counts)

    @classmethod
    def joined(cls, spreads: Sequence["Spread"]) -> "Spread":
        """Return one that counts all the numbers of several."""
        counts = [sum(column) for column in zip_longest(*(s.counts for s in spreads), fillvalue=0)]
        return cls(counts, max((spread.max for spread in spreads), default=0))

    def add(self, number: int) -> None:
        """Count a number."""
        place = min(number, LARGEST)
        if place >= len(self.counts):
            self.counts += [0] * (place + 1 - len(self.counts))
        self.counts[place] += 1
        self.count += 1
        self.max = max(self.max, number)

    def quantile(self, share: float) -> int:
        """Return the smallest number that at least this share is not above; 0 without numbers."""
        behind = 0
        for number, count in enumerate(self.counts):
            behind += count
            if behind >= share * self.count:
                return number
        return 0
