"""The model of a run, its tables made, and what steps its dense part, as the settings say.

Rooms before and after: ``job`` asks once a client and a mode are there; behind this are ``EmbeddingBag``, the models, and
the ways to step a dense part.
"""

import torch

from trainer.config import RunSettings
from trainer.data import Data
from trainer.dense.elsewhere import reach_dense_trainers
from trainer.dense.in_stages import example_of, make_dense_in_stages
from trainer.dense.module import (
    choose_device,
    make_dense_module,
    make_dense_optimizer,
    make_precision,
)
from trainer.embedding import EmbeddingBag
from trainer.job.dense import run_facts
from trainer.job.meet import meet
from trainer.loop import CtrModel, DenseStep
from trainer.modes import Mode
from trainer.modes.dense import DenseOnServers
from trainer.modes.dense_buckets import make_in_buckets
from trainer.modes.dense_ranks import DenseOverRanks
from trainer.modes.dense_sharded import SharedOptimizer

TABLE = "embedding"
"""Name of the table that built-in models use."""

DENSE_TABLE = "dense"
"""Name of the dense table with the weights of their dense part."""


def make_ctr_model(mode: Mode, settings: RunSettings, data: Data) -> tuple[CtrModel, DenseStep]:
    """Return the model that the settings name, its tables made, and what steps its dense part.

    Raises:
        pserver.ConfigError: a setting cannot work.
        pserver.SpecMismatchError: the servers have the table with another spec.
    """
    device = choose_device(settings.device_here)
    dense, dim = make_dense_module(settings, data)
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
        accessor=settings.accessor,
        embedx_optimizer=settings.embedx_optimizer,
        admission=settings.admission,
        device=device,
        on_nan=settings.on_nan,
        ttl_days=settings.ttl_days,
        evict=settings.evict,
    )
    if settings.role == "embed":  # the module that was made has shown that the dim suits the model
        elsewhere = reach_dense_trainers(settings, run_facts(settings, data, dim=dim))
        return CtrModel(bag, elsewhere, device=device), elsewhere
    if settings.stages > 1:
        staged = make_dense_in_stages(
            settings, dense, example_of(data, dim=dim, samples=settings.batch_size)
        )
        return CtrModel(bag, staged, device=device, precision=staged.precision), staged
    model = CtrModel(bag, dense, device=device, precision=make_precision(settings))
    rule, strategy = settings.dense_optimizer, settings.strategy()
    if strategy.dense == "local":
        return model, make_dense_optimizer(rule, dense.parameters())
    if strategy.dense == "allreduce":
        example = example_of(data, dim=dim, samples=1)
        return model, _dense_over_ranks(mode, settings, model, example)
    return model, DenseOnServers(mode, dense.parameters(), table=DENSE_TABLE, optimizer=rule)


def _dense_over_ranks(
    mode: Mode, settings: RunSettings, model: CtrModel, example: tuple[torch.Tensor, ...]
) -> DenseOverRanks:
    """Return what averages the dense part over the trainers, as the settings say."""
    group = meet(settings, timeout_s=settings.allreduce_timeout)
    dense, scale, stage = model.dense, model.precision.scale, settings.sharding_stage
    if stage == 3:  # loads for seconds
        from trainer.modes.dense_fully_sharded import FullySharded

        return FullySharded(group, dense, example, mode=mode, settings=settings, scale=scale)
    if stage is not None:
        return SharedOptimizer(group, dense, mode=mode, settings=settings, scale=scale)
    strategy, rule = settings.strategy(), settings.dense_optimizer
    return make_in_buckets(group, dense, mode=mode, optimizer=rule, strategy=strategy, scale=scale)
