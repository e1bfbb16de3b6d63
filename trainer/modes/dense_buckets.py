"""Dense parts that are averaged in buckets: gradients each step, or parameters every k steps.

Rooms before and after: ``loop`` uses them by way of ``dense_ranks``, which says what a step is; behind them are a
torch optimizer in each trainer, and ``collective``.

What always holds: all trainers' optimizers step by the same bits. Owner: the training thread.
"""

import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

import pserver
from collective import Group, GroupError, ParameterAverager, Reducer, Summer, plan_buckets
from collective.precision import LossScale
from trainer.dense.module import held_bytes, make_dense_optimizer
from trainer.dense.state import export_dense, load_dense
from trainer.modes.base import Mode
from trainer.modes.dense_ranks import DenseOverRanks
from trainer.strategy import Strategy


class InBuckets(DenseOverRanks):
    """What is averaged in buckets, and stepped by an optimizer of each trainer's.

    Attributes:
        summer: how tensors are summed over the trainers.
        buckets: which parameters travel together, in the order in which they leave.
    """

    def __init__(
        self,
        group: Group,
        module: nn.Module,
        *,
        mode: Mode,
        optimizer: str,
        strategy: Strategy,
        scale: LossScale | None = None,
    ) -> None:
        """Plan the buckets; see ``DenseOverRanks``.

        Args:
            group: of all trainers.
            module: the dense part.
            mode: has this step's rows.
            optimizer: torch's, see ``make_dense_optimizer``.
            strategy: the knobs of ``dense`` ``allreduce``.
            scale: of losses.

        Raises:
            pserver.ConfigError: the optimizer is unknown, or the trainers cannot be summed over so.
        """
        super().__init__(group, module, mode=mode, check_every=strategy.check_every, scale=scale)
        self._optimizer = make_dense_optimizer(optimizer, self._parameters)
        is_local = strategy.local_sgd_steps is not None
        try:
            self.summer = Summer(
                group,
                strategy.allreduce,
                inter_nranks=strategy.inter_nranks,
                wire=torch.bfloat16 if strategy.wire == "bfloat16" else None,
            )
        except GroupError as error:
            raise pserver.ConfigError(f"dense allreduce: {error}") from error
        self.buckets = plan_buckets(
            module.named_parameters(),
            fuse_mb=strategy.fuse_grad_mb,
            last_mb=strategy.fuse_grad_mb if is_local else strategy.last_group_mb,
        )

    @override
    def held_bytes(self) -> dict[str, int]:
        return held_bytes(self._parameters, self._optimizer)

    @override
    def gather_state(self) -> dict[str, Tensor]:
        return export_dense(self.trained, self._optimizer)  # every trainer has all of it

    @override
    def _take_state(self, tensors: Mapping[str, Tensor]) -> None:
        load_dense(self.trained, self._optimizer, tensors)


class AveragedGradients(InBuckets):
    """One average of gradients a step, or of those that ``accumulate`` steps add up to."""

    def __init__(
        self,
        group: Group,
        module: nn.Module,
        *,
        mode: Mode,
        optimizer: str,
        strategy: Strategy,
        scale: LossScale | None = None,
    ) -> None:
        """Hook the parameters; see ``InBuckets``."""
        super().__init__(
            group, module, mode=mode, optimizer=optimizer, strategy=strategy, scale=scale
        )
        self._reducer = Reducer(self.summer, self.buckets)
        self._accumulate = strategy.accumulate
        self._takes_mean = strategy.accumulate_avg
        self._steps = self._batches = 0  # since the last average

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self._steps:
            super().zero_grad(set_to_none=set_to_none)

    @override
    def begin(self, samples: int) -> None:
        if not self._steps:
            self._reducer.begin(0.0, backwards=self._accumulate)
            self._samples = 0.0
            self._batches = 0
        self._steps += 1
        self._batches += samples > 0
        self._samples += samples
        share = 1.0 / max(1, self._batches) if self._takes_mean else 1.0
        self._reducer.weigh(self._samples, share=share)

    @override
    def average(self, *, loss: float = math.nan) -> float | None:
        self._loss = loss
        if self._steps < self._accumulate:
            return None
        self._wait()
        return self._settle(self._parameters)

    @override
    def step(self) -> None:
        if self._steps >= self._accumulate:
            self._step()

    @override
    def _take_part(self) -> None:
        if self._steps:  # fewer than accumulate were left
            self._wait()
            self._step()
        self._samples = 0.0
        while self._reducer.without_batch():
            self._settle(self._parameters)
            self._step()
        self._reducer.close()

    def _wait(self) -> None:
        begin_s = time.perf_counter()
        self._reducer.wait()
        self.waited_s += time.perf_counter() - begin_s

    def _step(self) -> None:
        self._steps = 0
        if self.is_made:
            self._optimizer.step()
        self._averaged()


class AveragedParameters(InBuckets):
    """Local SGD: own steps, and an average of parameters every ``local_sgd_steps`` of them."""

    def __init__(
        self, group: Group, module: nn.Module, *, mode: Mode, optimizer: str, strategy: Strategy
    ) -> None:
        """Prepare; see ``InBuckets``."""
        super().__init__(group, module, mode=mode, optimizer=optimizer, strategy=strategy)
        assert strategy.local_sgd_steps is not None, "it is what this class is chosen by"
        self._averager = ParameterAverager(
            self.summer, self.buckets, every=strategy.local_sgd_steps
        )

    @override
    def begin(self, samples: int) -> None:
        self._samples = float(samples)

    @override
    def average(self, *, loss: float = math.nan) -> float | None:
        self._loss = loss
        return self._mode.clip(self._parameters)

    @override
    def step(self) -> None:
        self._optimizer.step()
        begin_s = time.perf_counter()
        is_averaged = self._averager.step(self._samples)
        self.waited_s += time.perf_counter() - begin_s
        if is_averaged:
            self._averaged()

    @override
    def _take_part(self) -> None:
        while self._averager.without_batch():
            self._averaged()


def make_in_buckets(
    group: Group,
    module: nn.Module,
    *,
    mode: Mode,
    optimizer: str,
    strategy: Strategy,
    scale: LossScale | None = None,
) -> InBuckets:
    """Return what averages gradients, or parameters, as the strategy says; see ``InBuckets``."""
    if strategy.local_sgd_steps is not None:
        return AveragedParameters(group, module, mode=mode, optimizer=optimizer, strategy=strategy)
    return AveragedGradients(
        group, module, mode=mode, optimizer=optimizer, strategy=strategy, scale=scale
    )
