"""All-reduce: ring, hierarchical and torch's gloo in one run; fused sums; overlap; a slow link between nodes.

Ranks are processes of this machine over loopback. Ways take turns, since others load the machine: of bandwidths the best
turn counts, of ratios the median over turns; where others load it all the time, CPU time still tells what a way costs.
Bus bandwidth is 2 (W - 1) / W · bytes / seconds: what each rank's link carries each way.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench import links, reduce_overlap
from bench.ranks import free_port, run_ranks
from bench.turns import measured
from collective import Group, Summer
from collective.algorithm import Way

WORLDS = (2, 3, 4)
SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)

_PROMISED_FROM = 1 << 20
"""Bytes from which on the ring is held against gloo: below, Python's calls are what takes the time."""

_TURNS, _TURNS_LARGE = 30, 8
_LARGE = 64 << 20
_SMALL_TENSORS, _SMALL_FLOATS = 200, 1000
_RANKS_A_NODE = 2
_SLOW_BYTES = 2 << 20


def run() -> dict[str, Any]:
    """Return bandwidths by world and size, and the ratios that are promised."""
    load = os.getloadavg()[0]
    here: list[list[str]] = [[] for _ in range(max(WORLDS))]
    found = run_ranks("measure_here", inside=here, master=f"127.0.0.1:{free_port()}")
    try:
        found.update(_over_link("measure_slow", links.RATE, ranks_a_node=_RANKS_A_NODE))
        found.update(_over_link("measure_overlap", reduce_overlap.LINK_RATE, ranks_a_node=1))
    except links.RefusedError as refused:
        found["slow_link"] = f"left out: no namespaces or token buckets here ({refused})"
    found["load_average"] = {"before": load, "after": os.getloadavg()[0]}
    return found


def _over_link(work: str, rate: str, *, ranks_a_node: int) -> dict[str, Any]:
    """Run a function in the ranks of two nodes."""
    with links.nodes(rate) as nodes:
        inside = [node for node in nodes for _ in range(ranks_a_node)]
        return run_ranks(work, inside=inside, master=f"{links.MASTER_HOST}:{free_port()}")


def measure_here(group: Group) -> dict[str, Any]:
    """Return what one machine can show. Every rank calls it."""
    found: dict[str, Any] = {"bus_bytes_per_s": {}}
    ratios: dict[int, list[_Ratio]] = {size: [] for size in SIZES}
    for world in WORLDS:
        part = group.split(_first(world, group), name=f"world-{world}")
        if group.rank < world:
            found["bus_bytes_per_s"][f"{world}_ranks"] = _bandwidths(part, ratios)
        group.barrier()
    for size in SIZES:
        if size >= _PROMISED_FROM and group.rank < min(WORLDS):
            found[f"ring_over_gloo_{size >> 20}mb"] = min(r.seconds for r in ratios[size])
            found[f"ring_over_gloo_cpu_{size >> 20}mb"] = min(r.cpu_s for r in ratios[size])
    pair = group.split(_first(2, group), name="pair")
    if group.rank < 2:
        found["fused_over_unfused"] = _fused(pair)
        found.update(reduce_overlap.over_loopback(pair))
    return found


def measure_slow(group: Group) -> dict[str, Any]:
    """Return the times of flat sums and of one by levels, over a slow link. Every rank calls it."""
    tensor = torch.zeros(_SLOW_BYTES // 4)
    costs = measured(
        group,
        {
            "torch": _summing(Summer(group, "torch"), tensor),
            "ring": _summing(Summer(group, "ring"), tensor),
            "hierarchical": _summing(
                Summer(group, "hierarchical", inter_nranks=_RANKS_A_NODE), tensor
            ),
        },
        3,
    )
    seconds = {way: cost.seconds for way, cost in costs.items()}
    flat = min(seconds["torch"], seconds["ring"])
    return {
        f"slow_link_{links.RATE}_{_SLOW_BYTES >> 20}mb_seconds": seconds,
        "hierarchical_over_flat_slow_link": flat / seconds["hierarchical"],
    }


def measure_overlap(group: Group) -> dict[str, Any]:
    """Return what averaging while backward runs hides over a slow link. Every rank calls it."""
    return reduce_overlap.over_link(group)


def _first(count: int, group: Group) -> list[list[int]]:
    """Return the parts of a group in which its first ranks are together and the others alone."""
    return [list(range(count)), *([rank] for rank in range(count, group.world_size))]


@dataclass(frozen=True, slots=True)
class _Ratio:
    """Ring against gloo in one world and size: above 1 the ring takes less."""

    seconds: float
    cpu_s: float


def _bandwidths(group: Group, ratios: dict[int, list[_Ratio]]) -> dict[str, Any]:
    """Return the bus bandwidth of each size and way; add to the ratios of ring and gloo."""
    ways: list[Way] = ["torch", "ring"]
    if group.world_size % _RANKS_A_NODE == 0 and group.world_size > _RANKS_A_NODE:
        ways.append("hierarchical")
    summers = {
        way: Summer(group, way, inter_nranks=_RANKS_A_NODE if way == "hierarchical" else None)
        for way in ways
    }
    found: dict[str, Any] = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        works = {str(way): _summing(summer, tensor) for way, summer in summers.items()}
        costs = measured(group, works, _TURNS if size < _LARGE else _TURNS_LARGE)
        carried = 2 * (group.world_size - 1) / group.world_size * size
        found[f"{size >> 10}_kib"] = {way: carried / cost.seconds for way, cost in costs.items()}
        gloo, ring = costs["torch"], costs["ring"]
        ratios[size].append(_Ratio(gloo.over(ring), gloo.cpu_s / ring.cpu_s))
    return found


def _summing(summer: Summer, tensor: torch.Tensor) -> Callable[[], None]:
    return lambda: summer.sum(tensor, what="bench")


def _fused(group: Group) -> float:
    """Return how many times faster small tensors are summed as one."""
    summer = Summer(group, "ring")
    small = [torch.zeros(_SMALL_FLOATS) for _ in range(_SMALL_TENSORS)]

    def one_by_one() -> None:
        for tensor in small:
            summer.sum(tensor, what="bench")

    def fused() -> None:
        joined = torch.cat(small)
        summer.sum(joined, what="bench")
        parts = torch.split(joined, _SMALL_FLOATS)
        for tensor, part in zip(small, parts, strict=True):
            tensor.copy_(part)

    costs = measured(group, {"one_by_one": one_by_one, "fused": fused}, _TURNS_LARGE)
    return costs["one_by_one"].over(costs["fused"])
