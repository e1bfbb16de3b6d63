"""In what order each rank of a pipeline computes, worked out before anything runs.

Rooms before and after: ``pipeline_cut`` gives the stages; ``pipeline`` runs one rank's column;
``pipeline_picture`` draws the whole.

A timetable comes from playing the ranks against a clock of equal ticks: a forward pass takes one tick, a
backward pass two (one for the gradients of the inputs, one for those of the weights). A rank that is
free takes the first of what is ready: a forward while fewer micro-batches than its limit are under way,
else a backward, else gradients of weights that wait.

======================  ==================================  =======================================
schedule                stages of rank r of R               under way on rank r at most
======================  ==================================  =======================================
``gpipe``               r                                   all M, so every forward comes first
``1f1b``                r                                   R - r
``interleaved``         r, R + r, 2R + r, ... (v of them)   2 (R - r - 1) + (v - 1) R + 1
``zero_bubble``         r; gradients of weights fill gaps   R - r, and R until the weights have theirs
======================  ==================================  =======================================

What always holds: a timetable that was returned runs to its end for any speed of the ranks, with any number
of micro-batches, fewer than stages too: playing it has shown that no rank waits for another in a
circle. One that would is refused here. Immutable.

Source:
    GPipe: Huang et al. 2019. 1F1B and interleaving: Narayanan et al., PipeDream and Megatron-LM, 2021.
    Zero bubble (the form H1): Qi et al. 2023.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from collective.errors import GroupError

Kind = Literal["F", "B", "W"]
"""Forward; backward (with zero bubble of the inputs alone); backward of the weights alone."""

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

MICRO_BATCHES_MAX = 4096
"""Playing a timetable takes some microseconds for each of stages × micro-batches."""

STAGES_MAX = 256


@dataclass(frozen=True, slots=True)
class Action:
    """One piece of work of one rank.

    Attributes:
        kind: what is computed.
        stage: whose part of the model, from 0.
        micro_batch: from 0.
        start: tick at which it begins when nobody is late.
        ticks: that it takes.
    """

    kind: Kind
    stage: int
    micro_batch: int
    start: int
    ticks: int

    @property
    def end(self) -> int:
        """Return the tick at which it is done."""
        return self.start + self.ticks


@dataclass(frozen=True, slots=True)
class Timetable:
    """What every rank does, in order.

    Attributes:
        schedule: its name.
        stages: parts of the model.
        micro_batches: parts of a batch.
        columns: by rank, the actions in their order.
    """

    schedule: Schedule
    stages: int
    micro_batches: int
    columns: tuple[tuple[Action, ...], ...]

    @property
    def ticks(self) -> int:
        """Return how long a step takes."""
        return max(column[-1].end for column in self.columns)

    @property
    def bubble_share(self) -> float:
        """Return which share of the ranks' time nothing is computed in."""
        busy = sum(action.ticks for column in self.columns for action in column)
        return 1.0 - busy / (self.ticks * len(self.columns))

    @property
    def under_way(self) -> tuple[int, ...]:
        """Return by rank how many forward passes wait for their last backward pass at the most."""
        return tuple(_most_under_way(column) for column in self.columns)

    def rank_of(self, stage: int) -> int:
        """Return the rank that has a stage."""
        return stage % len(self.columns)


def bubble_formula(stages: int, micro_batches: int) -> float:
    """Return (S-1)/(M+S-1), the bubble share of gpipe and 1f1b.

    >>> bubble_formula(4, 1)
    0.75
    """
    return (stages - 1) / (micro_batches + stages - 1)


def make_timetable(
    schedule: Schedule, *, ranks: int, micro_batches: int, virtual: int = 1
) -> Timetable:
    """Work out the timetable of a schedule.

    Args:
        schedule: one of ``SCHEDULES``.
        ranks: that share the work.
        micro_batches: parts of a batch; fewer than stages work, with a larger bubble.
        virtual: stages of a rank; more than one with ``interleaved``, and only there.

    Raises:
        GroupError: numbers that make no pipeline, or ranks that would wait for each other forever.

    >>> [f"{a.kind}{a.micro_batch}" for a in make_timetable("1f1b", ranks=2, micro_batches=2).columns[0]]
    ['F0', 'F1', 'B0', 'B1']
    """
    _check(schedule, ranks=ranks, micro_batches=micro_batches, virtual=virtual)
    players = [
        _Player(rank, ranks=ranks, order=_order(schedule, rank, ranks, micro_batches, virtual))
        for rank in range(ranks)
    ]
    ends: dict[tuple[Kind, int, int], int] = {}
    last_stage = ranks * virtual - 1
    tick = 0
    while any(player.left for player in players):
        for player in players:
            player.play(tick, ends, last_stage)
        # Nothing that is done later can be ready earlier, so the next tick of interest is an end.
        later = [end for end in ends.values() if end > tick]
        if not later:
            waiting = [player.rank for player in players if player.left]
            raise GroupError(
                f"{schedule} with {ranks} ranks, {virtual} stages each and {micro_batches} "
                f"micro-batches: ranks {waiting} would wait for each other; use another schedule"
            )
        tick = min(later)
    columns = tuple(tuple(player.done) for player in players)
    return Timetable(schedule, ranks * virtual, micro_batches, columns)


def _check(schedule: str, *, ranks: int, micro_batches: int, virtual: int) -> None:
    if schedule not in SCHEDULES:
        raise GroupError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if ranks < 1 or virtual < 1 or ranks * virtual > STAGES_MAX:
        raise GroupError(
            f"a pipeline has 1 to {STAGES_MAX} stages, got {ranks} ranks with {virtual} stages each"
        )
    if not 1 <= micro_batches <= MICRO_BATCHES_MAX:
        raise GroupError(f"micro_batches must be in [1, {MICRO_BATCHES_MAX}], got {micro_batches}")
    if virtual > 1 and schedule != "interleaved":
        raise GroupError(
            f"{schedule} has one stage a rank, got {virtual}; several need interleaved"
        )


@dataclass(frozen=True, slots=True)
class _Order:
    """What one rank has to do, and how many micro-batches it may hold meanwhile."""

    forward: Sequence[tuple[int, int]]  # (stage, micro-batch)
    backward: Sequence[tuple[int, int]]
    held_to_backward: int
    held_to_weights: int
    is_split: bool = False


def _order(schedule: Schedule, rank: int, ranks: int, micro_batches: int, virtual: int) -> _Order:
    """Return one rank's order: groups of R micro-batches go through its stages one by one."""
    stages = [chunk * ranks + rank for chunk in range(virtual)]
    groups = [
        range(begin, min(begin + ranks, micro_batches)) for begin in range(0, micro_batches, ranks)
    ]
    forward = [(stage, part) for group in groups for stage in stages for part in group]
    backward = [(stage, part) for group in groups for stage in reversed(stages) for part in group]
    everything = len(forward)
    plain = _Order(forward, backward, everything, everything)
    if schedule == "gpipe":
        return plain
    if schedule == "interleaved":
        limit = 2 * (ranks - rank - 1) + (virtual - 1) * ranks + 1
        return dataclasses.replace(plain, held_to_backward=limit)
    plain = dataclasses.replace(plain, held_to_backward=ranks - rank)
    if schedule == "1f1b":
        return plain
    return dataclasses.replace(plain, held_to_weights=ranks, is_split=True)


class _Player:
    """One rank while the timetable is played. Owner: ``make_timetable``."""

    def __init__(self, rank: int, *, ranks: int, order: _Order) -> None:
        self.rank = rank
        self.done: list[Action] = []
        self._order = order
        self._ranks = ranks
        self._next: dict[Kind, int] = {"F": 0, "B": 0, "W": 0}
        self._free_at = 0

    @property
    def left(self) -> int:
        """Return how much is to be done."""
        lengths = len(self._order.forward) + len(self._order.backward) * (1 + self._order.is_split)
        return lengths - sum(self._next.values())

    def play(self, tick: int, ends: dict[tuple[Kind, int, int], int], last_stage: int) -> None:
        """Begin the first piece of work that is ready, if this rank is free."""
        if tick < self._free_at:
            return
        for kind in self._wishes():
            work = self._order.forward if kind == "F" else self._order.backward
            stage, part = work[self._next[kind]]
            needs = _needs(kind, stage, part, last_stage)
            if all(ends.get(need, tick + 1) <= tick for need in needs):
                whole = kind == "B" and not self._order.is_split
                action = Action(kind, stage, part, tick, 2 if whole else 1)
                self.done.append(action)
                self._next[kind] += 1
                self._free_at = ends[kind, stage, part] = action.end
                return

    def _wishes(self) -> list[Kind]:
        """Return what this rank may do next, what it likes best first."""
        order, done = self._order, self._next
        wishes: list[Kind] = []
        held = done["F"] - done["B"]
        whole = done["F"] - done["W"] if order.is_split else 0
        may_begin = held < order.held_to_backward and whole < order.held_to_weights
        if done["F"] < len(order.forward) and may_begin:
            wishes.append("F")
        if done["B"] < len(order.backward):
            wishes.append("B")
        if order.is_split and done["W"] < done["B"]:
            wishes.append("W")
        return wishes


def _needs(kind: Kind, stage: int, part: int, last_stage: int) -> list[tuple[Kind, int, int]]:
    """Return what must be done before."""
    if kind == "F":
        return [("F", stage - 1, part)] if stage else []
    if kind == "W":
        return [("B", stage, part)]
    later: list[tuple[Kind, int, int]] = [("B", stage + 1, part)] if stage < last_stage else []
    return [("F", stage, part), *later]


def _most_under_way(column: Sequence[Action]) -> int:
    last: Kind = "W" if any(action.kind == "W" for action in column) else "B"
    change: Mapping[Kind, int] = {"F": 1, "B": 0, "W": 0, last: -1}
    now = most = 0
    for action in column:
        now += change[action.kind]
        most = max(most, now)
    return most
