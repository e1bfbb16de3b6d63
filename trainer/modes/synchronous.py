"""Mode ``sync``: steps are rounds, and all trainers compute a round from the same weights.

Rooms before and after: see ``base``. Step n of this trainer is round ``first_round`` + n; its part leaves
when the step ends, an empty one if the step had no keys or no samples.

What always holds:
    * A pull of a round leaves after this trainer's part of the round before, and is answered when that
      round is applied. A pull that is asked for earlier (``prefetch``) waits here, since in front of
      the part it would fill the send queue and wait for itself.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from typing_extensions import override

import pserver
from trainer.modes.base import Floats, Keys, Pending, StepGradients
from trainer.modes.grouped import GroupMode


@dataclass(slots=True)
class RoundPull:
    """Rows for a round, asked for when the round has come."""

    mode: "SyncMode"
    keys: Mapping[str, Keys]
    round: int
    pending: pserver.PendingPull | None = None
    place: pserver.Place | None = field(default_factory=pserver.here)  # of its batch, in a trace

    def send(self) -> None:
        """Ask for them."""
        with pserver.within(self.place):
            self.pending = self.mode.group.start_pull(self.keys, round_number=self.round)

    def result(self) -> list[Floats]:
        """Wait for the rows; see ``Pending``.

        Raises:
            pserver.RequestError: the step before has not ended, so they would never come.
            pserver.BarrierError: the round before cannot be closed; who is missing is named.
        """
        if self.pending is None:
            raise pserver.RequestError(
                f"rows of round {self.round} were asked for before the step before it ended; call "
                "end_step after each step"
            )
        begin = time.perf_counter()
        weights = self.pending.result()
        self.mode.times.pull_s += time.perf_counter() - begin
        return weights


class SyncMode(GroupMode):
    """Rounds. Owner: the training thread."""

    name = "sync"
    in_rounds = True

    def __init__(
        self,
        client: pserver.Client,
        settings: pserver.GroupSettings,
        *,
        clip_norm: float | None = None,
    ) -> None:
        """Join the group; see ``GroupMode``."""
        super().__init__(client, settings, clip_norm=clip_norm)
        self._round = self.group.first_round
        self._early: list[RoundPull] = []

    @property
    def round(self) -> int:
        """Return the round of the step that comes next, or goes on."""
        return self._round

    @override
    def start_pull(self, keys: Mapping[str, Keys]) -> Pending:
        fetching = self.group.first_round + self._fetched - 1
        pull = RoundPull(self, keys, max(fetching, self._round))
        if pull.round == self._round:
            pull.send()
        else:
            self._early.append(pull)
        return pull

    @override
    def pull_dense(self, table: str) -> Floats | None:
        return self._pull_dense(table, round_number=self._round)

    @override
    def _send(self, step: StepGradients, *, samples: int, loss: float | None) -> None:
        begin = time.perf_counter()
        part = pserver.Step(step.dense, {}, self._round, samples, is_everywhere=True)
        self._pushed(self.group.start_push(step.sparse, part))
        self.times.push_s += time.perf_counter() - begin
        self._round += 1
        self._count_step(loss)
        due = [pull for pull in self._early if pull.round == self._round]
        self._early = [pull for pull in self._early if pull.round > self._round]
        for pull in due:
            pull.send()

    @override
    def facts(self) -> dict[str, float]:
        """Return the watch list; ``barrier_wait_s`` is what pulls waited for the other trainers."""
        return {**super().facts(), "barrier_wait_s": self.times.pull_s, "round": float(self._round)}
