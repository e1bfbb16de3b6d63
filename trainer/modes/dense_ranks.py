"""The dense part in every trainer, averaged over all: what a step is, and how a run ends.

Rooms before and after: ``loop`` calls ``begin``, ``average`` and ``step`` around a backward pass, and
``finish`` at the end; ``dense_buckets``, ``dense_sharded`` and ``dense_fully_sharded`` are the ways to average. Rows go
through the ``Mode``.

The order of a step, in every mode: rows of step t are there; forward; backward, in which buckets of
gradients leave; the average of t; the dense step t; the push of t leaves. A push is sent by a thread of the
client's, so it needs nothing more of this trainer. So the average of t waits only for pushes before t, and
round t of the servers only for averages up to t: neither waits for the other in a circle. At its end a
trainer leaves the servers' group first, and then takes part in averages until all are at their end.

What always holds: after each average all trainers have the same bits, so that every optimizer steps alike;
a hash of the parameters is compared every ``check_every`` averages and at the end. Owner: the training thread.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

import pserver
from collective import Group, check_same, gather, give_from_first
from collective.precision import LossScale
from trainer.dense.module import scale_facts
from trainer.modes.base import Mode
from trainer.settings.every import Every


class DenseOverRanks(ABC):
    """A module's parameters, stepped alike in every trainer. Used like an optimizer.

    Attributes:
        group: of the trainers; a trainer's rank is its id.
        waited_s: seconds that the training thread waited for averages.
        is_made: whether the step is, whose gradients were averaged last: all of them were finite.
        trained: the module with all parameters, to be scored after ``finish``.
        gathers_together: whether every trainer calls ``gather_state`` for a save, after the same average.
        saves: after which steps of the run all gather, if they do.
    """

    gathers_together = False

    def __init__(
        self,
        group: Group,
        module: nn.Module,
        *,
        mode: Mode,
        check_every: int,
        scale: LossScale | None = None,
    ) -> None:
        """Give every trainer the parameters of trainer 0. Every trainer makes one.

        Args:
            group: of all trainers.
            module: the dense part.
            mode: has this step's rows, for the norm.
            check_every: averages between two comparisons of the parameters; 0: none.
            scale: by which losses are multiplied, if they are.

        Raises:
            pserver.ConfigError: the module has no parameters.
            collective.DivergedError: the modules of the trainers differ in names or shapes.
            collective.MissingRanksError: a trainer did not come.
        """
        self.group = group
        self._mode = mode
        self._scale = scale
        self.is_made = True
        self._held = contextlib.ExitStack()
        self.trained = module
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        if not self._parameters:
            raise pserver.ConfigError("dense allreduce: the dense part has no parameters")
        self._state: list[tuple[str, Tensor]] = [
            *module.named_parameters(),
            *module.named_buffers(),
        ]
        give_from_first(self._state, group)
        check_same(self._state, group, what="first values")
        self._check_every = check_every
        self._averages = 0
        self._samples = 0.0  # what this trainer adds to the average that comes next
        self._loss = math.nan
        self._loss_spread: float | None = None
        self.waited_s = 0.0
        self.saves: Every | None = None
        self._steps_before = 0

    @property
    def loss_factor(self) -> float:
        """Return what the loss of the step that goes on is multiplied by, for the dense part's gradients."""
        return 1.0

    @abstractmethod
    def held_bytes(self) -> dict[str, int]:
        """Return the bytes that this trainer holds of parameters, gradients and optimizer state."""

    @abstractmethod
    def gather_state(self) -> dict[str, Tensor]:
        """Return weights and optimizer state of the whole dense part, to be saved; see ``dense.state``.

        Raises:
            collective.MissingRanksError: a trainer did not come.
        """

    def resume(self, steps: int, tensors: Mapping[str, Tensor]) -> None:
        """Take up what was saved, before the first step. Every trainer calls it.

        Args:
            steps: of the run that the version has.
            tensors: what ``gather_state`` returned.
        """
        self._steps_before = steps
        self._take_state(tensors)

    # --- a step, in this order ----------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Forget the gradients of the step before."""
        del set_to_none
        for parameter in self._parameters:
            parameter.grad = None

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
            self._check_same(f"the end, after {self._averages} averages")

    def close(self) -> None:
        """Give back what the run holds, also if it failed."""
        self._held.close()

    @abstractmethod
    def _take_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take weights and optimizer state."""

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
        return facts | scale_facts(self._scale)

    # --- for subclasses -----------------------------------------------------------------------

    def _averaged(self) -> None:
        """Count an average; compare parameters and losses if that is due."""
        self._averages += 1
        if not self._check_every or self._averages % self._check_every:
            return
        what = f"average {self._averages}"
        self._check_same(what)
        losses = gather(torch.tensor([self._loss], dtype=torch.float64), self.group, what=what)
        known = losses[losses.isfinite()]
        if known.numel():
            self._loss_spread = float(known.max() - known.min())

    def _gather_for_others(self) -> None:
        """Gather if that is due after an average that this trainer had no batch for: another one saves."""
        step = self._steps_before + self._averages
        if self.saves is not None and self.saves.is_due(step=step, seconds=0.0):
            self.gather_state()

    def _check_same(self, what: str) -> None:
        """Compare what all trainers have."""
        check_same(self._state, self.group, what=what)

    def _settle(
        self, parameters: Sequence[nn.Parameter], squares: Callable[[], float] | None = None
    ) -> float:
        """Take the scale off averaged gradients, cut them to the limit, and agree on whether to step.

        Args:
            parameters: with the gradients that this trainer steps by.
            squares: returns the squared norm of the dense part, where this trainer has not all of it.

        Returns:
            The norm before cutting.
        """
        if self._scale is not None:
            self._scale.take_off([p.grad for p in parameters if p.grad is not None])
        norm = self._mode.clip(
            parameters,
            dense_squares=None if squares is None else squares(),
            over_ranks=self._mean_over_ranks,
        )
        if self._scale is not None:
            is_bad = torch.tensor([float(not math.isfinite(norm))])
            self.group.maximum(is_bad, what="are gradients finite")
            self.is_made = not is_bad
            self._scale.update(is_made=self.is_made)
            if is_bad:
                self._mode.forget_step()
        return norm

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
