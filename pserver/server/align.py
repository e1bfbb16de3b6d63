"""Lets through, before a cut, just what makes it whole: the rest of steps that some shard has already.

Rooms before and after: ``save`` steps set and lift the limit; ``pushes`` and ``dense`` ask before they
apply; ``members`` count each trainer's finished pushes, ``rounds`` the rounds.

How. With writes held back everywhere, the saving client knows of each trainer how many pushes each shard
has finished, and which round each has open. The most of each is the limit: what is missing below it was
sent to all shards at once, so it comes or is here already. It passes, and nothing else does, until every
shard has the same; then all mark their cut.

What always holds: without a limit nothing waits, and a limit is lifted after ``HOLD_S_MAX``, whatever
became of who set it. Owner: the event loop sets it, the owner thread reads it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from pserver.config import HOLD_S
from pserver.errors import CheckpointError, NotYetError
from pserver.server.gate import HOLD_S_MAX
from pserver.server.members import Member, Members
from pserver.server.rounds import Rounds
from pserver.server.waiting import NotYet, Progress
from pserver.v1 import pserver_pb2 as pb


@dataclass(frozen=True, slots=True)
class Marks:
    """How far the trainers of a group are on one shard, or on the shard that is furthest.

    Attributes:
        round: rounds before it are applied; 0 where there are no rounds.
        pushes: of each trainer that is there, by uuid, the pushes that it finished, or began.
    """

    round: int
    pushes: Mapping[bytes, int]


class Align:
    """The limit of one shard.

    Attributes:
        has_expired: whether the limit was lifted since nobody made the cut.
    """

    def __init__(self, members: Members, rounds: Rounds, progress: Progress) -> None:
        """Begin without a limit.

        Args:
            members: the trainers.
            rounds: of a sync group.
            progress: is told when what waited may go on.
        """
        self._members, self._rounds, self._progress = members, rounds, progress
        self._limit: Marks | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.has_expired = False

    def marks(self) -> Marks:
        """Return how far this shard is."""
        live = [member for member in self._members if member.state == "live"]
        pushes = {member.uuid: member.pushes + member.is_amid for member in live}
        if self._members.is_sync:
            return Marks(self._rounds.open, {})
        return Marks(0, pushes)

    def told(self) -> pb.GroupMarks:
        """Return how far this shard is, for the saving client."""
        marks = self.marks()
        trainers = [
            pb.TrainerMark(trainer=uuid, pushes=pushes) for uuid, pushes in marks.pushes.items()
        ]
        return pb.GroupMarks(round=marks.round, trainers=trainers)

    def positions(self) -> dict[str, int]:
        """Return how far each trainer is in its data, where it told; of a group that has no rounds."""
        if self._members.is_sync:
            return {}
        return {str(m.trainer_id): m.position for m in self._members if m.position}

    def set(self, limit: Marks) -> None:
        """Let pass what is below a limit, and nothing else, for ``HOLD_S_MAX`` at most."""
        self.lift()
        self._limit = limit
        self._timer = asyncio.get_running_loop().call_later(HOLD_S_MAX, self._expire)

    def lift(self) -> None:
        """Let everything pass. Lifting twice is fine."""
        self.has_expired = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._limit is not None:
            self._limit = None
            self._progress.bump()

    def _expire(self) -> None:
        self.lift()
        self.has_expired = True

    def check_cut(self, round_number: int) -> None:
        """Refuse a cut that would have more rounds than those of other shards.

        Args:
            round_number: rounds before it are to be in the cut; 0: there are no rounds.

        Raises:
            CheckpointError: a trainer that left, or was dropped, let a round be applied meanwhile.
        """
        if round_number and self._members.is_sync and self._rounds.open != round_number:
            raise CheckpointError(
                f"save: round {round_number} was to be the first that is not in it, and round "
                f"{self._rounds.open} is open on this shard: a trainer went meanwhile. Nothing was "
                "saved; try again"
            )

    async def until_round(self, round_number: int) -> None:
        """Wait until the rounds before one are applied here.

        Raises:
            NotYetError: they were not within ``HOLD_S``; nothing was changed.
        """
        until = asyncio.get_running_loop().time() + HOLD_S
        while True:
            seen = self._progress.count
            if self.is_reached(Marks(round_number, {})):
                return
            if not await self._progress.after(seen, until=until):
                raise NotYetError(f"round {self._rounds.open} is not whole on this shard")

    def is_reached(self, limit: Marks) -> bool:
        """Return whether this shard has all that is below a limit."""
        if self._members.is_sync:
            return self._rounds.open >= limit.round
        return all(m.pushes >= limit.pushes.get(m.uuid, 0) for m in self._members)

    def missing(self, limit: Marks) -> CheckpointError:
        """Return the error that says what did not come."""
        if self._members.is_sync:
            return CheckpointError(
                f"save: round {self._rounds.open} is not whole on this shard, and another one has "
                "applied it; is a trainer gone? Nothing was saved"
            )
        late = [m for m in self._members if m.pushes < limit.pushes.get(m.uuid, 0)]
        names = [member.name for member in late]
        return CheckpointError(
            f"a push of {', '.join(names)} is on another shard and did not come here; is it gone? "
            "Nothing was saved"
        )

    def check(self, member: Member | None, round_number: int = 0) -> None:
        """Let a write pass, or have it wait for the cut.

        Args:
            member: who writes; None for who is in no group.
            round_number: of a part of a round; 0 for other writes.

        Raises:
            NotYet: it has to wait.
        """
        limit = self._limit
        if limit is None:
            return
        if round_number and round_number < limit.round:
            return
        may_go = member is not None and member.pushes < limit.pushes.get(member.uuid, 0)
        if may_go and not round_number:
            return
        raise NotYet(self._progress.count, "a checkpoint is being marked")
