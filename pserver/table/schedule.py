"""Learning-rate schedules: the rate of a push, from how many pushes the table has applied.

Rooms before and after: the options stand in the optimizer's text, such as
``adam:lr=0.001,schedule=cosine,steps=100000,warmup=1000``; ``optimizer`` reads them and asks for
the rate before each push.

What always holds:
    * The clock is the table's ``version``: the pushes that this shard has applied. Every trainer's
      push counts, so with n trainers it runs n times as fast. A push moves it on the shards that hold
      one of its keys: with real batches on all of them, so shards agree.
    * Messages of one push see one rate, unless another trainer's push is applied between them.
    * A rate is a function of the version alone: nothing is remembered, so a restored table goes on.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pserver.table.optimizer_options import Choice, Kinds, Number, Values

PUSHES_MAX = 1e12
"""Longest schedule: at 1,000 pushes a second, 30 years."""

_STEPS = Number(None, 1, PUSHES_MAX, is_whole=True)
_END = Number(0.0, 0.0, 1e6)
_WARMUP = Number(0.0, 0, PUSHES_MAX, is_whole=True)
_PEAK = Number(None, 1, PUSHES_MAX, is_whole=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of schedule.

    Attributes:
        formula: the rate in one line, t being the pushes applied since the warm-up.
        options: what it needs beside ``lr`` and ``warmup``.
        rate: the rate from t and all options.
    """

    formula: str
    options: Kinds
    rate: Callable[[int, Mapping[str, float]], float]


def _share(t: int, o: Mapping[str, float]) -> float:
    """Return which share of ``steps`` is over, at most 1."""
    return min(t / o["steps"], 1.0)


SHAPES: Mapping[str, Shape] = {
    "constant": Shape("lr", {}, lambda _t, o: o["lr"]),
    "step": Shape(
        "lr * gamma ^ floor(t / steps)",
        {"steps": _STEPS, "gamma": Number(0.1, 0.0, 1.0)},
        lambda t, o: o["lr"] * o["gamma"] ** (t // o["steps"]),
    ),
    "exponential": Shape(
        "lr * gamma ^ (t / steps)",
        {"steps": _STEPS, "gamma": Number(0.1, 0.0, 1.0)},
        lambda t, o: o["lr"] * o["gamma"] ** (t / o["steps"]),
    ),
    "polynomial": Shape(
        "end + (lr - end) * (1 - min(t / steps, 1)) ^ power",
        {"steps": _STEPS, "end": _END, "power": Number(1.0, 0.0, 100.0)},
        lambda t, o: o["end"] + (o["lr"] - o["end"]) * (1.0 - _share(t, o)) ** o["power"],
    ),
    "cosine": Shape(
        "end + (lr - end) * (1 + cos(pi * min(t / steps, 1))) / 2",
        {"steps": _STEPS, "end": _END},
        lambda t, o: o["end"] + (o["lr"] - o["end"]) * (1.0 + math.cos(math.pi * _share(t, o))) / 2,
    ),
    "noam": Shape(
        "lr * sqrt(warmup / (t + warmup + 1)): from its peak lr at the end of the warm-up",
        {},
        lambda t, o: o["lr"] * math.sqrt(o["warmup"] / (t + o["warmup"] + 1)),
    ),
}
"""Every schedule, by the word after ``schedule=``. Source of noam: Vaswani et al., NIPS 2017, where
lr is factor * (d * warmup) ^ -0.5."""

_SCHEDULE = Choice(tuple(SHAPES))
QUIET = ("schedule", "warmup")
"""Options that are left out of the spelled-out text when they are off."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule with its numbers. Immutable."""

    word: str
    numbers: Mapping[str, float]

    def at(self, version: int) -> float:
        """Return the rate of the push that comes after ``version`` applied ones.

        >>> Schedule("step", {"lr": 1.0, "warmup": 2, "steps": 10, "gamma": 0.5}).at(0)
        0.5
        """
        warmup = int(self.numbers["warmup"])
        if version < warmup:
            return self.numbers["lr"] * (version + 1) / warmup
        return float(SHAPES[self.word].rate(version - warmup, self.numbers))

    @property
    def peak(self) -> float:
        """Return a rate that is never exceeded."""
        return max(self.numbers["lr"], self.numbers.get("end", 0.0))


def schedule_kinds(given: Mapping[str, str], *, where: str) -> Kinds:
    """Return the options of the schedule that ``given`` names, the word itself included.

    Raises:
        ConfigError: there is no such schedule.
    """
    word = _SCHEDULE.read(given.get("schedule", _SCHEDULE.default), where=f"{where}:schedule")
    warmup = _PEAK if word == "noam" else _WARMUP
    return {"schedule": _SCHEDULE, "warmup": warmup, **SHAPES[word].options}


def make_schedule(values: Values) -> Schedule:
    """Return the schedule of a rule's values: ``lr``, and what ``schedule_kinds`` named."""
    word = str(values["schedule"])
    names = ("lr", "warmup", *SHAPES[word].options)
    return Schedule(word, {name: float(values[name]) for name in names})
