"""Pipelines: the unsplit model's gradients, whatever the schedule; failures that end all ranks."""

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from collective import Group, GroupError, MissingRanksError, StageError, TensorError, alone
from collective.algorithm import Summer
from collective.fusion import Reducer, plan_buckets
from collective.mesh import make_mesh
from collective.pipeline import Pipeline
from collective.pipeline_cut import cut_model
from collective.pipeline_timetable import SCHEDULES, make_timetable
from tests.ranks import results, run_ranks
from tests.unit.collective.pipelined import (
    Tower,
    assert_equal,
    batch,
    copies_for,
    joined,
    make_pipeline,
    one_step,
    unsplit,
)

EVERY = [(schedule, 1) for schedule in SCHEDULES] + [("interleaved", 2)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_h1_gradients_are_those_of_the_unsplit_model_with_every_schedule(ranks):
    """1 to 4 ranks, 1 to 8 micro-batches, every schedule: gradients and loss of the whole batch.

    With a skip connection over all stages, fewer micro-batches than stages, batches that do
    not divide, and the last batch of an epoch, which has fewer samples than micro-batches.
    """
    micro_batches = (1, 2, 3, 4, 8)
    copies = {virtual: copies_for(ranks, ranks * virtual) for virtual in (1, 2)}

    def work(group: Group):
        found = {}
        for schedule, virtual in EVERY:
            for count in micro_batches:
                pipeline = make_pipeline(group, schedule, count, copies[virtual][group.rank])
                for samples in (8, 3):
                    key = (schedule, virtual, count, samples)
                    found[key] = one_step(pipeline, samples)
                pipeline.close()
        return found

    found = results(ranks, work)

    for samples in (8, 3):
        loss, grads = unsplit(samples)
        for schedule, virtual in EVERY:
            for count in micro_batches:
                parts = [rank[schedule, virtual, count, samples] for rank in found]
                assert_equal(joined([part for _, part in parts]), grads)
                assert {stepped.samples for stepped, _ in parts} == {samples}
                assert [stepped.loss for stepped, _ in parts] == pytest.approx([loss] * ranks)


def test_h2_batches_that_do_not_divide_weigh_each_sample_once():
    """8 samples in 3 parts over 3 stages, then 7, then an epoch's last 2, by one pipeline."""
    copies = copies_for(3, 3)

    def work(group: Group):
        pipeline = make_pipeline(group, "1f1b", 3, copies[group.rank])
        found = [one_step(pipeline, samples) for samples in (8, 7, 2)]
        pipeline.close()
        return found

    for samples, *parts in zip((8, 7, 2), *results(3, work), strict=True):
        loss, grads = unsplit(samples)
        assert_equal(joined([part for _, part in parts]), grads)
        assert [stepped.loss for stepped, _ in parts] == pytest.approx([loss] * 3)


def test_a_batch_without_samples_leaves_gradients_alone():
    """A rank group that has no batch any more takes part with nothing."""

    copies = copies_for(2, 2)

    def work(group: Group):
        pipeline = make_pipeline(group, "1f1b", 4, copies[group.rank])
        outcome = one_step(pipeline, 0)
        pipeline.close()
        return outcome

    for stepped, grads in results(2, work):
        assert (stepped.loss, stepped.samples, grads) == (0.0, 0, {})


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_inputs_that_require_gradients_get_theirs(schedule):
    """So what comes before the pipeline, such as pooled rows, can go on backward."""
    copies = copies_for(2, 2)

    def work(group: Group):
        pipeline = make_pipeline(group, schedule, 3, copies[group.rank])
        inputs, targets = batch(8)
        inputs.requires_grad_()
        pipeline.step([inputs], targets)
        pipeline.close()
        return inputs.grad

    first, second = results(2, work)

    inputs, targets = batch(8)
    inputs.requires_grad_()
    nn.functional.mse_loss(Tower()(inputs), targets).backward()
    torch.testing.assert_close(first, inputs.grad, atol=1e-6, rtol=1e-6)
    assert second is None


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_pipelines_side_by_side_equal_one_process(schedule):
    """Two pipelines of two ranks, gradients averaged after the last micro-batch: one process's steps.

    The second has fewer samples, so the average weighs.
    """
    sizes = (6, 4)
    copies = copies_for(4, 2)

    def work(group: Group):
        mesh = make_mesh(group, pipeline=2)
        pipeline = make_pipeline(mesh.pipeline, schedule, 3, copies[group.rank])
        reducer = Reducer(
            Summer(mesh.data, "ring"), plan_buckets(list(pipeline.named_parameters()))
        )
        parameters = dict(pipeline.named_parameters())
        optimizer = torch.optim.SGD(parameters.values(), lr=0.01)
        for step in range(5):
            seed = 10 * step + mesh.data.rank
            stepped, _ = one_step(pipeline, sizes[mesh.data.rank], seed=seed)
            reducer.begin(stepped.samples)
            reducer.wait()
            optimizer.step()
        pipeline.close()
        reducer.close()
        return {name: p.detach() for name, p in parameters.items()}

    found = results(4, work)

    model = Tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(5):
        parts = [batch(samples, seed=10 * step + i) for i, samples in enumerate(sizes)]
        inputs, targets = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    wanted = {name: p.detach() for name, p in model.named_parameters()}
    assert_equal(joined(found[:2]), wanted)
    assert_equal(joined(found[2:]), wanted)


class Boom(nn.Module):
    """Raises in forward, or in backward, when told."""

    def __init__(self, *, forward: bool) -> None:
        super().__init__()
        self.raises_forward = forward

    @override
    def forward(self, value: Tensor) -> Tensor:
        if self.raises_forward:
            raise RuntimeError("this layer is broken")
        if value.requires_grad:
            value.register_hook(self._hook)
        return value * 1.0

    def _hook(self, _: Tensor) -> None:
        raise RuntimeError("this layer is broken")


class _NotTraced(nn.Module):
    """Holds a module that the trace does not look into."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @override
    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = self.module(value)
        return output


_NotTraced.__module__ = "torch.nn.not_traced"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("forward", [True, False])
def test_h3_all_ranks_end_with_the_exception_of_the_stage_that_raised(schedule, forward):
    """Stage 2 of 4 raises: that exception there, and on the others an error that holds its text."""

    layers: list[nn.Module] = [nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)]
    layers[2] = nn.Sequential(layers[2], _NotTraced(Boom(forward=forward)))
    stages = cut_model(nn.Sequential(*layers), 4, cuts=("1", "2", "3"))

    def work(group: Group):
        pipeline = make_pipeline(group, schedule, 4, stages)
        inputs, targets = batch(8)
        for _ in range(2):  # a rank that was done already hears of it in its next step
            pipeline.step([inputs], targets)

    outcomes = run_ranks(4, work)

    assert isinstance(outcomes[2], RuntimeError)
    assert "this layer is broken" in str(outcomes[2])
    for rank in (0, 1, 3):
        error = outcomes[rank]
        assert isinstance(error, StageError), error
        assert "rank 2, stage 2" in str(error)
        assert "this layer is broken" in str(error)
        assert error.rank == 2


def test_a_rank_that_goes_away_is_named():
    """A rank that ends without a word is named within the limit."""

    copies = copies_for(3, 3)

    def work(group: Group):
        pipeline = make_pipeline(group, "1f1b", 2, copies[group.rank])
        if group.rank == 1:
            pipeline.close()
            return
        inputs, targets = batch(8)
        pipeline.step([inputs], targets)

    outcomes = run_ranks(3, work, timeout_s=20.0)

    for rank in (0, 2):
        assert isinstance(outcomes[rank], MissingRanksError | StageError), outcomes[rank]
        assert "rank 1" in str(outcomes[rank])


def test_what_does_not_fit_together_is_refused():
    """A timetable for other stages, inputs and targets of other lengths, missing targets."""
    timetable = make_timetable("gpipe", ranks=1, micro_batches=2)
    with pytest.raises(GroupError, match="1 stages on 1 ranks, got 2 stages"):
        Pipeline(
            cut_model(Tower(), 2, cuts=("blocks.4",)),
            timetable,
            alone(),
            nn.functional.mse_loss,
        )
    pipeline = make_pipeline(alone(), "gpipe", 2, copies_for(1, 1)[0])
    inputs, targets = batch(8)
    with pytest.raises(TensorError, match=r"differ in samples: \[7, 8\]"):
        pipeline.step([inputs], targets[:7])
    with pytest.raises(TensorError, match="needs targets"):
        pipeline.step([inputs])
    with pytest.raises(TensorError, match="takes value"):
        pipeline.step([], targets)


def test_the_queue_keeps_its_bound_and_the_gradients():
    """With a bound of one parcel the same gradients come, and no more than that waits for long."""
    copies = copies_for(3, 3)

    def work(group: Group):
        found = []
        for bound in (1, 1 << 30):
            pipeline = make_pipeline(group, "gpipe", 8, copies[group.rank], queue_bytes_max=bound)
            _, grads = one_step(pipeline, 8)
            pipeline.close()
            found.append((grads, pipeline.queue.peak_bytes, pipeline.queue.waiting_bytes))
        return found

    for found in zip(*results(3, work), strict=True):
        assert_equal(joined([grads for grads, _, _ in found]), unsplit(8)[1])
        assert [waiting for _, _, waiting in found] == [0, 0, 0]
        assert all(peak > 0 for _, peak, _ in found)
