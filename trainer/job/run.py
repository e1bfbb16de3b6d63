"""One training run, from settings to summary.

Rooms before and after: ``cli`` brings settings and prints the summary; this room chooses the data,
connects, builds the model, and runs ``loop``.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

import pserver
from trainer.checkpoint import RunCheckpoints
from trainer.config import RunSettings
from trainer.data import Data, behind, choose_data, passes, share
from trainer.dataset import Batch
from trainer.dense.elsewhere import DenseElsewhere
from trainer.dense.in_stages import DenseInStages
from trainer.dense.kept import Taken
from trainer.dense.module import choose_device, held_bytes, scale_facts
from trainer.dense.split import SplitDense
from trainer.job.dense import run_dense
from trainer.job.lost import lost_texts, settled
from trainer.job.model import TABLE, make_ctr_model
from trainer.job.progress import ProgressView, Tell, tell_user
from trainer.job.stage import run_stage
from trainer.job.summary import Summary, finite
from trainer.job.watch import Facts, Watch, warnings
from trainer.job.ways import sharing_text, ways_text
from trainer.loop import CtrModel, DenseStep, Score, StepReport, score, train
from trainer.metrics import RunMetrics, metrics_page
from trainer.modes import make_mode
from trainer.modes.dense import DenseOnServers
from trainer.modes.dense_buckets import InBuckets
from trainer.modes.dense_ranks import DenseOverRanks
from trainer.modes.grouped import GroupMode
from trainer.ranges import RangeSource, choose_range_rows
from trainer.settings.split import in_force, share_of, stage_rank

_OTHERS_POLL_S = 0.1  # between two looks at who has left


def _connect(settings: RunSettings) -> pserver.Client:
    """Return a client of the servers, or of embedded shards."""
    if settings.ps is None:
        return pserver.embedded(
            settings.shards,
            settings=settings.client_settings(),
            storage_dir=settings.storage_dir,
            checkpoint_dir=settings.checkpoint_dir,
            restore="latest" if settings.resume else None,
        )
    connect_s = min(settings.give_up_after, settings.barrier_timeout)
    return pserver.connect(settings.ps, settings=settings.client_settings(), connect_s=connect_s)


def run(
    settings: RunSettings,
    *,
    on_step: Callable[[StepReport], None] = lambda _: None,
    tell: Tell = lambda _: None,
) -> Summary:
    """Be one trainer: train and score as the settings say.

    Args:
        settings: of the run.
        on_step: called after each step, beside the progress that is shown.
        tell: is told the progress too, see ``ProgressView``.

    Raises:
        pserver.PserverError: a setting cannot work, or a server failed.
        TrainerError: the data cannot be read.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(settings.deterministic)
    number = settings.trainer_id or 0
    several = number if settings.trainers > 1 else None
    try:
        with pserver.recording(
            settings, name=f"trainer {number}", number=several, every=settings.trace_every
        ):
            return _run(settings, on_step, tell)
    finally:
        torch.use_deterministic_algorithms(False)  # noqa: FBT003 - torch's own


def _run(settings: RunSettings, on_step: Callable[[StepReport], None], tell: Tell) -> Summary:
    if settings.role == "dense":
        return run_dense(settings, on_step=on_step, tell=tell)
    if stage_rank(settings):
        return run_stage(settings, on_step=on_step, tell=tell)
    pserver.load_rules(settings.rule)
    data = choose_data(settings, batch_size=settings.batch_size, seed=settings.seed)
    with (
        metrics_page(settings, tell_user) as metrics,
        _connect(settings) as client,
        contextlib.ExitStack() as stack,
    ):
        number, count = share_of(settings)
        mode = make_mode(client, settings.strategy(), trainer_id=number, trainers=count)
        assert isinstance(mode, GroupMode), "every mode that make_mode makes is one"
        model, optimizer = make_ctr_model(mode, settings, data)
        if isinstance(optimizer, SplitDense):
            stack.enter_context(optimizer)
        if isinstance(optimizer, DenseOverRanks):
            stack.callback(optimizer.close)
            if not settings.trainer_id:
                text = _ways(model, optimizer, settings)
                tell_user(text)
                tell({"ways": text})
        parts = Parts(model, optimizer, mode, data, metrics)
        trained = _train(parts, settings=settings, on_step=on_step, tell=tell)
        held_out = None
        if data.has_held_out and not settings.trainer_id:
            wait_for_others(client, timeout_s=settings.barrier_timeout)
            held_out = _score(model, optimizer, data)
        return _summary(settings, data, client, held_out, trained=trained)


def _ways(model: CtrModel, dense: DenseOverRanks, settings: RunSettings) -> str:
    """Return where the tensors of an averaged dense part go."""
    if isinstance(dense, InBuckets):
        return ways_text(model.bag, model.dense, dense, settings.strategy())
    return sharing_text(model.dense, settings)


@dataclass(frozen=True, slots=True)
class Parts:
    """What trains: a model, what steps its dense part, its way to the servers, its rows, its figures."""

    model: CtrModel
    optimizer: DenseStep
    mode: GroupMode
    data: Data
    metrics: RunMetrics


@dataclass(frozen=True, slots=True)
class Trained:
    """What training came to: steps, samples, seconds, AUC of its predictions, shares, watch list."""

    steps: int
    samples: int
    seconds: float
    auc: float
    comm_share: float
    watch: Facts


def _train(
    parts: Parts,
    *,
    settings: RunSettings,
    on_step: Callable[[StepReport], None],
    tell: Tell,
) -> Trained:
    """Train on this trainer's rows."""
    mode, watch = parts.mode, Watch()
    taken = _look_at_memory(parts, settings)
    checkpoints = RunCheckpoints(settings, parts.model, parts.optimizer, mode)
    done = checkpoints.resume() if settings.resume else 0
    ranges = _ranges(parts, settings)
    batches, steps = _batches(parts.data, ranges, settings)
    in_rounds = mode.in_rounds or isinstance(parts.optimizer, SplitDense)
    begin_s = time.perf_counter()
    title = f"train {settings.model} {settings.mode}"
    left = None if steps is None else max(steps - done, 0)
    steps_max = None if settings.steps is None else max(settings.steps - done, 0)
    with ProgressView(title=title, steps=left, tell=tell) as view:
        optimizer, metrics = parts.optimizer, parts.metrics
        metrics.begin(
            mode,
            parts.model.bag.comm,
            auc=lambda: view.auc,
            dense_wait_s=lambda: _dense_wait_s(optimizer),
        )

        def report(step: StepReport) -> None:
            if ranges is not None:
                ranges.trained(mode.flush)
            if step.batch.num_samples:
                depth = mode.client.queue_depth
                watch.step(step, queue_depth=depth)
                view.update(step, queue_depth=depth)
                taken.step()
            metrics.step(step, loss=watch.loss)
            if step.batch.num_samples:
                on_step(step)
            checkpoints.after_step(step.step)

        train(
            parts.model,
            behind(batches, done, in_rounds=in_rounds) if steps_max != 0 else (),
            optimizer=optimizer,
            mode=mode,
            prefetch=settings.prefetch,
            steps_max=steps_max,
            on_step=report,
        )
    checkpoints.finish()
    metrics.end()
    seconds = time.perf_counter() - begin_s
    comm = parts.model.bag.comm
    shares = [part_s / seconds if seconds else 0.0 for part_s in (comm.pull_s, comm.push_s)]
    facts = watch.facts(mode.facts(), pull_share=shares[0], push_share=shares[1])
    facts |= _dense_facts(parts, seconds=seconds) | taken.facts()
    if ranges is not None:
        facts["ranges_again"] = float(ranges.again)
    return Trained(watch.steps, watch.samples, seconds, view.auc, sum(shares), facts)


def _dense_facts(parts: Parts, *, seconds: float) -> Facts:
    """Return the watch list of what steps the dense part."""
    if isinstance(parts.optimizer, DenseOverRanks | SplitDense):
        return parts.optimizer.facts(seconds=seconds)
    return scale_facts(parts.model.precision.scale)


def _look_at_memory(parts: Parts, settings: RunSettings) -> Taken:
    """Return what measures what the dense part takes."""
    # Gathered parameters of stage 3 could not be told from what is kept.
    module = None if settings.sharding_stage == 3 else parts.model.dense
    return Taken(module, lambda: _held_bytes(parts))


def _held_bytes(parts: Parts) -> dict[str, int]:
    """Return the bytes that this trainer holds of the dense part's parameters, gradients and state."""
    optimizer = parts.optimizer
    if isinstance(optimizer, DenseOverRanks | SplitDense):
        return optimizer.held_bytes()
    own = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    return held_bytes(parts.model.dense.parameters(), own)


def _dense_wait_s(optimizer: DenseStep) -> float:
    """Return the seconds that averages of the dense part, or trainers that have it, were waited for."""
    waits = (DenseOverRanks, DenseElsewhere, DenseInStages)
    return optimizer.waited_s if isinstance(optimizer, waits) else 0.0


def _ranges(parts: Parts, settings: RunSettings) -> RangeSource | None:
    """Return where leased ranges come from; None if each trainer has its share."""
    if settings.data_mode == "static":
        return None
    rows = parts.data.rows
    range_rows = settings.range_rows or choose_range_rows(
        rows, batch_size=settings.batch_size, trainers=settings.trainers
    )
    mode = parts.mode
    in_rounds = mode.in_rounds or isinstance(parts.optimizer, DenseOverRanks)
    leases = mode.group.leases(rows=rows, range_rows=min(range_rows, rows))
    return RangeSource(leases, parts.data, epochs=settings.epochs, in_rounds=in_rounds)


def _batches(
    data: Data, ranges: RangeSource | None, settings: RunSettings
) -> tuple[Iterable[Batch], int | None]:
    """Return this trainer's batches and how many there are, if that is known."""
    if ranges is not None:
        return ranges.batches(), settings.steps
    begin, end = share(data.rows, *share_of(settings))
    steps = settings.epochs * math.ceil((end - begin) / settings.batch_size)
    steps = min(steps, settings.steps) if settings.steps else steps
    return passes(data, epochs=settings.epochs, begin=begin, end=end), steps


def wait_for_others(client: pserver.Client, *, timeout_s: float) -> None:
    """Wait until every other trainer of the group has left, or is gone.

    Args:
        client: of a trainer that has left.
        timeout_s: seconds; what is scored after that is what is there.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        states: dict[int, set[str]] = {}
        for told in (told for stats in client.stats() for told in stats.group.trainers):
            states.setdefault(told.trainer_id, set()).add(told.state)
        # A shard that came back empty takes one that left for one that is still to come.
        if not any("live" in seen or seen == {"absent"} for seen in states.values()):
            return
        time.sleep(_OTHERS_POLL_S)


def _score(model: CtrModel, optimizer: DenseStep, data: Data) -> Score:
    """Return how good the model is on the held-out rows, with the weights that are on the servers."""
    if isinstance(optimizer, DenseOnServers):
        optimizer.take_latest()
    if isinstance(optimizer, DenseOverRanks):
        model.dense = optimizer.trained
    return score(model, data.held_out())


def _summary(
    settings: RunSettings,
    data: Data,
    client: pserver.Client,
    held_out: Score | None,
    *,
    trained: Trained,
) -> Summary:
    """Return the figures of a run."""
    shards = client.stats()
    tables = [t for stats in shards for t in stats.tables if t.table == TABLE]
    rows = sum(table.rows for table in tables)
    num_bytes = sum(table.bytes for table in tables)
    samples_per_s = trained.samples / trained.seconds if trained.seconds else 0.0
    base = settings.base_samples_per_s
    now = {stats.server.shard_index: stats.server.incarnation for stats in shards}
    lost = settled([dataclasses.asdict(one) for one in client.revival.lost], now)
    return Summary(
        model=settings.model,
        data=data.source,
        device=str(choose_device(settings.device_here)),
        shards=client.num_shards,
        steps=trained.steps,
        samples=trained.samples,
        seconds=trained.seconds,
        samples_per_s=samples_per_s,
        comm_share=trained.comm_share,
        train_auc=finite(trained.auc),
        auc=finite(held_out.auc) if held_out else None,
        log_loss=finite(held_out.log_loss) if held_out else None,
        copc=finite(held_out.copc) if held_out else None,
        auc_ceiling=finite(held_out.auc_ceiling) if held_out else None,
        eval_samples=held_out.samples if held_out else 0,
        rows=rows,
        bytes_per_row=num_bytes / rows if rows else None,
        retries=client.retries,
        bad_lines=data.bad_lines,
        first_bad_lines=data.first_bad_lines,
        mode=settings.mode,
        trainers=1,
        strategy=in_force(settings),
        watch=trained.watch,
        speedup=samples_per_s / base if base else None,
        lost=lost,
        warnings=[*lost_texts(lost), *warnings(trained.watch)],
    )
