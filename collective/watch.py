"""Looks at whether all ranks of a mesh go the same way: one loss, and the same bits where they hold the same part.

Rooms before and after: a training program calls ``MeshWatch.step`` after each step; ``agree`` compares.

What always holds: all ranks raise the same error, or none does. Owner: the training thread.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from collective.agree import check_same, gather
from collective.errors import DivergedError, GroupError
from collective.mesh import Mesh

LOSS_STD_MAX = 1e-4
"""Of the losses of all ranks: rounding stays far below it, a stage of another step or batch does not."""


class MeshWatch:
    """Compares losses at every step, and a hash of the parameters every few steps."""

    def __init__(self, named: Iterable[tuple[str, Tensor]], mesh: Mesh, *, every: int) -> None:
        """Take what is compared.

        Args:
            named: names and tensors of this rank's part of the model, in the same order on all its ranks.
            mesh: of this rank.
            every: steps between two comparisons of the parameters.

        Raises:
            GroupError: ``every`` is below 1.
        """
        if every < 1:
            raise GroupError(f"every must be at least 1 step, got {every}")
        self._named = list(named)
        self._mesh = mesh
        self._every = every
        self._steps = 0

    def step(self, loss: float, samples: float) -> float:
        """Count a step, and return the mean loss of its samples over all pipelines.

        Args:
            loss: mean of this rank's pipeline, which tells it to all its ranks.
            samples: of it; 0: its loss does not count.

        Raises:
            DivergedError: the ranks of a pipeline have different losses, or ranks that hold the same part
                of the model different parameters.
            MissingRanksError: a rank did not come.
        """
        self._steps += 1
        what = f"step {self._steps}"
        own = [loss * samples if samples else 0.0, samples]
        sums = torch.tensor(own, dtype=torch.float64)
        self._mesh.data.all_reduce(sums, what=f"{what}: losses")
        mean = float(sums[0] / sums[1]) if sums[1] else 0.0
        told = gather(
            torch.tensor([mean], dtype=torch.float64), self._mesh.world, what=f"{what}: losses"
        )
        losses = told.flatten()
        spread = float(losses.std(correction=0))
        # NaN or infinity on some ranks is another way; on all of them it is one.
        is_one = losses.isnan().all() or (losses == losses[0]).all()
        if not spread <= LOSS_STD_MAX and not is_one:
            distance = (losses - losses.median()).abs().nan_to_num(torch.inf)
            rank = int(distance.argmax())
            raise DivergedError(
                f"{what}: all ranks must have one loss, but the standard deviation is {spread:.3g} (at "
                f"most {LOSS_STD_MAX:g}); rank {rank} has {float(losses[rank])!r}, the median is "
                f"{float(losses.median())!r}",
                [rank],
            )
        if self._steps % self._every == 0:
            check_same(self._named, self._mesh.data, what=what)
        return mean
