"""Which runs can be saved, and resumed: those whose tables and dense part of one step a version can have.

Rooms before and after: ``config`` calls it once the rest of the settings is known to fit; ``checkpoint`` acts on them.

A dense part that trainers step together is of one step with the rows in mode sync alone: there the servers' next round
waits for the trainer that saves. What always holds: a refusal says what to give instead.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainer.settings.every import Every, every_of

if TYPE_CHECKING:
    from trainer.config import RunSettings

_SAVES = "checkpoint_every and resume"


def refuse_saves(settings: "RunSettings") -> None:
    """Refuse saves of runs whose position cannot be told, whose parts differ, or that have nowhere to lie.

    Raises:
        ValueError: naming the settings, and what to do instead.
    """
    if settings.checkpoint_every is None and not settings.resume:
        if settings.checkpoint_dir is not None:
            raise ValueError("checkpoint_dir has no effect without checkpoint_every or resume")
        return
    every = None if settings.checkpoint_every is None else every_of(settings.checkpoint_every)
    for is_refused, text in (
        *_anywhere(settings),
        *_together(settings),
        *_moments(settings, every),
    ):
        if is_refused:
            raise ValueError(text)


def _anywhere(settings: "RunSettings") -> Iterator[tuple[bool, str]]:
    """Yield what no run can save."""
    yield (
        settings.ps is None and settings.checkpoint_dir is None,
        f"{_SAVES} need checkpoint_dir, or servers with one",
    )
    yield (
        settings.data_mode == "dynamic",
        f"{_SAVES} need data_mode static: who has which leased range is in no checkpoint",
    )
    yield (
        settings.mode == "geo",
        f"{_SAVES} need mode sync, async or half_async: in geo a trainer's own rows and their optimizer "
        "state are in no checkpoint; `pserver checkpoint save` saves the tables of any run",
    )


def _together(settings: "RunSettings") -> Iterator[tuple[bool, str]]:
    """Yield what cannot be saved of a dense part that trainers step together."""
    copies = settings.trainers // (settings.stages // settings.virtual)
    what = "dense allreduce" if settings.dense == "allreduce" else None
    if settings.role == "embed":
        what = "several embedding trainers"
    elif settings.stages > 1:
        what = "several pipelines"
    yield (
        what is not None and copies > 1 and settings.mode != "sync",
        f"{_SAVES} of {what} need mode sync: in {settings.mode} rows and dense part of one step would be of two",
    )
    yield (
        settings.local_sgd_steps is not None,
        f"{_SAVES} and local_sgd_steps deny each other: between averages each trainer has values and optimizer "
        "state of its own; leave local_sgd_steps out",
    )
    yield (
        settings.wire != "float32" and settings.dense == "allreduce",
        f"{_SAVES} and wire {settings.wire} deny each other: what was rounded off is added to the next step, by "
        "each trainer for itself; use wire float32",
    )


def _moments(settings: "RunSettings", every: Every | None) -> Iterator[tuple[bool, str]]:
    """Yield steps after which not all trainers save, or gradients are still being added up."""
    if every is None:
        return
    given = settings.checkpoint_every
    where = "stages" if settings.stages > 1 else f"sharding_stage {settings.sharding_stage}"
    yield (
        every.seconds > 0 and (settings.stages > 1 or settings.sharding_stage is not None),
        f"checkpoint_every must be steps with {where}, where all trainers save after the same one, got {given!r}",
    )
    added = settings.accumulate
    yield (
        settings.dense == "allreduce"
        and added > 1
        and (every.seconds > 0 or every.steps % added > 0),
        f"checkpoint_every must be a multiple of accumulate, which is {added}, since gradients of less are still "
        f"being added up, got {given!r}",
    )
