"""Pipelines side by side with shared optimizers: one process's steps; and what the watch sees."""

import pytest
import torch
from torch import Tensor, nn

from collective import DivergedError, Group, GroupError, alone
from collective.mesh import make_mesh
from collective.sharding import ShardedOptimizer
from collective.watch import MeshWatch
from tests.ranks import results, run_ranks
from tests.unit.collective.pipelined import (
    Tower,
    assert_equal,
    batch,
    copies_for,
    joined,
    make_pipeline,
    one_step,
)

STEPS = 4
SIZES = (6, 4, 5, 3)


def make_adam(parameters):
    """Return the optimizer of the tests."""
    return torch.optim.Adam(parameters, lr=0.01)


def test_pipelines_and_shared_optimizers_in_one_run_equal_one_process():
    """Eight ranks: pipelines of two, four side by side with unlike batches, two of which share an optimizer.

    Each step's loss is that of the joined batch, on all ranks, and the parameters stay equal.
    """
    copies = copies_for(8, 2)

    def work(group: Group) -> tuple[dict[str, Tensor], list[float], int]:
        mesh = make_mesh(group, pipeline=2, sharding=2)
        pipeline = make_pipeline(mesh.pipeline, "1f1b", 3, copies[group.rank])
        named = list(pipeline.named_parameters())
        optimizer = ShardedOptimizer(
            named, make_adam, mesh.sharding, stage=2, replicas=mesh.replicas
        )
        watch = MeshWatch(named, mesh, every=2)
        losses = []
        for step in range(STEPS):
            copy = mesh.data.rank
            stepped, _ = one_step(pipeline, SIZES[copy], seed=10 * step + copy)
            losses.append(watch.step(stepped.loss, stepped.samples))
            optimizer.step(stepped.samples)
        pipeline.close()
        state = optimizer.held_bytes()["state"]
        return {name: p.detach() for name, p in named}, losses, state

    found = results(8, work)

    model = Tower()
    optimizer = make_adam(model.parameters())
    wanted_losses = []
    for step in range(STEPS):
        parts = [batch(samples, seed=10 * step + i) for i, samples in enumerate(SIZES)]
        inputs, targets = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        wanted_losses.append(loss.item())
    wanted = {name: p.detach() for name, p in model.named_parameters()}
    for begin in range(0, 8, 2):
        found_parameters = joined([named for named, _, _ in found[begin : begin + 2]])
        assert found_parameters.keys() == wanted.keys()
        for name, parameter in wanted.items():
            torch.testing.assert_close(found_parameters[name], parameter, atol=1e-5, rtol=1e-5)
        assert_equal(found_parameters, joined([parameters for parameters, _, _ in found[:2]]))
    for _, losses, _ in found:
        assert losses == pytest.approx(wanted_losses, abs=1e-5)
    count = sum(parameter.numel() for parameter in wanted.values())
    assert sum(state for _, _, state in found) == 2 * (2 * 4 * count)  # each chunk on two ranks


def test_a_rank_whose_parameters_went_another_way_is_named():
    """The hash is compared at every second step: the first one passes, the second names the rank."""

    def work(group: Group) -> None:
        mesh = make_mesh(group, pipeline=1)
        weight = torch.zeros(3)
        watch = MeshWatch([("weight", weight)], mesh, every=2)
        watch.step(0.5, 4)
        if group.rank == 2:
            weight[1] = 1e-30
        watch.step(0.5, 4)

    for outcome in run_ranks(3, work):
        assert isinstance(outcome, DivergedError), outcome
        assert outcome.ranks == (2,)
        assert "step 2: ranks must have the same values" in str(outcome)
        assert "'weight'" in str(outcome)


def test_a_loss_that_not_all_ranks_have_is_told():
    """Four ranks in two pipelines; a stage of one says another loss than the others of it."""

    def work(group: Group) -> None:
        mesh = make_mesh(group, pipeline=2)
        watch = MeshWatch([], mesh, every=10)
        assert watch.step(1.0 if mesh.data.rank else 0.5, 2.0) == 0.75
        watch.step(0.6 if group.rank == 3 else 0.5, 2.0)

    for outcome in run_ranks(4, work):
        assert isinstance(outcome, DivergedError), outcome
        assert "step 2: all ranks must have one loss, but the standard deviation is" in str(outcome)


@pytest.mark.parametrize(
    ("pipeline", "sharding", "text"),
    [
        (3, 1, "4 ranks do not divide into pipelines of 3 ranks"),
        (2, 4, "the 2 ranks that hold the same part of the model do not divide into optimizers"),
        (1, 0, "do not divide into optimizers of 0 ranks"),
    ],
)
def test_numbers_that_make_no_mesh_are_refused(pipeline, sharding, text):
    """Before anything connects."""

    def work(group: Group) -> None:
        make_mesh(group, pipeline=pipeline, sharding=sharding)

    for outcome in run_ranks(4, work):
        assert isinstance(outcome, GroupError)
        assert text in str(outcome)


def test_a_watch_that_never_compares_is_refused():
    """Every 0 steps is no interval."""
    with pytest.raises(GroupError, match="every must be at least 1 step, got 0"):
        MeshWatch([], make_mesh(alone(), pipeline=1), every=0)
