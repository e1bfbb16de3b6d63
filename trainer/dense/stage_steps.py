"""Steps the weights of a trainer's stages: averaged over pipelines, scaled, cut to a norm, shared, and compared.

Rooms before and after: ``dense.in_stages`` calls it behind each step of a pipeline; behind it are ``collective``'s
``mesh``, ``fusion``, ``sharding`` and ``watch``.

A step is ``average``, ``squares`` and ``cut`` if norms are looked at, and ``step``. A trainer whose pipeline is through takes
part with no samples until ``average`` says that no pipeline goes on.

What always holds: trainers with the same stages have the same bits after each step. With float16 all trainers have the same
scale, and either all of them make a step or none. Owner: the training thread.
"""

import math
from collections.abc import Mapping

import torch
from torch import nn

import pserver
from collective import Reducer, Summer, TensorError, check_same, plan_buckets
from collective.mesh import Mesh
from collective.precision import LossScale
from collective.sharding import ShardedOptimizer
from collective.watch import MeshWatch
from trainer.config import RunSettings
from trainer.dense.module import held_bytes, make_dense_optimizer
from trainer.settings.computing import sharding_degree
from trainer.settings.every import every_of


class StageSteps:
    """The optimizer of a trainer's stages. Made on every trainer; close it at the end.

    Attributes:
        looks_at_norms: whether ``squares`` is a part of each step.
        is_made: whether the step is whose gradients were averaged last: all of them were finite, on all trainers.
    """

    def __init__(
        self,
        own: Mapping[str, nn.Parameter],
        mesh: Mesh,
        *,
        settings: RunSettings,
        scale: LossScale | None = None,
    ) -> None:
        """Make the optimizer, or this trainer's part of a shared one.

        Args:
            own: parameters of this trainer's stages by name; there may be none.
            mesh: this trainer's groups.
            settings: of the run.
            scale: of the loss, with float16.

        Raises:
            pserver.ConfigError: the optimizer is unknown, or parameters are not where they can be shared.
        """
        self._own = own
        self._mesh = mesh
        self._scale = scale
        self.looks_at_norms = settings.clip_norm is not None or scale is not None
        self.is_made = True
        self._has_gradients = False
        self._sharded: ShardedOptimizer | None = None
        self._reducer: Reducer | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._copies = mesh.data.world_size // sharding_degree(settings)
        self._clip_norm = settings.clip_norm
        self._saves = None
        if settings.checkpoint_every is not None and settings.sharding_stage is not None:
            self._saves = every_of(settings.checkpoint_every)
        self._count = 0  # steps of the run
        every = settings.check_every
        self._watch = MeshWatch(own.items(), mesh, every=every) if every else None
        if not own:  # a stage may have no weights
            return
        rule = settings.dense_optimizer
        if settings.sharding_stage is not None:
            self._sharded = self._shared(settings.sharding_stage, rule)
            return
        self._optimizer = make_dense_optimizer(rule, own.values())
        if mesh.data.world_size > 1:
            self._reducer = Reducer(Summer(mesh.data, "ring"), plan_buckets(own.items()))

    def _shared(self, stage: int, rule: str) -> ShardedOptimizer:
        try:
            return ShardedOptimizer(
                self._own.items(),
                lambda parameters: make_dense_optimizer(rule, parameters),
                self._mesh.sharding,
                stage=stage,
                replicas=self._mesh.replicas,
            )
        except TensorError as error:
            raise pserver.ConfigError(f"--sharding-stage: {error}; use --device cpu") from error

    @property
    def is_shared(self) -> bool:
        """Return whether trainers of several pipelines have parts of one optimizer."""
        return self._sharded is not None

    def gather_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the optimizer's state by parameter and key. If it is shared, all that share it call this.

        Raises:
            collective.MissingRanksError: a trainer did not come.
        """
        if self._sharded is not None:
            return self._sharded.gather_state()
        if self._optimizer is None:
            return {}
        return {name: dict(self._optimizer.state[own]) for name, own in self._own.items()}

    def resume(self, steps: int, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Take what ``gather_state`` returned, before the first step.

        Args:
            steps: of the run that it is of.
            state: by parameter and key, of all stages.
        """
        self._count = steps
        if self._sharded is not None:
            self._sharded.take_state(state)
        elif self._optimizer is not None:
            for name, own in self._own.items():
                values = state[name]
                self._optimizer.state[own] = {
                    key: value.to(own.device) if value.dim() else value
                    for key, value in values.items()
                }

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""
        for parameter in self._own.values():
            parameter.grad = None

    def average(self, samples: int, *, goes_on: bool = True) -> bool:
        """Average the gradients over the pipelines, by samples, and take the scale off; return whether any goes on.

        Raises:
            collective.MissingRanksError: a trainer did not come.
        """
        any_goes_on = self._average(samples, goes_on=goes_on)
        if self._scale is not None:
            self._scale.take_off(self._gradients())
        return any_goes_on

    def _average(self, samples: int, *, goes_on: bool) -> bool:
        if self._sharded is not None:
            found = self._sharded.average(float(samples), goes_on=goes_on)
            self._has_gradients = found.weight > 0.0
            return found.ranks > 0
        if self._reducer is None:
            words = torch.tensor([float(samples), float(goes_on)], dtype=torch.float64)
            self._mesh.data.all_reduce(words, what="samples of a step")
            self._has_gradients = bool(words[0])
            return bool(words[1])
        if goes_on:
            self._reducer.begin(float(samples))
            self._has_gradients = self._reducer.wait() > 0.0
            return True
        others_go_on = self._reducer.without_batch()
        self._has_gradients = any(p.grad is not None for p in self._own.values())
        return others_go_on

    def squares(self, rows: float, samples: int) -> float:
        """Return the squared norm of a step's gradients, of rows and of all stages. All trainers call it.

        With float16 it says too whether the step is made, and tells the scale.

        Args:
            rows: squared norm of this trainer's rows' gradients; 0: it has no rows.
            samples: that they are of; 0 where there are no rows. The rows' norm is that of ``dense_ranks``.
        """
        dense = sum(float(grad.double().square().sum()) for grad in self._gradients())
        is_bad = not math.isfinite(rows + dense)
        own = [rows * samples, float(samples), dense / self._copies, float(is_bad)]
        words = torch.tensor(own, dtype=torch.float64)
        self._mesh.world.all_reduce(words, what="norm of the gradients")
        if self._scale is not None:
            self.is_made = not words[3]
            if words[1]:  # else nobody has samples
                self._scale.update(is_made=self.is_made)
        return float(words[0] / words[1] if words[1] else 0.0) + float(words[2])

    def cut(self, norm: float) -> None:
        """Cut this trainer's averaged gradients to the limit, given the norm of all."""
        if self._clip_norm is not None and norm > self._clip_norm:
            for gradient in self._gradients():
                gradient.mul_(self._clip_norm / norm)

    def step(self, loss: float, samples: int) -> None:
        """Step if the step is made, and look at whether all trainers go the same way.

        Args:
            loss: mean of this trainer's pipeline.
            samples: of it.

        Raises:
            collective.DivergedError: losses or parameters differ that must not.
        """
        is_made = self.is_made and self._has_gradients
        if is_made and self._sharded is not None:
            self._sharded.apply()
        elif is_made and self._optimizer is not None:
            self._optimizer.step()
        if self._watch is not None:
            self._watch.step(loss, float(samples))
        self._count += 1

    def take_part(self) -> None:
        """Take part in the steps of other pipelines, until all are through, and compare the parameters."""
        while self.average(0, goes_on=False):
            if self.looks_at_norms:
                self.cut(self.squares(0.0, 0) ** 0.5)
            self.step(0.0, 0)
            self.zero_grad()
            if self._saves is not None and self._saves.is_due(step=self._count, seconds=0.0):
                self.gather_state()  # of which another pipeline's save needs this trainer's part
        if self._reducer is not None:
            self._reducer.close()
        check_same(self._own.items(), self._mesh.data, what="the end of training")

    def held_bytes(self) -> dict[str, int]:
        """Return the bytes that this trainer holds of its parameters, gradients and optimizer state."""
        if self._sharded is not None:
            return self._sharded.held_bytes()
        return held_bytes(self._own.values(), self._optimizer)

    def _gradients(self) -> list[torch.Tensor]:
        """Return the gradients that this trainer steps by."""
        if not self._has_gradients:
            return []
        parameters = self._own.values() if self._sharded is None else [self._sharded.chunk]
        return [p.grad for p in parameters if p.grad is not None]
