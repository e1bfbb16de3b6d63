"""Several pieces of work of a group's ranks, in turns, and what each took.

Rooms before and after: ``collective`` and ``reduce_overlap`` compare ways; turns make them meet the same load.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from collective import Group


@dataclass(frozen=True, slots=True)
class Cost:
    """What one piece of work takes.

    Attributes:
        turns: seconds of each turn, on the slowest rank.
        cpu_s: of a turn on average, of all threads, on the rank that takes most.
    """

    turns: Sequence[float]
    cpu_s: float

    @property
    def seconds(self) -> float:
        """Return those of the best turn."""
        return min(self.turns)

    def over(self, other: "Cost") -> float:
        """Return how many times as long as another this takes: the median over turns, of which each meets one load."""
        return statistics.median(a / b for a, b in zip(self.turns, other.turns, strict=True))


def measured(group: Group, works: Mapping[str, Callable[[], None]], turns: int) -> dict[str, Cost]:
    """Return what each takes, in turns, after one that does not count. Every rank calls it."""
    seconds = torch.zeros(turns, len(works), dtype=torch.float64)
    cpu_s = torch.zeros(len(works), dtype=torch.float64)
    for turn in range(-1, turns):
        for number, work in enumerate(works.values()):
            group.barrier()
            begin, begin_cpu = time.perf_counter(), time.process_time()
            work()
            if turn >= 0:
                seconds[turn, number] = time.perf_counter() - begin
                cpu_s[number] += (time.process_time() - begin_cpu) / turns
    group.maximum(seconds)
    group.maximum(cpu_s)
    return {
        name: Cost(seconds[:, number].tolist(), float(cpu_s[number]))
        for number, name in enumerate(works)
    }
