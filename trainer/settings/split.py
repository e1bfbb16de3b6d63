"""The settings of a run whose model is split over trainers: by role, or into stages of a pipeline.

Rooms before and after: ``config`` inherits the fields, so that each is a flag, a variable and a TOML key of
``trainer run``, and calls ``refuse_idle``; ``dense.elsewhere``, ``job.dense`` and ``dense.in_stages`` act on them.

What always holds: a setting that nothing reads in the role, or with one stage, is refused when it is given, with the one to
give instead. So what is accepted has an effect.
"""

import math
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from pserver import Settings, nearest
from trainer.settings.computing import SCALING, SHARDING
from trainer.strategy import ALLREDUCE

if TYPE_CHECKING:
    from trainer.config import RunSettings

MICRO_BATCHES = 4
"""Of a batch when nothing is said."""

BY_MODEL: Final = "model"
"""What ``cut`` is where the model's own ``StageEnd`` modules say it."""

_ONLY_WITH: Final = {
    "next": "role embed",
    "listen": "role dense",
    "stage_queue_bytes": "role dense, or stages above 1",
    "micro_batch_size": "role embed, or stages above 1",
    "accumulate_steps": "role embed, or stages above 1",
    "cut": "stages above 1",
    "schedule": "stages above 1",
    "virtual": "stages above 1",
}
"""What nothing reads in a run that is not split, and what it goes with."""

_ONLY_STAGES = ("cut", "schedule", "virtual")

_THERE = "give it to the trainers with role dense"

_IDLE_IN_EMBED: Final = {
    "listen": "it connects, so give next",
    "stage_queue_bytes": _THERE,
    "dense": "the dense part is in the trainers with role dense",
    "dense_optimizer": f"{_THERE}; the table's is optimizer",
    "device": f"{_THERE}; rows are pooled on the CPU",
    "clip_norm": "the norm of rows and dense part is known in no one place",
    "max_staleness": "all trainers go step by step with the dense ones",
    **dict.fromkeys(("stages", *_ONLY_STAGES), "the dense part is in the trainers with role dense"),
    **dict.fromkeys((*SHARDING, *SCALING), "the dense part is in the trainers with role dense"),
    **dict.fromkeys(("recompute", "amp"), _THERE),
}
"""What nothing reads where the dense part is not, and what to do."""

_READ_IN_DENSE: Final = (
    *("role", "listen", "stage_queue_bytes", "model", "dim", "dense_optimizer", "seed", "device"),
    *("threads", "trainers", "trainer_id", "master", "master_store", "barrier_timeout"),
    *("recompute", "amp", "metrics_bind", "metrics_token_file", "insecure_bind", "log_format"),
    *("tls_cert", "tls_key", "tls_ca"),
)

_IDLE_IN_STAGES: Final = {
    "next": "give role embed, without stages",
    "listen": "give role dense, without stages",
    "dense": "the dense part is in the stages",
    "max_staleness": "all pipelines go step by step anyway",
    **dict.fromkeys(
        ("trace", "trace_every", "otel_endpoint"),
        "only trainers that have the whole model have a trace",
    ),
}
"""What nothing reads with several stages, and what to do."""

_INSTEAD: Final = {"next": "listen", "optimizer": "dense_optimizer", "ps": "listen"}
"""What somebody may have meant in role dense, where the nearest name is another one."""

_IDLE_IN_DENSE: Final = {
    **dict.fromkeys(
        SHARDING, "each dense trainer has all of the optimizer; use dense allreduce, or stages"
    ),
    **dict.fromkeys(SCALING, "amp fp16 is no choice there; use amp bf16"),
}
"""What nothing reads in role dense, where no name is near."""


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
    stages: Annotated[
        int,
        Field(ge=1, le=256, description="parts of the dense part, in a pipeline of trainers"),
    ] = 1
    cut: Annotated[
        str | None,
        Field(
            description="NAME,... of the modules that begin stages 1, 2, ..., or model: where its "
            "StageEnd modules are; none: there, or if it has none so that bytes and time are even"
        ),
    ] = None
    schedule: Annotated[
        Literal["gpipe", "1f1b", "interleaved", "zero_bubble"],
        Field(description="who computes what when, see `trainer pipeline plan` (stages)"),
    ] = "1f1b"
    virtual: Annotated[
        int, Field(ge=1, le=256, description="stages of a trainer (schedule interleaved)")
    ] = 1
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
            ge=1, le=1 << 40, description="bytes that may wait between stages, or to be computed on"
        ),
    ] = 1 << 30


def micro_batches(settings: "RunSettings") -> int:
    """Return into how many micro-batches a batch is split."""
    if settings.micro_batch_size is None:
        return settings.accumulate_steps or MICRO_BATCHES
    return math.ceil(settings.batch_size / settings.micro_batch_size)


def cut_names(settings: "RunSettings") -> list[str]:
    """Return the names of the modules that begin stages; none if the model says where, or nothing does."""
    if settings.cut in (None, BY_MODEL):
        return []
    return [name.strip() for name in str(settings.cut).split(",")]


def reads(settings: "RunSettings", name: str) -> bool:
    """Return whether a run reads a setting, as far as its role says."""
    if settings.role == "dense":
        return name in _READ_IN_DENSE
    if settings.role == "embed":
        return name not in _IDLE_IN_EMBED and name not in ALLREDUCE
    if settings.stages > 1:
        return name not in _IDLE_IN_STAGES and (name not in ALLREDUCE or name == "check_every")
    return name not in _ONLY_WITH


def in_force(settings: "RunSettings") -> dict[str, object]:
    """Return the knobs of the strategy that a run reads, and where its dense part is."""
    knobs = {n: v for n, v in settings.strategy().in_force().items() if reads(settings, n)}
    if settings.stages > 1:
        return {**knobs, "check_every": settings.check_every, "dense": "stages"}
    return knobs if settings.role == "all" else {**knobs, "dense": "dense_trainers"}


def is_split(settings: "RunSettings") -> bool:
    """Return whether each trainer of the run has a part of the model, and needs all others."""
    return settings.role != "all" or settings.stages > 1


def stage_rank(settings: "RunSettings") -> int:
    """Return this trainer's place in its pipeline; the first has the data, the rows and the summary."""
    return (settings.trainer_id or 0) % (settings.stages // settings.virtual)


def share_of(settings: "RunSettings") -> tuple[int, int]:
    """Return which share of the rows is this trainer's, and of how many; a pipeline has one share."""
    ranks = settings.stages // settings.virtual
    return (settings.trainer_id or 0) // ranks, settings.trainers // ranks


def refuse_idle(settings: "RunSettings") -> None:
    """Refuse settings that the role does not read, and roles that lack one.

    Raises:
        ValueError: naming the setting, and what to do instead.
    """
    for name in sorted(settings.model_fields_set):
        if not reads(settings, name):
            raise ValueError(f"{name} has no effect with {_instead(settings, name)}")
    _refuse_sizes(settings)
    _refuse_lacking(settings)
    if settings.stages > 1:
        _refuse_stages(settings)


def _instead(settings: "RunSettings", name: str) -> str:
    """Return with what a setting has no effect, and what to do."""
    if settings.role != "all":
        return f"role {settings.role}{_instead_in_role(settings.role, name)}"
    if settings.stages > 1:
        return f"stages above 1: {_IDLE_IN_STAGES[name]}"
    return f"role all and one stage, only with {_ONLY_WITH[name]}"


def _instead_in_role(role: str, name: str) -> str:
    if role == "embed":
        return f": {_IDLE_IN_EMBED.get(name, 'no trainer averages a dense part')}"
    if name in _IDLE_IN_DENSE:
        return f": {_IDLE_IN_DENSE[name]}"
    if name in _INSTEAD:
        return f"; did you mean {_INSTEAD[name]!r}?"
    return f"; {nearest(name, _READ_IN_DENSE)}"


def _refuse_sizes(settings: "RunSettings") -> None:
    """Refuse micro-batches that do not make up a batch."""
    size, count = settings.micro_batch_size, settings.accumulate_steps
    if size is not None and count is not None and size * count != settings.batch_size:
        raise ValueError(
            f"micro_batch_size times accumulate_steps must be batch_size, which is "
            f"{settings.batch_size}, got {size} times {count}; leave one out"
        )


def _refuse_stages(settings: "RunSettings") -> None:
    """Refuse numbers of stages and trainers that make no pipelines."""
    stages, virtual, trainers = settings.stages, settings.virtual, settings.trainers
    if virtual > 1 and settings.schedule != "interleaved":
        raise ValueError(
            f"virtual has no effect with schedule {settings.schedule}, only with interleaved"
        )
    if stages % virtual:
        raise ValueError(f"stages must be a multiple of virtual, got {stages} and {virtual}")
    ranks = stages // virtual
    if trainers % ranks:
        raise ValueError(
            f"stages {stages} with {virtual} a trainer need trainers {ranks}, or a multiple of it for "
            f"pipelines side by side, got {trainers}"
        )
    if trainers > 1 and not settings.starts_all and settings.master is None:
        raise ValueError("stages with trainer_id need master, the HOST:PORT at which all meet")
    names = cut_names(settings)
    if names and len(names) != stages - 1:
        raise ValueError(
            f"cut must name {stages - 1} modules for {stages} stages, got {settings.cut!r}"
        )
    if settings.data_mode == "dynamic":
        raise ValueError(
            "stages and data_mode dynamic deny each other: every trainer of a pipeline reads the same "
            "rows; use data_mode static"
        )


def _refuse_lacking(settings: "RunSettings") -> None:
    """Refuse a role that lacks what it needs, and numbers that do not fit."""
    if settings.role == "embed" and settings.next is None:
        raise ValueError("role embed needs next, the HOST:PORT,... of the trainers with role dense")
    if settings.role == "embed" and settings.data_mode == "dynamic":
        raise ValueError(
            "role embed and data_mode dynamic deny each other: a trainer that waits for the last ranges "
            "would hold up the steps of the others; use data_mode static"
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
