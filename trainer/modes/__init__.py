"""How trainers work together, one module a mode; ``base`` is the seam.

Rooms before and after: ``job`` makes a mode from the ``Strategy``; ``embedding`` and ``loop`` use it.
"""

import pserver
from trainer.modes.asynchronous import AsyncMode
from trainer.modes.base import Gradients, Mode, Pending, Rows, StepGradients
from trainer.modes.geo import GeoMode
from trainer.modes.half_async import HalfAsyncMode
from trainer.modes.synchronous import SyncMode
from trainer.strategy import Strategy

__all__ = [
    "AsyncMode",
    "GeoMode",
    "Gradients",
    "HalfAsyncMode",
    "Mode",
    "Pending",
    "Rows",
    "StepGradients",
    "SyncMode",
    "make_mode",
]


def make_mode(
    client: pserver.Client, strategy: Strategy, *, trainer_id: int = 0, trainers: int = 1
) -> Mode:
    """Return the mode that a strategy names, its group joined.

    Args:
        client: the connection; not closed by the mode.
        strategy: the mode and its knobs.
        trainer_id: from 0; one process each.
        trainers: of the job.

    Raises:
        pserver.ConfigError: the ids do not fit.
        pserver.GroupError: another trainer has the id, or the group agrees on something else.
    """
    settings = pserver.GroupSettings.make(
        {
            "mode": strategy.mode,
            "trainer_id": trainer_id,
            "trainers": trainers,
            "sync_divisor": strategy.sync_divisor,
            "on_missing": strategy.on_missing,
            "barrier_timeout": strategy.barrier_timeout,
            "max_staleness": strategy.max_staleness,
            "staleness_lr": strategy.staleness_lr,
            "lease_s": strategy.lease_s,
        },
        origins={},
    )
    clip_norm = strategy.clip_norm
    if strategy.mode == "sync":
        return SyncMode(client, settings, clip_norm=clip_norm)
    if strategy.mode == "async":
        most = strategy.max_merge_num if strategy.on_full == "merge" else 1
        return AsyncMode(
            client, settings, clip_norm=clip_norm, max_merge_num=most, merge=strategy.merge
        )
    if strategy.mode == "half_async":
        return HalfAsyncMode(
            client,
            settings,
            clip_norm=clip_norm,
            max_merge_num=strategy.max_merge_num,
            merge=strategy.merge,
            flush_interval_s=strategy.flush_interval_ms / 1e3,
        )
    return GeoMode(client, settings, strategy)
