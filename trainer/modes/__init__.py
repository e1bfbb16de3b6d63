"""How trainers work together, one module a mode; ``base`` is the seam.

Rooms before and after: ``job`` makes a mode from the ``Strategy``; ``embedding`` and ``loop`` use it.
"""

import pserver
from trainer.modes.asynchronous import AsyncMode
from trainer.modes.base import Gradients, Mode, Pending, Rows, StepGradients
from trainer.strategy import Strategy

__all__ = ["AsyncMode", "Gradients", "Mode", "Pending", "Rows", "StepGradients", "make_mode"]


def make_mode(
    client: pserver.Client, strategy: Strategy, *, trainer_id: int = 0, trainers: int = 1
) -> Mode:
    """Return the mode that a strategy names.

    Args:
        client: the connection; not closed by the mode.
        strategy: the mode and its knobs.
        trainer_id: from 0; one process each.
        trainers: of the job.

    Raises:
        pserver.ConfigError: the ids do not fit, or the mode is not there yet.
    """
    if not 0 <= trainer_id < trainers:
        raise pserver.ConfigError(
            f"trainer_id must be in [0, {trainers - 1}] with {trainers} trainers, got {trainer_id}"
        )
    if strategy.mode != "async":
        raise pserver.ConfigError(f"mode {strategy.mode} is not there yet; use async")
    return AsyncMode(client, clip_norm=strategy.clip_norm)
