"""Runs a timetable with stages that only take time, and measures how long nobody computes.

Rooms before and after: ``trainer pipeline plan --measure`` asks; the step is the real one of ``pipeline``, over real
connections of this machine, with ranks as threads.

A stage waits one tick in its forward pass, one for the gradients of its inputs and one for those of its weights, as a
device would while the processor is free. So what is measured beyond the plan is what the step itself costs, and does
not depend on how many cores there are. Owner: the calling thread.
"""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._C._distributed_c10d import HashStore
from torch.nn import functional
from typing_extensions import override

from collective.errors import GroupError
from collective.group import Group
from collective.pipeline import Pipeline
from collective.pipeline_cut import Stage
from collective.pipeline_timetable import Timetable
from collective.roll import Roll

RANKS_MAX = 32
"""Each is a thread with connections to all others."""

STEPS = 5

_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a timetable came to.

    Attributes:
        bubble_share: share of the ranks' time in which nothing is computed; median of the steps.
        step_s: seconds of a step; median.
        queue_bytes: most bytes that ever waited on a rank.
    """

    bubble_share: float
    step_s: float
    queue_bytes: int


def measure(timetable: Timetable, *, tick_s: float) -> Measured:
    """Run some steps.

    Args:
        timetable: of at most ``RANKS_MAX`` ranks.
        tick_s: seconds of a tick.

    Raises:
        GroupError: too many ranks, or no time.
        CollectiveError: a step failed.
    """
    ranks = len(timetable.columns)
    if ranks > RANKS_MAX:
        raise GroupError(f"at most {RANKS_MAX} ranks are measured, got {ranks}")
    if not 0.0 < tick_s <= 1.0:
        raise GroupError(f"a tick takes more than 0 and at most 1 s, got {tick_s:g} s")
    devices = [_Device(tick_s) for _ in range(timetable.stages)]
    stages = [_stage(index, device) for index, device in enumerate(devices)]
    store = HashStore()

    def run(rank: int) -> tuple[list[tuple[float, float]], int]:
        roll = Roll(store, rank=rank) if ranks > 1 else None
        group = Group(roll, rank=rank, ranks=range(ranks), address="127.0.0.1", timeout_s=_LIMIT_S)
        pipeline = Pipeline(stages, timetable, group, functional.mse_loss)
        own = [device for i, device in enumerate(devices) if timetable.rank_of(i) == rank]
        batch = torch.ones(timetable.micro_batches, 1)
        steps = []
        for _ in range(STEPS + 1):  # the first one warms up
            busy_s, begin_s = sum(device.busy_s for device in own), time.perf_counter()
            pipeline.step([batch.clone().requires_grad_()], batch)  # as pooled rows do
            seconds = time.perf_counter() - begin_s
            steps.append((seconds, sum(device.busy_s for device in own) - busy_s))
        pipeline.close()
        return steps[1:], pipeline.queue.peak_bytes

    with ThreadPoolExecutor(ranks) as pool:
        told = [future.result() for future in [pool.submit(run, rank) for rank in range(ranks)]]
    by_step = list(zip(*(steps for steps, _ in told), strict=True))
    seconds = [max(second for second, _ in step) for step in by_step]
    busy = [sum(busy_s for _, busy_s in step) for step in by_step]
    shares = [1.0 - b / (ranks * s) for b, s in zip(busy, seconds, strict=True)]
    return Measured(
        bubble_share=statistics.median(shares),
        step_s=statistics.median(seconds),
        queue_bytes=max(peak for _, peak in told),
    )


class _Device:
    """What a stage computes on. Owner: the thread of its rank."""

    def __init__(self, tick_s: float) -> None:
        self.busy_s = 0.0
        self._tick_s = tick_s

    def work(self) -> None:
        """Be busy for a tick."""
        begin_s = time.perf_counter()
        time.sleep(self._tick_s)
        self.busy_s += time.perf_counter() - begin_s


class _Layer(nn.Module):
    """A stage's one weight."""

    def __init__(self, device: _Device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self._device = device

    @override
    def forward(self, value: Tensor) -> Tensor:
        """Return the value times the weight, after a tick."""
        self._device.work()
        value = _Backward.apply(value, self._device)  # type: ignore[no-untyped-call]  # torch's
        weight = _Backward.apply(self.weight, self._device)  # type: ignore[no-untyped-call]
        out: Tensor = value * weight
        return out


class _Backward(torch.autograd.Function):
    """A tensor as it is, the gradient of which takes a tick."""

    @override
    @staticmethod
    def forward(ctx: Any, value: Tensor, device: _Device) -> Tensor:
        ctx.device = device
        return value.view_as(value)

    @override
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.device.work()
        return grad, None


def _stage(index: int, device: _Device) -> Stage:
    """Return a stage of one layer."""
    graph = fx.Graph()
    graph.output((graph.call_module("layer", (graph.placeholder("value"),)),))
    module = fx.GraphModule({"layer": _Layer(device)}, graph)
    return Stage(index, module, ("value",), ("value",))
