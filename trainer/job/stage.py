"""A run in a trainer that has stages behind the first one of a pipeline: no rows, no servers.

Rooms before and after: ``job`` calls ``run_stage``; ``dense.in_stages`` does the work of a step.

It reads the rows of its pipeline as the trainer of the first stage does, for their labels and to know their
number. Owner: the training thread.
"""

import itertools
import time
from collections.abc import Callable

import torch

from trainer.config import RunSettings
from trainer.data import behind, choose_data, passes, share
from trainer.dense.in_stages import DenseInStages, example_of, make_dense_in_stages
from trainer.dense.kept import Taken
from trainer.dense.module import make_dense_module
from trainer.job.part import PartTrained, part_summary
from trainer.job.progress import ProgressView, Tell, tell_user
from trainer.job.summary import Summary
from trainer.loop import StepReport
from trainer.metrics import metrics_page
from trainer.settings.every import Every, every_of
from trainer.settings.split import share_of, stage_rank


def run_stage(
    settings: RunSettings, *, on_step: Callable[[StepReport], None], tell: Tell
) -> Summary:
    """Be one trainer of a pipeline, but not its first.

    Args:
        settings: of the run, with several stages.
        on_step: called after each step.
        tell: is told the progress.

    Raises:
        pserver.PserverError: a setting cannot work.
        TrainerError: the data cannot be read.
        collective.CollectiveError: another trainer failed, went away or did not come.
    """
    data = choose_data(settings, batch_size=settings.batch_size, seed=settings.seed)
    dense, dim = make_dense_module(settings, data)
    stages = make_dense_in_stages(
        settings, dense, example_of(data, dim=dim, samples=settings.batch_size)
    )
    begin, end = share(data.rows, *share_of(settings))
    trained, begin_s = PartTrained(), time.perf_counter()
    taken = Taken(None, stages.held_bytes)
    every = _saves(settings, stages)
    title = f"stage {stage_rank(settings)} of {settings.model}"
    with (
        metrics_page(settings, tell_user) as metrics,
        stages,
        ProgressView(title=title, steps=None, tell=tell) as view,
    ):
        metrics.begin(auc=lambda: view.auc, dense_wait_s=lambda: stages.waited_s)
        done = stages.resume() if settings.resume else 0
        batches = behind(
            passes(data, epochs=settings.epochs, begin=begin, end=end), done, in_rounds=True
        )
        left = None if settings.steps is None else max(settings.steps - done, 0)
        for step, batch in enumerate(itertools.islice(batches, left), done + 1):
            stages.zero_grad(set_to_none=True)
            loss, logits = 0.0, torch.empty(0)
            if batch.num_samples:
                loss, logits = stages.follow(torch.from_numpy(batch.labels))
            stages.settle()
            stages.step()
            trained.seconds = time.perf_counter() - begin_s
            if batch.num_samples:
                probabilities = torch.sigmoid(logits).numpy()
                report = StepReport(trained.watch.steps + 1, batch, loss, probabilities)
                trained.watch.step(report, queue_depth=0)
                taken.step()
                view.update(report, queue_depth=0)
                metrics.step(report, loss=trained.watch.loss)
                on_step(report)
            if every is not None and every.is_due(step=step, seconds=0.0):
                stages.gather_state()
        stages.finish()
        metrics.end()
    trained.auc = view.auc
    trained.facts = stages.facts(seconds=trained.seconds) | taken.facts()
    trained.wait_share = stages.waited_s / trained.seconds if trained.seconds else 0.0
    return part_summary(settings, trained, data=data.source, mode=settings.mode)


def _saves(settings: RunSettings, stages: DenseInStages) -> Every | None:
    """Return after which steps this trainer brings its part of a save; None: none is asked for."""
    is_asked = share_of(settings)[0] == 0 or stages.gathers_together
    given = settings.checkpoint_every
    return every_of(given) if is_asked and given is not None else None
