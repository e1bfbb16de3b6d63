"""How trainers work together: one frozen object, with each knob's name, range and default.

Rooms before and after: ``config`` inherits its fields, so that each is a flag, a variable and a
TOML key of ``trainer run``; ``aliases`` brings other systems' names; ``modes`` acts on it.

What always holds:
    * A knob that the chosen mode does not read is refused when it is given, default or not, with
      the modes that do read it. So what is accepted has an effect.
    * The mode is what was asked for, or ``async``; no other knob changes it.
    * Knobs of ``dense`` ``allreduce`` are refused with another ``dense``.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from pserver import ClientSettings, GroupSettings, Settings

Mode = Literal["sync", "async", "half_async", "geo"]

_READ_IN: Final[dict[str, tuple[Mode, ...]]] = {
    "sync_divisor": ("sync",),
    "on_missing": ("sync",),
    "deterministic": ("sync",),
    "staleness_lr": ("async", "half_async"),
    "on_restart": ("async", "half_async"),
    "on_full": ("async",),
    "flush_interval_ms": ("half_async",),
    "max_merge_num": ("async", "half_async"),
    "merge": ("async", "half_async"),
    "k_steps": ("geo",),
    "geo_average": ("geo",),
    "geo_cache_rows": ("geo",),
}
"""The modes that read a knob; every mode reads those that are not named here."""

ALLREDUCE: Final = (
    "allreduce",
    "inter_nranks",
    "fuse_grad_mb",
    "last_group_mb",
    "wire",
    "accumulate",
    "accumulate_avg",
    "local_sgd_steps",
    "allreduce_timeout",
    "check_every",
)
"""Knobs that only a dense part that is averaged over the trainers reads."""

_MERGING = ("max_merge_num", "merge")
"""Knobs that async reads only if it merges at all."""


class Strategy(Settings):
    """The mode and its knobs. Immutable.

    sync: rounds; each is applied once, when every trainer's part is in. async: a push is applied
    when it arrives. half_async: a trainer adds up a group of batches and pushes them as one. geo:
    a trainer trains a local copy and exchanges differences.

    Raises:
        pserver.ConfigError: by ``Strategy.make``: a name is unknown, a value out of range, or the
            mode does not read a knob. ``Strategy(...)`` raises pydantic's ValidationError.

    >>> Strategy(mode="geo", k_steps=100).k_steps
    100
    """

    mode: Annotated[Mode, Field(description="how trainers' pushes come together")] = "async"
    sync_divisor: Annotated[
        Literal["contributors", "registered", "samples"],
        Field(description="what a round's summed gradients are divided by (sync)"),
    ] = "contributors"
    max_staleness: Annotated[
        int | None,
        Field(
            ge=0,
            le=1 << 40,
            description="steps that a trainer may be ahead of the slowest; none: any number",
        ),
    ] = None
    staleness_lr: Annotated[
        Literal["none", "inverse"],
        Field(
            description="inverse: a push that is s versions old counts 1 / (1 + s) (async, half_async)"
        ),
    ] = "none"
    k_steps: Annotated[
        int, Field(ge=1, le=10**6, description="batches between two exchanges (geo)")
    ] = 400
    geo_average: Annotated[
        Literal["trainers", "none"],
        Field(description="what a difference is divided by: the trainers there are, or 1 (geo)"),
    ] = "trainers"
    geo_cache_rows: Annotated[
        int,
        Field(
            ge=1,
            le=2**31 - 1,
            description="rows of a table that a trainer keeps; the others are fetched (geo)",
        ),
    ] = 1 << 22
    max_merge_num: Annotated[
        int,
        Field(
            ge=1,
            le=65536,
            description="batches that become one push at the most (half_async; async on_full merge)",
        ),
    ] = 20
    merge: Annotated[
        Literal["sum", "mean"],
        Field(description="how batches become one push (half_async; async on_full merge)"),
    ] = "sum"
    send_queue_size: Annotated[
        int, Field(ge=1, le=65536, description="requests to one shard that may wait or be open")
    ] = ClientSettings().send_queue_size
    send_queue_bytes: Annotated[
        int, Field(ge=1, le=1 << 40, description="bytes to one shard that may wait or be open")
    ] = ClientSettings().send_queue_bytes
    flush_interval_ms: Annotated[
        int,
        Field(
            ge=1,
            le=3_600_000,
            description="age at which a group leaves though not full (half_async)",
        ),
    ] = 50
    prefetch: Annotated[
        int,
        Field(ge=0, le=64, description="batches whose rows are pulled ahead of their step"),
    ] = 1
    on_full: Annotated[
        Literal["wait", "merge"],
        Field(description="when the send queue is full: wait, or add to what waits there (async)"),
    ] = "wait"
    barrier_timeout: Annotated[
        float,
        Field(
            gt=0.0,
            le=86400.0,
            description="seconds that trainers wait for each other, and for servers that start",
        ),
    ] = 300.0
    lease_s: Annotated[
        float,
        Field(
            gt=0.0, le=3600.0, description="seconds unheard of after which a trainer counts as gone"
        ),
    ] = GroupSettings().lease_s
    on_missing: Annotated[
        Literal["fail", "drop", "wait"],
        Field(description="when a trainer is missing after that: end, go on without, wait (sync)"),
    ] = "fail"
    give_up_after: Annotated[
        float,
        Field(gt=0.0, le=86400.0, description="seconds a pull or push may take, with retries"),
    ] = 1800.0
    promote_after: Annotated[
        float | None,
        Field(
            gt=0.0,
            le=86400.0,
            description="seconds without an answer after which a server's standby is told to take its "
            "place; none: never",
        ),
    ] = None
    retry: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="failed tries of a request before a warning names the server; they go on",
        ),
    ] = ClientSettings().retry
    on_restart: Annotated[
        Literal["fail", "go_on"],
        Field(
            description="when a server comes back without what it held: end, or make its tables anew "
            "and tell what was lost (async, half_async)"
        ),
    ] = ClientSettings().on_restart
    deterministic: Annotated[
        bool,
        Field(description="refuse what would make two runs differ in a bit, in torch too (sync)"),
    ] = False
    dense: Annotated[
        Literal["pserver", "local", "allreduce"],
        Field(
            description="where the dense part lives: on the servers, in this process, or in every "
            "trainer with gradients averaged over all"
        ),
    ] = "local"
    allreduce: Annotated[
        Literal["auto", "torch", "ring", "hierarchical"],
        Field(description="how trainers sum; auto: as is measured to be fastest (dense allreduce)"),
    ] = "auto"
    inter_nranks: Annotated[
        int | None,
        Field(ge=1, le=1024, description="trainers of a node, for hierarchical (dense allreduce)"),
    ] = None
    fuse_grad_mb: Annotated[
        float,
        Field(gt=0.0, le=4096.0, description="MiB of gradients summed as one (dense allreduce)"),
    ] = 32.0
    last_group_mb: Annotated[
        float,
        Field(gt=0.0, le=4096.0, description="MiB of those that leave last (dense allreduce)"),
    ] = 1.0
    wire: Annotated[
        Literal["float32", "bfloat16"],
        Field(description="what gradients travel as between trainers (dense allreduce)"),
    ] = "float32"
    accumulate: Annotated[
        int,
        Field(
            ge=1,
            le=65536,
            description="batches whose dense gradients are added to one step (dense allreduce)",
        ),
    ] = 1
    accumulate_avg: Annotated[
        bool, Field(description="take their mean instead of their sum (dense allreduce)")
    ] = False
    local_sgd_steps: Annotated[
        int | None,
        Field(
            ge=1,
            le=10**6,
            description="average parameters every N steps, instead of gradients (dense allreduce)",
        ),
    ] = None
    allreduce_timeout: Annotated[
        float,
        Field(gt=0.0, le=86400.0, description="seconds a sum waits for others (dense allreduce)"),
    ] = 1800.0
    check_every: Annotated[
        int,
        Field(
            ge=0,
            le=10**9,
            description="averages between two comparisons of all trainers' parameters; 0: none "
            "(dense allreduce; stages, where losses are compared too)",
        ),
    ] = 1000
    clip_norm: Annotated[
        float | None,
        Field(
            gt=0.0,
            allow_inf_nan=False,
            description="global norm, sparse and dense, that a gradient is cut to; none: not cut",
        ),
    ] = None

    @model_validator(mode="after")
    def _refuse_idle(self) -> Self:
        """Refuse knobs that this mode would not read, and those that deny each other."""
        for name, modes in _READ_IN.items():
            if name in self.model_fields_set and self.mode not in modes:
                raise ValueError(
                    f"{name} has no effect in mode {self.mode}, only in {' and '.join(modes)}; "
                    "leave it out or change the mode"
                )
        for name in _MERGING:
            if name in self.model_fields_set and (self.mode, self.on_full) == ("async", "wait"):
                raise ValueError(
                    f"{name} has no effect in mode async with on_full wait; give on_full merge, "
                    "or mode half_async, or leave it out"
                )
        if self.deterministic and self.on_missing == "drop":
            raise ValueError(
                "deterministic and on_missing drop deny each other: who is dropped depends on the "
                "clock; use on_missing fail or wait"
            )
        self._refuse_idle_allreduce()
        return self

    def _refuse_idle_allreduce(self) -> None:
        """Refuse knobs of dense allreduce that nothing would read, and what denies it."""
        given = self.model_fields_set
        if self.dense != "allreduce":
            for name in ALLREDUCE:
                if name in given and not self.reads_anyway(name):
                    raise ValueError(
                        f"{name} has no effect with dense {self.dense}, only with allreduce"
                    )
            return
        for is_idle, text in (
            (
                "inter_nranks" in given and self.allreduce in ("torch", "ring"),
                f"inter_nranks has no effect with allreduce {self.allreduce}; leave it out",
            ),
            (
                self.allreduce == "hierarchical" and self.inter_nranks is None,
                "allreduce hierarchical needs inter_nranks, the trainers of a node",
            ),
            (
                self.wire != "float32" and self.allreduce == "torch",
                f"wire {self.wire} has no effect with allreduce torch; use ring or hierarchical",
            ),
            (
                self.accumulate_avg and self.accumulate == 1,
                "accumulate_avg has no effect with accumulate 1",
            ),
            (
                self.local_sgd_steps is not None and ("accumulate" in given),
                "accumulate has no effect with local_sgd_steps: no gradients are averaged",
            ),
            (
                self.local_sgd_steps is not None and "last_group_mb" in given,
                "last_group_mb has no effect with local_sgd_steps: nothing leaves in backward",
            ),
            (
                self.accumulate > 1 and self.clip_norm is not None,
                "clip_norm and accumulate deny each other: rows leave with each batch, before the "
                "norm of all of them is known",
            ),
            (
                self.max_staleness is not None,
                "max_staleness and dense allreduce deny each other: a trainer that waits for slow "
                "ones would wait for those that wait for its sum; they go step by step anyway",
            ),
            (
                self.on_missing != "fail",
                f"on_missing {self.on_missing} and dense allreduce deny each other: a sum needs "
                "every trainer",
            ),
        ):
            if is_idle:
                raise ValueError(text)

    def reads_anyway(self, name: str) -> bool:
        """Return whether a knob of ``dense`` ``allreduce`` is read with another ``dense`` too."""
        del name
        return False

    def in_force(self) -> dict[str, object]:
        """Return the knobs that this mode reads, with their values, by name.

        >>> "k_steps" in Strategy().in_force(), "k_steps" in Strategy(mode="geo").in_force()
        (False, True)
        """
        merges = (self.mode, self.on_full) != ("async", "wait")
        return {
            name: getattr(self, name)
            for name in Strategy.model_fields
            if self.mode in _READ_IN.get(name, (self.mode,))
            and (merges or name not in _MERGING)
            and (self.dense == "allreduce" or name not in ALLREDUCE)
        }
