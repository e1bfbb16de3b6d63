"""The dense part split over the trainers, parameters too: ZeRO stage 3.

Rooms before and after: ``loop`` uses it by way of ``dense_ranks``, whose order of a step it keeps; behind it is
``collective.full_sharding``, which takes seconds to load and so is loaded for runs of stage 3 only.

Gradients are summed layer by layer during backward. torch's ``fully_shard`` has no weights, so a trainer's loss is
multiplied by its share of the samples before; a trainer without a batch computes one row of zeros that counts nothing,
since the others wait for it at every layer.

What always holds: parameters are those of the run without sharing. Owner: the training thread.
"""

import contextlib
import copy
import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

import pserver
from collective import CollectiveError, Group, check_same
from collective.full_sharding import (
    FullOptions,
    default_group,
    fill,
    layers_of,
    own_part,
    shard_fully,
    whole,
)
from collective.mesh import make_mesh
from collective.precision import LossScale
from trainer.config import RunSettings
from trainer.dense.module import choose_device, held_bytes, make_dense_optimizer
from trainer.dense.state import named_state, numbered_state
from trainer.modes.base import Mode
from trainer.modes.dense_ranks import DenseOverRanks
from trainer.modes.dense_sharded import sum_of_squares
from trainer.settings.computing import sharding_degree


class FullySharded(DenseOverRanks):
    """Parameters are gathered a layer at a time. Stage 3."""

    gathers_together = True

    def __init__(
        self,
        group: Group,
        module: nn.Module,
        example: tuple[Tensor, ...],
        *,
        mode: Mode,
        settings: RunSettings,
        scale: LossScale | None = None,
    ) -> None:
        """Shard the module, in place; see ``DenseOverRanks``.

        Args:
            group: of all trainers.
            module: the dense part, on its device.
            example: arguments of one sample, for steps without any.
            mode: has this step's rows.
            settings: of the run, with ``sharding_stage`` 3.
            scale: of losses.

        Raises:
            pserver.ConfigError: the optimizer is unknown, or the module cannot be sharded so.
        """
        super().__init__(group, module, mode=mode, check_every=settings.check_every, scale=scale)
        self._device = choose_device(settings.device)
        self._empty = copy.deepcopy(module).to("meta")  # of the whole, no bytes
        self._module = module
        self._example = example
        degree = sharding_degree(settings)
        self._mesh = make_mesh(group, pipeline=1, sharding=degree)
        options = FullOptions(
            self._device.type, degree=degree, offload="cpu" if settings.offload else None
        )
        with contextlib.ExitStack() as stack:
            stack.enter_context(default_group(group, device=self._device.type))
            try:
                shard_fully(module, layers_of(module), options=options)
            except CollectiveError as error:
                raise pserver.ConfigError(f"--sharding-stage 3: {error}") from error
            self._parameters = [p for p in module.parameters() if p.requires_grad]
            self._optimizer = make_dense_optimizer(settings.dense_optimizer, self._parameters)
            self._held = stack.pop_all()
        self._factor = 1.0

    @property
    @override
    def loss_factor(self) -> float:
        return self._factor

    @override
    def held_bytes(self) -> dict[str, int]:
        return held_bytes(self._parameters, self._optimizer, part=own_part)

    @override
    def finish(self) -> None:
        """End well; see ``DenseOverRanks``. Afterwards ``trained`` has the whole."""
        super().finish()
        self.trained = self._empty.to_empty(device=self._device)
        values = [*self._module.parameters(), *self._module.buffers()]
        kept = [*self.trained.parameters(), *self.trained.buffers()]
        with torch.no_grad():
            for own, place in zip(values, kept, strict=True):
                place.copy_(whole(own))

    @override
    def gather_state(self) -> dict[str, Tensor]:
        weights = {f"dense.{name}": whole(value).cpu() for name, value in self._named().items()}
        state = {
            name: {key: whole(value).cpu() for key, value in self._optimizer.state[own].items()}
            for name, own in self._module.named_parameters()
        }
        return weights | numbered_state(self._module, state)

    @override
    def _take_state(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self._named().items():
                fill(value, tensors[f"dense.{name}"])
        state = named_state(self._module, tensors)
        for name, own in self._module.named_parameters():
            for key, value in sorted(
                state[name].items()
            ):  # in one order everywhere, since all fill
                kept = torch.zeros_like(own) if value.shape == own.shape else value.clone()
                fill(kept, value)
                self._optimizer.state[own][key] = kept

    def _named(self) -> dict[str, Tensor]:
        return {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}

    @override
    def begin(self, samples: int) -> None:
        self._samples = float(samples)
        self._weigh(goes_on=True)

    @override
    def average(self, *, loss: float = math.nan) -> float | None:
        self._loss = loss
        if not self._samples:
            self._compute_nothing()
        return self._settle(self._parameters, self._squares)

    @override
    def step(self) -> None:
        if self.is_made and self._factor >= 0.0:
            self._optimizer.step()
        self._averaged()

    @override
    def _take_part(self) -> None:
        self._samples = 0.0
        while self._weigh(goes_on=False):
            self.zero_grad()
            self._compute_nothing()
            self._settle(self._parameters, self._squares)
            self.step()
            self._gather_for_others()

    @override
    def _check_same(self, what: str) -> None:
        """Compare the copies' parts."""
        parts = [(name, own_part(p.detach())) for name, p in self._module.named_parameters()]
        check_same(parts, self._mesh.replicas, what=what)

    def _weigh(self, *, goes_on: bool) -> bool:
        """Find this trainer's share of the step's samples; return whether any trainer goes on."""
        words = torch.tensor([self._samples, float(goes_on)], dtype=torch.float64)
        begin_s = time.perf_counter()
        self.group.all_reduce(words, what="samples of a step")
        self.waited_s += time.perf_counter() - begin_s
        total = float(words[0])
        # torch divides by the number of trainers. Below 0: nobody has samples.
        self._factor = self._samples * self.group.world_size / total if total else -1.0
        return bool(words[1])

    def _compute_nothing(self) -> None:
        """Take part in forward and backward of the others."""
        rows, dense = (value.to(self._device) for value in self._example)
        # As pooled rows do: torch sums a layer when the gradient of its inputs is there, so in this order.
        logits = self._module(rows.requires_grad_(), dense)
        (logits.sum() * 0.0).backward()

    def _squares(self) -> float:
        """Return the squared norm of the average."""
        grads = [own_part(p.grad) for p in self._parameters if p.grad is not None]
        return sum_of_squares(grads, self._mesh.sharding)
