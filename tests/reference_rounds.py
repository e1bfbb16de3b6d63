"""The rules of a sync group, slowly and obviously: what a shard must hold after some commands.

One table of dim 1 with ``sgd:lr=1``, so a key's weight is minus the sum of what was applied to it.
Nothing here is shared with the product: parts are lists, sums are loops over float32 numbers.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Seat:
    """One id of the group."""

    state: str = "absent"
    process: int = 0
    first: int = 0
    last: int = 0


@dataclass
class OraclePart:
    """What came of a part: by message, its keys and gradients."""

    samples: int
    size: int
    messages: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Return whether all messages are here."""
        return len(self.messages) == self.size


class RoundsOracle:
    """A group of some trainers on one shard."""

    def __init__(self, trainers: int, divisor: str) -> None:
        """Begin before round 1, with nobody there."""
        self.divisor = divisor
        self.trainers = trainers
        self.seats = [Seat() for _ in range(trainers)]
        self.began = False
        self.applied = 0
        self.version = 0
        self.weights: dict[int, np.float32] = {}
        self.parts: dict[tuple[int, int], OraclePart] = {}

    @property
    def open(self) -> int:
        """Return the round that waits."""
        return self.applied + 1

    def waits_for(self, number: int) -> list[int]:
        """Return the ids whose parts a round waits for."""
        there = ("absent", "live", "expired")
        return [i for i, s in enumerate(self.seats) if s.state in there and s.first <= number]

    def is_whole(self, trainer: int, number: int) -> bool:
        """Return whether a trainer's part of a round is here."""
        part = self.parts.get((number, trainer))
        return part is not None and part.whole

    def join(self, trainer: int, *, is_new: bool) -> int:
        """Let a process in, and return its first round."""
        self.began = True
        seat = self.seats[trainer]
        seat.process += is_new
        seat.state = "live"
        seat.first = max(self.open, seat.last + 1)
        self._forget_unfinished(trainer)
        self.settle()
        return seat.first

    def go(self, trainer: int, state: str) -> None:
        """Let a trainer leave, or expire, or be dropped."""
        self.seats[trainer].state = state
        if state == "dropped":
            self._forget_unfinished(trainer)
        self.settle()

    def take(self, trainer: int, number: int, message: int, part: OraclePart) -> None:
        """Take one message of a part; ``part`` has all of them."""
        here = self.parts.setdefault((number, trainer), OraclePart(part.samples, part.size))
        here.messages[message] = part.messages[message]
        if here.whole:
            self.seats[trainer].last = max(self.seats[trainer].last, number)
        self.settle()

    def settle(self) -> None:
        """Apply every round that can be applied."""
        while self.began:
            waited = self.waits_for(self.open)
            here = [i for i in range(self.trainers) if (self.open, i) in self.parts]
            if not waited and not here:
                firsts = [s.first for s in self.seats if s.state in ("absent", "live", "expired")]
                firsts += [number for number, _ in self.parts]  # of those that have gone, too
                if not firsts:
                    return
                self.applied = min(firsts) - 1
                continue
            if not all(self.is_whole(i, self.open) for i in waited):
                return
            self._apply(sorted(set(waited) | {i for i in here if self.is_whole(i, self.open)}))

    def end_if_empty(self) -> None:
        """Begin a new group when everybody has gone."""
        if self.began and not any(s.state in ("absent", "live", "expired") for s in self.seats):
            self.began = False
            self.seats = [Seat() for _ in range(self.trainers)]

    def _apply(self, ids: list[int]) -> None:
        parts = [self.parts[self.open, i] for i in ids if (self.open, i) in self.parts]
        weights = [part.samples if self.divisor == "samples" else 1 for part in parts]
        weights = [w if part.samples else 0 for w, part in zip(weights, parts, strict=True)]
        divided_by = len(ids) if self.divisor == "registered" else sum(weights)
        sums: dict[int, np.float32] = {}
        alone = [w for w in weights if w]
        for weight, part in zip(weights, parts, strict=True):
            for message in sorted(part.messages):
                for key, grad in part.messages[message]:
                    if weight:
                        share = np.float32(grad)
                        if weight != 1 and not (len(alone) == 1 and weight == divided_by):
                            share *= np.float32(weight)
                        sums[key] = sums.get(key, np.float32(0.0)) + share
        for key, total in sums.items():
            if len(alone) == 1 and alone[0] == divided_by:
                step = total
            else:
                step = total / np.float32(divided_by)
            self.weights[key] = self.weights.get(key, np.float32(0.0)) - step
        self.version += any(part.size for part in parts)
        self.applied += 1
        self.parts = {k: v for k, v in self.parts.items() if k[0] > self.applied}

    def _forget_unfinished(self, trainer: int) -> None:
        self.parts = {k: v for k, v in self.parts.items() if k[1] != trainer or v.whole}
