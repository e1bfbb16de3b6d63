"""One training run, from settings to summary.

Rooms before and after: ``cli`` brings settings and prints the summary; this room chooses the data,
connects, builds the model, and runs ``loop``.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import pserver
from trainer.config import RunSettings
from trainer.dataset import Batch, CriteoReader, Generator, count_rows
from trainer.dataset.criteo import SHOWN_BAD_LINES_MAX
from trainer.dense import choose_device, make_dense_optimizer
from trainer.embedding import EmbeddingBag
from trainer.errors import DataError, TrainerError
from trainer.loop import CtrModel, Score, StepReport, score, train
from trainer.model import MODELS, make_model
from trainer.progress import ProgressView

GENERATED_HELD_OUT_ROWS = 200_000
"""Held-out rows of generated data when nothing is said: the AUC's error is below 0.001."""

_BUILT: dict[str, tuple[object, ...]] = {
    "mode": ("async",),
    "max_staleness": (None,),
    "staleness_lr": ("none",),
    "on_full": ("wait",),
    "dense": ("local",),
    "clip_norm": (None,),
}
"""What works, of the knobs of a strategy of which not all does yet."""

TABLE = "embedding"
"""Name of the table that built-in models use."""


@dataclass(frozen=True, slots=True)
class Data:
    """The rows of a run.

    Attributes:
        train: makes one pass over the training rows.
        held_out: makes one pass over the held-out rows; None if there are none.
        rows: training rows of a pass, bad lines included.
        num_slots: of a sample.
        num_dense: of a sample.
        source: what the summary calls it.
    """

    train: Callable[[], Iterable[Batch]]
    held_out: Callable[[], Iterable[Batch]] | None
    rows: int
    num_slots: int
    num_dense: int
    source: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Every figure of a run; ``trainer run --json`` prints it as one object.

    Attributes:
        model, data, device, shards: what ran on what.
        steps, samples: trained.
        seconds: of training, without start-up and scoring.
        samples_per_s: trained samples a second.
        comm_share: share of the training time that the training thread waited for pulls, or
            split and queued pulls and pushes.
        train_auc: of the predictions made during training, each before its row was trained on.
        auc, log_loss: on the held-out rows; None if there are none.
        auc_ceiling: the best possible AUC on those rows, where it is known.
        eval_samples: held-out rows.
        rows: rows of the table over all shards.
        bytes_per_row: weights, state, epoch and index; None while there are no rows.
        retries: requests that had to be sent again.
        bad_lines: lines skipped in the last pass over the training rows, and in the held-out ones.
        first_bad_lines: the first five of those, as file:line and reason.
    """

    model: str
    data: str
    device: str
    shards: int
    steps: int
    samples: int
    seconds: float
    samples_per_s: float
    comm_share: float
    train_auc: float | None
    auc: float | None
    log_loss: float | None
    auc_ceiling: float | None
    eval_samples: int
    rows: int
    bytes_per_row: float | None
    retries: int
    bad_lines: int
    first_bad_lines: list[str]

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, all of them representable in JSON."""
        return dataclasses.asdict(self)


def choose_data(settings: RunSettings) -> tuple[Data, list[CriteoReader]]:
    """Return the rows of a run, and the readers whose counts of bad lines are of interest.

    Raises:
        DataError: a file is missing, or has no rows to train on.
    """
    if settings.data is None:
        return _generated(settings), []
    return _criteo(settings, settings.data)


def _generated(settings: RunSettings) -> Data:
    """Return generated rows; the held-out ones follow the training rows."""
    held_out_rows = settings.eval_last or GENERATED_HELD_OUT_ROWS
    rows = settings.rows

    def make(skip_rows: int, until: int) -> Generator:
        return Generator(
            settings.seed,
            batch_size=settings.batch_size,
            rows=until,
            skip_rows=skip_rows,
            alpha=settings.alpha,
            scale=settings.scale,
        )

    sample = make(0, 1).batch(0, rows=1)
    return Data(
        train=lambda: make(0, rows),
        held_out=lambda: make(rows, rows + held_out_rows),
        rows=rows,
        num_slots=sample.num_slots,
        num_dense=sample.dense.shape[1],
        source=f"generated, {rows:,} rows",
    )


def _criteo(settings: RunSettings, path: str) -> tuple[Data, list[CriteoReader]]:
    """Return the rows of Criteo files."""
    for name in (path, settings.eval_data):
        if name is not None and Path(name).is_fifo():
            raise DataError(
                f"{name}: must be a file, not a pipe: it is read more than once (rows are counted "
                "first); write a pipe's output to a file"
            )
    total = count_rows(path)
    held_out_rows = settings.eval_last or 0
    rows = total - held_out_rows
    if rows < 1:
        held = f", of which the last {held_out_rows} are held out" if held_out_rows else ""
        raise DataError(f"{path}: {total} rows{held}: nothing is left to train on")
    readers = [_reader(settings, path, rows_max=rows)]
    if settings.eval_data is not None:
        if count_rows(settings.eval_data) < 1:
            raise DataError(f"{settings.eval_data}: 0 rows: nothing to score")
        readers.append(_reader(settings, settings.eval_data))
    elif held_out_rows:
        readers.append(_reader(settings, path, skip_rows=rows))
    data = Data(
        train=lambda: readers[0],
        held_out=(lambda: readers[1]) if len(readers) > 1 else None,
        rows=rows,
        num_slots=26,
        num_dense=13,
        source=f"{path}, {rows:,} rows",
    )
    return data, readers


def _reader(
    settings: RunSettings, path: str, *, skip_rows: int = 0, rows_max: int | None = None
) -> CriteoReader:
    return CriteoReader(
        path,
        batch_size=settings.batch_size,
        skip_rows=skip_rows,
        rows_max=rows_max,
        bad_lines=settings.bad_lines,
    )


def _epochs(data: Data, epochs: int) -> Iterator[Batch]:
    """Yield the batches of all passes."""
    for _ in range(epochs):
        yield from data.train()


def _connect(settings: RunSettings) -> pserver.Client:
    """Return a client of the servers, or of embedded shards."""
    if settings.ps is None:
        return pserver.embedded(settings.shards, settings=settings.client_settings())
    return pserver.connect(settings.ps, settings=settings.client_settings())


def make_ctr_model(
    client: pserver.Client, settings: RunSettings, data: Data
) -> tuple[CtrModel, torch.optim.Optimizer]:
    """Return the model that the settings name, its table made, and its dense optimizer.

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
    optimizer = make_dense_optimizer(settings.dense_optimizer, dense.to(device).parameters())
    bag = EmbeddingBag(
        client,
        TABLE,
        dim=dim,
        pooling="sum",
        optimizer=settings.optimizer,
        initializer=settings.initializer,
        seed=settings.seed,
        device=device,
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
    data, readers = choose_data(settings)
    with _connect(settings) as client:
        model, optimizer = make_ctr_model(client, settings, data)
        steps = settings.epochs * math.ceil(data.rows / settings.batch_size)
        steps = min(steps, settings.steps) if settings.steps else steps
        samples = 0
        begin = time.perf_counter()
        with ProgressView(title=f"train {settings.model}", steps=steps) as view:

            def report(step: StepReport) -> None:
                nonlocal samples
                samples += step.batch.num_samples
                view.update(step, queue_depth=client.queue_depth)
                on_step(step)

            num_steps = train(
                model,
                _epochs(data, settings.epochs),
                optimizer=optimizer,
                prefetch=settings.prefetch,
                steps_max=settings.steps,
                on_step=report,
            )
        seconds = time.perf_counter() - begin
        comm_s = model.bag.comm.total_s
        held_out = score(model, data.held_out()) if data.held_out else None
        return _summary(
            settings,
            data,
            client,
            held_out,
            readers=readers,
            figures={
                "steps": num_steps,
                "samples": samples,
                "seconds": seconds,
                "samples_per_s": samples / seconds if seconds else 0.0,
                "comm_share": comm_s / seconds if seconds else 0.0,
                "train_auc": _finite(view.auc),
            },
        )


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
    if settings.trainers > 1:
        raise pserver.ConfigError(f"trainers {settings.trainers}: not there yet; only 1 works")


def _summary(
    settings: RunSettings,
    data: Data,
    client: pserver.Client,
    held_out: Score | None,
    *,
    readers: list[CriteoReader],
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
        auc=_finite(held_out.auc) if held_out else None,
        log_loss=_finite(held_out.log_loss) if held_out else None,
        auc_ceiling=_finite(held_out.auc_ceiling) if held_out else None,
        eval_samples=held_out.samples if held_out else 0,
        rows=rows,
        bytes_per_row=num_bytes / rows if rows else None,
        retries=client.retries,
        bad_lines=sum(reader.counts.bad_lines for reader in readers),
        first_bad_lines=[line for r in readers for line in r.counts.first_bad_lines][
            :SHOWN_BAD_LINES_MAX
        ],
        **figures,  # type: ignore[arg-type]
    )


def _finite(value: float | None) -> float | None:
    """Return a number that JSON can hold, or None."""
    return value if value is not None and math.isfinite(value) else None
