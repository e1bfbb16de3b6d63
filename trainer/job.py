"""One training run, from settings to summary.

Rooms before and after: ``cli`` brings settings and prints the summary; this room chooses the data,
connects, builds the model, and runs ``loop``.
"""

import math
import time
from collections.abc import Callable

import torch

import pserver
from trainer.config import RunSettings
from trainer.data import Data, choose_data, passes, share
from trainer.dense import choose_device, make_dense_optimizer
from trainer.embedding import EmbeddingBag
from trainer.errors import TrainerError
from trainer.loop import CtrModel, DenseStep, Score, StepReport, score, train
from trainer.model import MODELS, make_model
from trainer.modes import Mode, make_mode
from trainer.modes.dense import DenseOnServers
from trainer.progress import ProgressView
from trainer.summary import Summary, finite

_BUILT: dict[str, tuple[object, ...]] = {
    "mode": ("async", "geo"),
    "max_staleness": (None,),
    "staleness_lr": ("none",),
    "on_full": ("wait",),
}
"""What works, of the knobs of a strategy of which not all does yet."""

TABLE = "embedding"
"""Name of the table that built-in models use."""

DENSE_TABLE = "dense"
"""Name of the dense table with the weights of their dense part."""


def _connect(settings: RunSettings) -> pserver.Client:
    """Return a client of the servers, or of embedded shards."""
    if settings.ps is None:
        return pserver.embedded(
            settings.shards,
            settings=settings.client_settings(),
            storage_dir=settings.storage_dir,
        )
    return pserver.connect(settings.ps, settings=settings.client_settings())


def make_ctr_model(mode: Mode, settings: RunSettings, data: Data) -> tuple[CtrModel, DenseStep]:
    """Return the model that the settings name, its tables made, and what steps its dense part.

    Raises:
        pserver.ConfigError: a setting cannot work.
        pserver.SpecMismatchError: the servers have the table with another spec.
    """
    device = choose_device(settings.device)
    dim = settings.dim or MODELS[settings.model].default_dim
    try:
        dense = make_model(
            settings.model,
            num_slots=data.num_slots,
            num_dense=data.num_dense,
            dim=dim,
            seed=settings.seed,
        )
    except TrainerError as error:  # the dim does not suit the model
        raise pserver.ConfigError(f"--dim: {error}") from error
    bag = EmbeddingBag(
        mode,
        TABLE,
        dim=dim,
        pooling="sum",
        optimizer=settings.optimizer,
        initializer=settings.initializer,
        seed=settings.seed,
        row_dtype=settings.row_dtype,
        storage=settings.storage,
        device=device,
        on_nan=settings.on_nan,
        ttl_days=settings.ttl_days,
        evict=settings.evict,
    )
    parameters = dense.to(device).parameters()
    optimizer: DenseStep
    if settings.strategy().dense == "local":
        optimizer = make_dense_optimizer(settings.dense_optimizer, parameters)
    else:
        optimizer = DenseOnServers(
            mode, parameters, table=DENSE_TABLE, optimizer=settings.dense_optimizer
        )
    return CtrModel(bag, dense, device=device), optimizer


def run(
    settings: RunSettings, *, on_step: Callable[[StepReport], None] = lambda _: None
) -> Summary:
    """Train and score as the settings say.

    Args:
        settings: of the run.
        on_step: called after each step, beside the progress that is shown.

    Raises:
        pserver.PserverError: a setting cannot work, or a server failed.
        TrainerError: the data cannot be read.
    """
    _refuse_unbuilt(settings)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    pserver.load_rules(settings.rule)
    data = choose_data(settings, batch_size=settings.batch_size, seed=settings.seed)
    with _connect(settings) as client:
        mode = make_mode(
            client,
            settings.strategy(),
            trainer_id=settings.trainer_id or 0,
            trainers=settings.trainers,
        )
        model, optimizer = make_ctr_model(mode, settings, data)
        figures = _train(model, optimizer, mode, settings=settings, data=data, on_step=on_step)
        held_out = _score(model, optimizer, data)
        return _summary(settings, data, client, held_out, figures=figures)


def _train(
    model: CtrModel,
    optimizer: DenseStep,
    mode: Mode,
    *,
    settings: RunSettings,
    data: Data,
    on_step: Callable[[StepReport], None],
) -> dict[str, float | int | None]:
    """Train on this trainer's share and return the figures of that."""
    begin, end = share(data.rows, settings.trainer_id or 0, settings.trainers)
    steps = settings.epochs * math.ceil((end - begin) / settings.batch_size)
    steps = min(steps, settings.steps) if settings.steps else steps
    samples = 0
    begin_s = time.perf_counter()
    with ProgressView(title=f"train {settings.model}", steps=steps) as view:

        def report(step: StepReport) -> None:
            nonlocal samples
            samples += step.batch.num_samples
            view.update(step, queue_depth=mode.client.queue_depth)
            on_step(step)

        num_steps = train(
            model,
            passes(data, epochs=settings.epochs, begin=begin, end=end),
            optimizer=optimizer,
            mode=mode,
            prefetch=settings.prefetch,
            steps_max=settings.steps,
            on_step=report,
        )
    seconds = time.perf_counter() - begin_s
    return {
        "steps": num_steps,
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds if seconds else 0.0,
        "comm_share": model.bag.comm.total_s / seconds if seconds else 0.0,
        "train_auc": finite(view.auc),
    }


def _score(model: CtrModel, optimizer: DenseStep, data: Data) -> Score | None:
    """Return how good the model is on the held-out rows, with the weights that are on the servers."""
    if not data.has_held_out:
        return None
    if isinstance(optimizer, DenseOnServers):
        optimizer.take_latest()
    return score(model, data.held_out())


def _refuse_unbuilt(settings: RunSettings) -> None:
    """Refuse, before anything starts, what no part of this release does yet.

    Raises:
        pserver.ConfigError: the setting, and what works.
    """
    strategy = settings.strategy()
    for name, value in strategy.in_force().items():
        works = _BUILT.get(name)
        if works is not None and value not in works:
            shown = " or ".join(map(str, works))
            raise pserver.ConfigError(f"{name} {value}: not there yet; only {shown} works")
    if settings.trainers > 1 and settings.trainer_id is None:
        raise pserver.ConfigError(
            f"trainers {settings.trainers}: give trainer_id; starting all of them is not there yet"
        )


def _summary(
    settings: RunSettings,
    data: Data,
    client: pserver.Client,
    held_out: Score | None,
    *,
    figures: dict[str, float | int | None],
) -> Summary:
    """Return the figures of a run."""
    tables = [t for stats in client.stats() for t in stats.tables if t.table == TABLE]
    rows = sum(table.rows for table in tables)
    num_bytes = sum(table.bytes for table in tables)
    return Summary(
        model=settings.model,
        data=data.source,
        device=str(choose_device(settings.device)),
        shards=client.num_shards,
        auc=finite(held_out.auc) if held_out else None,
        log_loss=finite(held_out.log_loss) if held_out else None,
        auc_ceiling=finite(held_out.auc_ceiling) if held_out else None,
        eval_samples=held_out.samples if held_out else 0,
        rows=rows,
        bytes_per_row=num_bytes / rows if rows else None,
        retries=client.retries,
        bad_lines=data.bad_lines,
        first_bad_lines=data.first_bad_lines,
        **figures,  # type: ignore[arg-type]
    )
