"""The settings of how the dense part computes: optimizer, device, what is shared or computed again, half floats.

Rooms before and after: ``config`` inherits the fields, so that each is a flag, a variable and a TOML key of
``trainer run``, and calls ``refuse_idle_computing``; ``split`` says which of them a role reads; ``aliases_dense``
brings PaddlePaddle's ``sharding_configs``, ``recompute_configs`` and ``amp_configs``; ``job`` acts on them.

What always holds: what is accepted has an effect; what denies another setting is refused with both names.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from pserver import Settings

if TYPE_CHECKING:
    from trainer.config import RunSettings

SHARDING: Final = ("sharding_stage", "sharding_degree", "offload")

SCALING: Final = ("amp_scale", "amp_grow_every", "amp_grow_by", "amp_shrink_after", "amp_shrink_by")
"""Knobs of the scale of the loss, which only float16 has."""

_BUCKETS: Final = (
    *("allreduce", "inter_nranks", "fuse_grad_mb", "last_group_mb", "wire"),
    *("accumulate", "accumulate_avg", "local_sgd_steps"),
)
"""Knobs of averages in buckets; a shared optimizer sums all gradients at once, around the ring."""


class ComputingSettings(Settings):
    """How the dense part is stepped, what a trainer holds of it, and in what it computes."""

    dense_optimizer: Annotated[
        str, Field(description="rule of the dense part: sgd, adagrad or adam")
    ] = "adam:lr=0.001"
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="of the dense part")] = (
        "auto"
    )
    sharding_stage: Annotated[
        int | None,
        Field(
            ge=1,
            le=3,
            description="what trainers share of the dense part: 1 optimizer state, 2 gradients too, 3 "
            "parameters too; none: nothing (dense allreduce, or stages with several pipelines)",
        ),
    ] = None
    sharding_degree: Annotated[
        int | None,
        Field(
            ge=1,
            le=1024,
            description="trainers that share one copy; none: all that have the same part of the model",
        ),
    ] = None
    offload: Annotated[
        bool,
        Field(
            description="keep what a trainer holds in host memory (sharding_stage 3, device cuda)"
        ),
    ] = False
    recompute: Annotated[
        str | None,
        Field(
            description="NAME,... of layers whose inner values are computed again in backward, not kept"
        ),
    ] = None
    amp: Annotated[
        Literal["off", "bf16", "fp16"],
        Field(description="half floats that layers compute in; fp16 scales the loss"),
    ] = "off"
    amp_scale: Annotated[
        float,
        Field(
            ge=1.0, le=2.0**40, allow_inf_nan=False, description="of the loss, at first (amp fp16)"
        ),
    ] = 2.0**15
    amp_grow_every: Annotated[
        int,
        Field(
            ge=0,
            le=10**9,
            description="steps without overflow until the scale grows; 0: it stays (amp fp16)",
        ),
    ] = 1000
    amp_grow_by: Annotated[
        float, Field(gt=1.0, le=1024.0, description="factor that it grows by (amp fp16)")
    ] = 2.0
    amp_shrink_after: Annotated[
        int,
        Field(ge=1, le=10**6, description="overflows in a row until the scale shrinks (amp fp16)"),
    ] = 1
    amp_shrink_by: Annotated[
        float, Field(gt=0.0, lt=1.0, description="factor that it shrinks by (amp fp16)")
    ] = 0.5


def layer_names(settings: "RunSettings") -> list[str]:
    """Return the names of the layers that are computed again."""
    return [name.strip() for name in (settings.recompute or "").split(",") if name.strip()]


def sharding_degree(settings: "RunSettings") -> int:
    """Return how many trainers share one optimizer; 1: none does."""
    if settings.sharding_stage is None:
        return 1
    return settings.sharding_degree or _copies(settings)


def refuse_idle_computing(settings: "RunSettings") -> None:
    """Refuse settings that nothing reads beside the others, and those that deny each other.

    Raises:
        ValueError: naming both, and what to do instead.
    """
    for is_idle, text in (*_sharding(settings), *_recompute(settings), *_amp(settings)):
        if is_idle:
            raise ValueError(text)


def _copies(settings: "RunSettings") -> int:
    """Return how many trainers have the same part of the dense part."""
    return settings.trainers // (settings.stages // settings.virtual)


def _sharding(settings: "RunSettings") -> Iterator[tuple[bool, str]]:
    """Yield whether a setting of sharing is idle or denied, and what to say."""
    given, stage, copies = settings.model_fields_set, settings.sharding_stage, _copies(settings)
    for name in ("sharding_degree", "offload"):
        if stage is None and name in given:
            yield True, f"{name} has no effect without sharding_stage"
    if stage is None:
        return
    if settings.stages > 1:
        yield (
            stage == 3,
            "sharding_stage 3 and stages deny each other: layers of a stage are cut open, so none could be "
            "gathered; use sharding_stage 1 or 2",
        )
        yield (
            copies == 1,
            "sharding_stage has no effect with one pipeline, where each trainer has weights of its own; "
            f"give trainers {2 * settings.trainers} for two pipelines side by side, or leave it out",
        )
    else:
        yield (
            settings.dense != "allreduce",
            f"sharding_stage has no effect with dense {settings.dense}, only with allreduce, or with "
            "stages",
        )
        yield copies == 1, "sharding_stage has no effect with one trainer; give trainers"
        for name in _BUCKETS:
            yield (
                name in given,
                f"{name} has no effect with sharding_stage {stage}: shared optimizers sum all gradients at "
                "once, each step, around the ring",
            )
    degree = sharding_degree(settings)
    yield (
        copies % degree > 0,
        f"sharding_degree must divide the trainers that have the same part of the model, which are "
        f"{copies}, got {degree}",
    )
    yield (
        "check_every" in given and stage == 3 and degree == copies,
        "check_every has no effect with sharding_stage 3 and one copy: no two trainers have the same "
        "values; give sharding_degree",
    )
    yield from _offload(settings)


def _offload(settings: "RunSettings") -> Iterator[tuple[bool, str]]:
    if not settings.offload:
        return
    stage = settings.sharding_stage
    yield (
        stage != 3,
        f"offload has no effect with sharding_stage {stage}, which keeps all in host memory; only with 3",
    )
    yield (
        settings.device == "cpu",
        "offload has no effect with device cpu, where all is in host memory; give device cuda",
    )


def _recompute(settings: "RunSettings") -> Iterator[tuple[bool, str]]:
    yield (
        settings.recompute is not None and not layer_names(settings),
        f"recompute must name layers, such as mlp, got {settings.recompute!r}",
    )
    yield (
        settings.recompute is not None and settings.schedule == "zero_bubble",
        "recompute and schedule zero_bubble deny each other: it walks backward twice, and what is computed "
        "again is there once; use 1f1b",
    )


def _amp(settings: "RunSettings") -> Iterator[tuple[bool, str]]:
    for name in SCALING:
        yield (
            name in settings.model_fields_set and settings.amp != "fp16",
            f"{name} has no effect with amp {settings.amp}, only with fp16: others need no scale",
        )
    if settings.amp != "fp16":
        return
    yield (
        settings.role == "dense",
        "amp fp16 and role dense deny each other: embedding trainers push before it is known whether the step "
        "is made; use amp bf16",
    )
    yield (
        settings.accumulate > 1,
        "amp fp16 and accumulate deny each other: rows leave with each batch, before it is known "
        "whether the step is made; use amp bf16",
    )
    yield (
        settings.local_sgd_steps is not None,
        "amp fp16 and local_sgd_steps deny each other: trainers that skip steps of their own would "
        "average unlike steps; use amp bf16",
    )
