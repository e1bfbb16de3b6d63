"""The dense part in every trainer, averaged over all: gradients each step, or parameters every k steps.

Rooms before and after: ``loop`` calls ``begin``, ``average`` and ``step`` around a backward pass, and
``finish`` at the end; behind it are a torch optimizer and ``collective``. Rows go through the ``Mode``.

The order of a step, in every mode: rows of step t are there; forward; backward, in which buckets of
gradients leave; the average of t; the dense step t; the push of t leaves. A push is sent by a thread of the
client's, so it needs nothing more of this trainer. So the average of t waits only for pushes before t, and
round t of the servers only for averages up to t: neither waits for the other in a circle. At its end a
trainer leaves the servers' group first, and then takes part in averages until all are at their end.

What always holds: after each average all trainers have the same bits, so that every optimizer steps alike;
a hash of the parameters is compared every ``check_every`` averages and at the end. Owner: the training thread.
"""

import math
import time
from abc import ABC, abstractmethod

import torch
from torch import nn
from typing_extensions import override

import pserver
from collective import (
    Group,
    GroupError,
    ParameterAverager,
    Reducer,
    Summer,
    check_same,
    gather,
    give_from_first,
    plan_buckets,
)
from trainer.dense import make_dense_optimizer
from trainer.modes.base import Mode
from trainer.strategy import Strategy


class DenseOverRanks(ABC):
    """A module's parameters, stepped alike in every trainer. Used like an optimizer.

    Attributes:
        group: of the trainers; a trainer's rank is its id.
        summer: how tensors are summed over them.
        buckets: which parameters travel together, in the order in which they leave.
        waited_s: seconds that the training thread waited for averages.
    """

    def __init__(
        self, group: Group, module: nn.Module, *, mode: Mode, optimizer: str, strategy: Strategy
    ) -> None:
        """Give every trainer the parameters of trainer 0. Every trainer makes one.

        Args:
            group: of all trainers.
            module: the dense part.
            mode: has this step's rows, for the norm.
            optimizer: torch's, see ``make_dense_optimizer``.
            strategy: the knobs of ``dense`` ``allreduce``.

        Raises:
            pserver.ConfigError: the optimizer is unknown, or the module has no parameters.
            collective.DivergedError: the modules of the trainers differ in names or shapes.
            collective.MissingRanksError: a trainer did not come.
        """
        self.group = group
        self._mode = mode
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        if not self._parameters:
            raise pserver.ConfigError("dense allreduce: the dense part has no parameters")
        self._optimizer = make_dense_optimizer(optimizer, self._parameters)
        self._state = [*module.named_parameters(), *module.named_buffers()]
        give_from_first(self._state, group)
        check_same(self._state, group, what="first values")
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
        self._check_every = strategy.check_every
        self._averages = 0
        self._samples = 0.0  # what this trainer adds to the average that comes next
        self._loss = math.nan
        self._loss_spread: float | None = None
        self.waited_s = 0.0

    # --- a step, in this order ----------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Forget the gradients of the step before."""
        self._optimizer.zero_grad(set_to_none=set_to_none)

    @abstractmethod
    def begin(self, samples: int) -> None:
        """Begin a step, before its backward pass; with 0 samples there is none."""

    @abstractmethod
    def average(self, *, loss: float = math.nan) -> float | None:
        """Average over the trainers what is due, cut it to the limit of the norm, and return the norm.

        Args:
            loss: of the batch, to be compared with the others'.

        Returns:
            The norm before cutting; None where gradients are still being added up.

        Raises:
            collective.MissingRanksError: a trainer did not come.
        """

    @abstractmethod
    def step(self) -> None:
        """Step the parameters.

        Raises:
            collective.DivergedError: parameters were compared, and differ.
        """

    # --- the end ------------------------------------------------------------------------------

    def finish(self) -> None:
        """End well: take part until every trainer is at its end, and compare the parameters.

        This trainer has left the servers' group before, so that nobody waits for its pushes.

        Raises:
            collective.MissingRanksError: a trainer did not come.
            collective.DivergedError: parameters differ.
        """
        self._loss = math.nan
        self._take_part()
        if self._check_every:
            check_same(self._state, self.group, what=f"the end, after {self._averages} averages")

    @abstractmethod
    def _take_part(self) -> None:
        """Take part in the averages of the others, without a batch."""

    def facts(self, *, seconds: float) -> dict[str, float]:
        """Return the watch list.

        Args:
            seconds: of training.
        """
        facts = {
            "averages": float(self._averages),
            "allreduce_wait_share": self.waited_s / seconds if seconds else 0.0,
        }
        if self._loss_spread is not None:
            facts["loss_spread"] = self._loss_spread
        return facts

    # --- for subclasses -----------------------------------------------------------------------

    def _averaged(self) -> None:
        """Count an average; compare parameters and losses if that is due."""
        self._averages += 1
        if not self._check_every or self._averages % self._check_every:
            return
        what = f"average {self._averages}"
        check_same(self._state, self.group, what=what)
        losses = gather(torch.tensor([self._loss], dtype=torch.float64), self.group, what=what)
        known = losses[losses.isfinite()]
        if known.numel():
            self._loss_spread = float(known.max() - known.min())

    def _mean_over_ranks(self, squares: float) -> float:
        """Return the mean of the trainers' squared norms, by samples: the same bits for all.

        Averaged gradients are the same in each; of the rows' it is no less than the squared norm of
        their average, which nobody has in one place.
        """
        weighed = torch.zeros(2, dtype=torch.float64)
        if self._samples:
            weighed = torch.tensor([self._samples * squares, self._samples], dtype=torch.float64)
        self.group.all_reduce(weighed, what="norm of the gradients")
        return float(weighed[0] / weighed[1]) if weighed[1] else 0.0


class AveragedGradients(DenseOverRanks):
    """One average of gradients a step, or of those that ``accumulate`` steps add up to."""

    def __init__(
        self, group: Group, module: nn.Module, *, mode: Mode, optimizer: str, strategy: Strategy
    ) -> None:
        """Hook the parameters; see ``DenseOverRanks``."""
        super().__init__(group, module, mode=mode, optimizer=optimizer, strategy=strategy)
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
        return self._clip()

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
            self._clip()
            self._step()
        self._reducer.close()

    def _wait(self) -> None:
        begin_s = time.perf_counter()
        self._reducer.wait()
        self.waited_s += time.perf_counter() - begin_s

    def _clip(self) -> float:
        return self._mode.clip(self._parameters, over_ranks=self._mean_over_ranks)

    def _step(self) -> None:
        self._steps = 0
        self._optimizer.step()
        self._averaged()


class AveragedParameters(DenseOverRanks):
    """Local SGD: own steps, and an average of parameters every ``local_sgd_steps`` of them."""

    def __init__(
        self, group: Group, module: nn.Module, *, mode: Mode, optimizer: str, strategy: Strategy
    ) -> None:
        """Prepare; see ``DenseOverRanks``."""
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


def make_dense_over_ranks(
    group: Group, module: nn.Module, *, mode: Mode, optimizer: str, strategy: Strategy
) -> DenseOverRanks:
    """Return what averages gradients, or parameters, as the strategy says; see ``DenseOverRanks``."""
    kind = AveragedGradients if strategy.local_sgd_steps is None else AveragedParameters
    return kind(group, module, mode=mode, optimizer=optimizer, strategy=strategy)
