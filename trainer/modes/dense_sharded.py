"""The dense part in every trainer, with optimizer state, and gradients, shared: ZeRO stages 1 and 2.

Rooms before and after: ``loop`` uses it by way of ``dense_ranks``, whose order of a step it keeps; behind it is
``collective.sharding``. ``dense_fully_sharded`` has stage 3.

Gradients are summed once a step, behind backward; the average is by samples.

What always holds: parameters are those of the run without sharing. Owner: the training thread.
"""

import math
import time
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

import pserver
from collective import CollectiveError, Group
from collective.mesh import make_mesh
from collective.precision import LossScale
from collective.sharding import ShardedOptimizer
from trainer.config import RunSettings
from trainer.dense.module import make_dense_optimizer
from trainer.dense.state import named_state, numbered_state, take_weights, weights_of
from trainer.modes.base import Mode
from trainer.modes.dense_ranks import DenseOverRanks
from trainer.settings.computing import sharding_degree


class SharedOptimizer(DenseOverRanks):
    """Parameters in every trainer; each steps a chunk of them. Stages 1 and 2."""

    gathers_together = True

    def __init__(
        self,
        group: Group,
        module: nn.Module,
        *,
        mode: Mode,
        settings: RunSettings,
        scale: LossScale | None = None,
    ) -> None:
        """Lay the parameters out; see ``DenseOverRanks``.

        Args:
            group: of all trainers.
            module: the dense part.
            mode: has this step's rows.
            settings: of the run, with ``sharding_stage`` 1 or 2.
            scale: of losses.

        Raises:
            pserver.ConfigError: the optimizer is unknown, or parameters are not where they can be shared.
        """
        super().__init__(group, module, mode=mode, check_every=settings.check_every, scale=scale)
        assert settings.sharding_stage is not None, "it is what this class is chosen by"
        self._mesh = make_mesh(group, pipeline=1, sharding=sharding_degree(settings))
        rule = settings.dense_optimizer
        try:
            self._sharded = ShardedOptimizer(
                module.named_parameters(),
                lambda parameters: make_dense_optimizer(rule, parameters),
                self._mesh.sharding,
                stage=settings.sharding_stage,
                replicas=self._mesh.replicas,
            )
        except CollectiveError as error:
            raise pserver.ConfigError(
                f"--sharding-stage: {error}; use stage 3, or --device cpu"
            ) from error
        self._weight = 0.0

    @override
    def held_bytes(self) -> dict[str, int]:
        return self._sharded.held_bytes()

    @override
    def gather_state(self) -> dict[str, Tensor]:
        state = self._sharded.gather_state()
        return weights_of(self.trained) | numbered_state(self.trained, state)

    @override
    def _take_state(self, tensors: Mapping[str, Tensor]) -> None:
        take_weights(self.trained, tensors)
        self._sharded.take_state(named_state(self.trained, tensors))

    @override
    def begin(self, samples: int) -> None:
        self._samples = float(samples)

    @override
    def average(self, *, loss: float = math.nan) -> float | None:
        self._loss = loss
        self._average(goes_on=True)
        return self._settle([self._sharded.chunk], self._squares)

    @override
    def step(self) -> None:
        if self._weight and self.is_made:
            self._sharded.apply()
        self._averaged()

    @override
    def _take_part(self) -> None:
        self._samples = 0.0
        self._sharded.zero_grad()
        while self._average(goes_on=False):
            self._settle([self._sharded.chunk], self._squares)
            self.step()
            self._gather_for_others()

    def _average(self, *, goes_on: bool) -> int:
        """Average; return how many trainers go on."""
        begin_s = time.perf_counter()
        found = self._sharded.average(self._samples, goes_on=goes_on)
        self.waited_s += time.perf_counter() - begin_s
        self._weight = found.weight
        if not found.weight:  # of the step before
            self._sharded.chunk.grad = None
        return found.ranks

    def _squares(self) -> float:
        """Return the squared norm of all chunks' averages."""
        return sum_of_squares([self._sharded.chunk.grad], self._mesh.sharding)


def sum_of_squares(parts: Iterable[Tensor | None], group: Group) -> float:
    """Return the sum of the squares of what the trainers of a group hold."""
    squares = torch.zeros(1, dtype=torch.float64)
    for part in parts:
        if part is not None:
            squares += float(part.detach().double().square().sum())
    group.all_reduce(squares, what="norm of the dense part")
    return float(squares)
