"""The oracle of what goes: ages, counts of uses, scores, limits and days, one key after the other.

Imported by nothing but tests. ``Keeper`` stands beside a ``reference.Table`` or a
``reference_ctr.CtrTable`` and says which of its keys go. Ranks are tuples of Python's own integers; the hash is the one of ``reference``.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tests.reference import Table, mix64
from tests.reference_ctr import CtrTable

SAMPLE = 2048

Done = TypeVar("Done")


@dataclass
class Keeper:
    """Who goes from a small table, at most ``SAMPLE`` rows, which is ranked whole.

    Attributes:
        table: whose keys they are.
        evict: the rule's text.
        ttl_days: as of the spec.
    """

    table: Table | CtrTable
    evict: str = "none"
    ttl_days: int = 0
    clock: int = 0
    day: int = 0
    evicted: int = 0
    written: dict[int, int] = field(default_factory=dict)  # key to the clock of its last write
    uses: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # key to count, and when that was
    seen: dict[int, int] = field(
        default_factory=dict
    )  # key to the first shrink after its last write

    @property
    def half_life(self) -> int:
        """Return the rule's half life in writes."""
        found = re.search(r"half_life=(\d+)", self.evict)
        return int(found[1]) if found else 10_000

    @property
    def rows_max(self) -> int:
        """Return the limit."""
        found = re.search(r"rows=(\d+)", self.evict)
        return int(found[1]) if found else 2**31

    def command(self, keys: Iterable[int], work: Callable[[], Done], *, writes: bool) -> Done:
        """Let a command make or write rows, then let others go; return what it returned.

        Keys that get no row count for nothing.
        """
        before = set(self.table.rows)
        done = work()
        named = set(keys) & set(self.table.rows)
        made = named - before
        for key in made:
            self.written[key], self.uses[key], self.seen[key] = self.clock, (0, self.clock), 0
        if writes:
            for key in named:
                self.written[key], self.seen[key] = self.clock, 0
                self.uses[key] = (self.uses_now(key) + 1, self.clock)
        if made or (writes and named):
            self.make_room(named)
            self.clock += 1
        return done

    def uses_now(self, key: int) -> int:
        """Return a count as it has faded: halved at each multiple of the half life passed since."""
        count, when = self.uses[key]
        return count >> min(31, self.clock // self.half_life - when // self.half_life)

    def rank(self, key: int) -> tuple[float, int, int]:
        """Return what a key is worth; the lowest goes first."""
        if self.evict.startswith("score"):
            assert isinstance(self.table, CtrTable)
            words = self.table.rows[key].words
            score = float(np.float32(self.table.score(words["show"], words["click"])))
            return score, self.written[key], mix64(key) & 0xFFF
        if self.evict.startswith("lfu"):
            return self.uses_now(key), self.written[key], mix64(key) & 0xFFFFF
        return 0, self.written[key], mix64(key) & 0xFFFFFFFF

    def make_room(self, staying: set[int]) -> None:
        """Let the lowest keys go if there are too many."""
        if self.evict == "none" or len(self.table.rows) <= self.rows_max:
            return
        goal = self.rows_max - min(self.rows_max // 64, 256)
        movable = sorted((key for key in self.table.rows if key not in staying), key=self.rank)
        gone = movable[: len(self.table.rows) - goal]
        self.evicted += len(gone)
        self.erase(gone)

    def shrink(self, day: int) -> int:
        """Let a day pass, and return how many keys went; 0 for a day that is past."""
        if day <= self.day:
            return 0
        self.day = day
        for key in self.table.rows:
            self.seen[key] = self.seen[key] or day
        gone = [key for key in self.table.rows if day - self.seen[key] > self.ttl_days]
        self.erase(gone)
        return len(gone)

    def erase(self, keys: Iterable[int]) -> None:
        """Forget keys."""
        gone = list(keys)
        self.table.erase(gone)
        for key in gone:
            for known in (self.written, self.uses, self.seen):
                known.pop(key, None)
