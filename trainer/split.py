"""The settings of a run whose model is split over trainers: by role.

Rooms before and after: ``config`` inherits the fields, so that each is a flag, a variable and a TOML key of
``trainer run``, and calls ``refuse_idle``; ``dense_elsewhere`` and ``job_dense`` act on them.

What always holds: a setting that nothing reads in the role is refused when it is given, with the one to
give instead. So what is accepted has an effect.
"""

import math
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from pserver import Settings, nearest
from trainer.strategy import ALLREDUCE

if TYPE_CHECKING:
    from trainer.config import RunSettings

MICRO_BATCHES = 4
"""Of a batch when nothing is said."""

_ONLY_EMBED = ("next",)
_ONLY_DENSE = ("listen", "stage_queue_bytes")
_ONLY_SPLIT = ("micro_batch_size", "accumulate_steps")

_THERE = "give it to the trainers with role dense"

_IDLE_IN_EMBED: Final = {
    "listen": "it connects, so give next",
    "stage_queue_bytes": _THERE,
    "dense": "the dense part is in the trainers with role dense",
    "dense_optimizer": f"{_THERE}; the table's is optimizer",
    "device": f"{_THERE}; rows are pooled on the CPU",
    "clip_norm": "the norm of rows and dense part is known in no one place",
    "checkpoint_every": "the dense part is elsewhere; `pserver checkpoint save` saves the tables",
    "resume": "the dense part is elsewhere",
    "max_staleness": "all trainers go step by step with the dense ones",
    "master": f"{_THERE}, who meet there",
    "master_store": f"{_THERE}, who meet there",
}
"""What nothing reads where the dense part is not, and what to do."""

_READ_IN_DENSE: Final = (
    *("role", "listen", "stage_queue_bytes", "model", "dim", "dense_optimizer", "seed", "device"),
    *("threads", "trainers", "trainer_id", "master", "master_store", "barrier_timeout"),
)

_INSTEAD: Final = {"next": "listen", "optimizer": "dense_optimizer", "ps": "listen"}
"""What somebody may have meant in role dense, where the nearest name is another one."""


class SplitSettings(Settings):
    """Which part of the model this trainer has."""

    role: Annotated[
        Literal["all", "embed", "dense"],
        Field(
            description="what this trainer has of the model: all, the rows and their pooling, or the "
            "dense part for trainers with role embed"
        ),
    ] = "all"
    next: Annotated[
        str | None,
        Field(
            description="HOST:PORT,... at which all trainers with role dense listen (role embed)"
        ),
    ] = None
    listen: Annotated[
        str | None,
        Field(
            description="HOST:PORT for trainers with role embed; port 0: a free one (role dense)"
        ),
    ] = None
    micro_batch_size: Annotated[
        int | None,
        Field(ge=1, le=1 << 20, description="samples of a micro-batch; none: by accumulate_steps"),
    ] = None
    accumulate_steps: Annotated[
        int | None,
        Field(
            ge=1,
            le=4096,
            description=f"micro-batches of a batch; none: by micro_batch_size, or {MICRO_BATCHES}",
        ),
    ] = None
    stage_queue_bytes: Annotated[
        int,
        Field(
            ge=1, le=1 << 40, description="bytes of micro-batches that may wait to be computed on"
        ),
    ] = 1 << 30


def micro_batches(settings: "RunSettings") -> int:
    """Return into how many micro-batches a batch is split."""
    if settings.micro_batch_size is None:
        return settings.accumulate_steps or MICRO_BATCHES
    return math.ceil(settings.batch_size / settings.micro_batch_size)


def reads(settings: "RunSettings", name: str) -> bool:
    """Return whether a run reads a setting, as far as its role says."""
    if settings.role == "dense":
        return name in _READ_IN_DENSE
    if settings.role == "embed":
        return name not in _IDLE_IN_EMBED and name not in ALLREDUCE
    return name not in (*_ONLY_EMBED, *_ONLY_DENSE, *_ONLY_SPLIT)


def in_force(settings: "RunSettings") -> dict[str, object]:
    """Return the knobs of the strategy that a run reads, and where its dense part is."""
    knobs = {n: v for n, v in settings.strategy().in_force().items() if reads(settings, n)}
    return knobs if settings.role == "all" else {**knobs, "dense": "dense_trainers"}


def refuse_idle(settings: "RunSettings") -> None:
    """Refuse settings that the role does not read, and roles that lack one.

    Raises:
        ValueError: naming the setting, and what to do instead.
    """
    for name in sorted(settings.model_fields_set):
        if not reads(settings, name):
            head = f"{name} has no effect with role {settings.role}"
            raise ValueError(f"{head}{_instead(settings.role, name)}")
    _refuse_lacking(settings)


def _instead(role: str, name: str) -> str:
    if role == "all":
        return f", only with role {'dense' if name in _ONLY_DENSE else 'embed'}"
    if role == "embed":
        return f": {_IDLE_IN_EMBED.get(name, 'no trainer averages a dense part')}"
    if name in _INSTEAD:
        return f"; did you mean {_INSTEAD[name]!r}?"
    return f"; {nearest(name, _READ_IN_DENSE)}"


def _refuse_lacking(settings: "RunSettings") -> None:
    """Refuse a role that lacks what it needs, and numbers that do not fit."""
    if settings.role == "embed" and settings.next is None:
        raise ValueError("role embed needs next, the HOST:PORT,... of the trainers with role dense")
    if settings.role == "embed" and settings.data_mode == "dynamic":
        raise ValueError(
            "role embed and data_mode dynamic deny each other: a trainer that waits for the last ranges "
            "would hold up the steps of the others; use data_mode static"
        )
    size, count = settings.micro_batch_size, settings.accumulate_steps
    if size is not None and count is not None and size * count != settings.batch_size:
        raise ValueError(
            f"micro_batch_size times accumulate_steps must be batch_size, which is "
            f"{settings.batch_size}, got {size} times {count}; leave one out"
        )
    if settings.role != "dense":
        return
    if settings.listen is None:
        raise ValueError("role dense needs listen, a HOST:PORT for the trainers with role embed")
    if settings.trainers > 1 and (settings.trainer_id is None or settings.master is None):
        raise ValueError(
            "several trainers with role dense are started one by one: each needs trainer_id, a listen of "
            "its own, and master, the HOST:PORT at which they meet"
        )
