"""Several pieces of work of a group's ranks, in turns, and what each took.

Rooms before and after: ``collective`` and ``reduce_overlap`` compare ways; turns make them meet the same load.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from collective import Group


@dataclass(frozen=True, slots=True)
class Cost:
    """What one piece of work takes.

    Attributes:
        seconds: of the best turn, on the slowest rank.
        cpu_s: of a turn on average, of all threads, on the rank that takes most.
    """

    seconds: float
    cpu_s: float


def best(group: Group, works: Mapping[str, Callable[[], None]], turns: int) -> dict[str, Cost]:
    """Return what each takes, in turns, after one that does not count. Every rank calls it."""
    costs = torch.tensor([[float("inf"), 0.0]] * len(works), dtype=torch.float64)
    for turn in range(turns + 1):
        for cost, work in zip(costs, works.values(), strict=True):
            group.barrier()
            begin, begin_cpu = time.perf_counter(), time.process_time()
            work()
            if turn:
                cost[0] = min(cost[0].item(), time.perf_counter() - begin)
                cost[1] += (time.process_time() - begin_cpu) / turns
    group.maximum(costs)
    return {name: Cost(*cost) for name, cost in zip(works, costs.tolist(), strict=True)}
