"""Models for pipelines, and the unsplit model as the oracle."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from collective import Group
from collective.pipeline import Pipeline, Stepped
from collective.pipeline_cut import Stage, cut_model
from collective.pipeline_timetable import Schedule, make_timetable
from tests.ranks import seeded

Grads = dict[str, Tensor]

CUTS = [f"blocks.{index}" for index in range(1, 8)]


class Block(nn.Module):
    """A layer with a weight that is used twice, and a view as its output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.rand(width))

    @override
    def forward(self, value: Tensor) -> Tensor:
        inner = torch.tanh(self.inner(value) * self.scale)
        whole: Tensor = value + self.inner(inner)
        return whole.view(-1, self.scale.shape[0])


class Tower(nn.Module):
    """Eight blocks; the first block's output is needed again by the last, and so is the input."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        with seeded(1):
            self.blocks = nn.ModuleList(Block(width) for _ in range(8))
            self.head = nn.Linear(width, 1)

    @override
    def forward(self, value: Tensor) -> Tensor:
        early = hidden = self.blocks[0](value)
        for block in list(self.blocks)[1:]:
            hidden = block(hidden)
        output: Tensor = self.head(hidden + early * value)
        return output


def batch(samples: int, *, seed: int = 0, width: int = 6) -> tuple[Tensor, Tensor]:
    """Return inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(samples, width, generator=generator),
        torch.randn(samples, 1, generator=generator),
    )


def unsplit(samples: int, *, seed: int = 0) -> tuple[float, Grads]:
    """Return loss and gradients of one process."""
    model = Tower()
    inputs, targets = batch(samples, seed=seed)
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def cuts_for(stages: int) -> list[str]:
    """Return cuts that leave no stage empty."""
    return [CUTS[(8 * stage // stages) - 1] for stage in range(1, stages)]


def copies_for(ranks: int, stages: int) -> list[list[Stage]]:
    """Return the tower's stages once for each rank. Not in the ranks' threads: tracing is for one."""
    return [cut_model(Tower(), stages, cuts=cuts_for(stages)) for _ in range(ranks)]


def make_pipeline(
    group: Group,
    schedule: Schedule,
    micro_batches: int,
    stages: Sequence[Stage],
    **options,
) -> Pipeline:
    """Return this rank's part of the tower."""
    timetable = make_timetable(
        schedule,
        ranks=group.world_size,
        micro_batches=micro_batches,
        virtual=len(stages) // group.world_size,
    )
    return Pipeline(stages, timetable, group, nn.functional.mse_loss, **options)


def one_step(pipeline: Pipeline, samples: int, *, seed: int = 0) -> tuple[Stepped, Grads]:
    """Step one batch, and return what came and this rank's gradients."""
    inputs, targets = batch(samples, seed=seed)
    for _, parameter in pipeline.named_parameters():
        parameter.grad = None
    stepped = pipeline.step(
        [inputs] if pipeline.takes_inputs else None, targets if pipeline.takes_targets else None
    )
    return stepped, {
        name: p.grad.clone() for name, p in pipeline.named_parameters() if p.grad is not None
    }


def joined(parts: Sequence[Grads]) -> Grads:
    """Return the gradients of all ranks as one model's."""
    return {name: grad for part in parts for name, grad in part.items()}


def assert_equal(found: Grads, wanted: Grads) -> None:
    """Compare gradients to 1e-6."""
    assert found.keys() == wanted.keys()
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, atol=1e-6, rtol=1e-6, msg=name)
