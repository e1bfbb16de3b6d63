"""Sync rounds: the parts of all trainers become one step, once, whatever order they came in.

Rooms before and after: ``pushes`` brings checked messages of a round; ``members`` says whose parts it
waits for; ``merge`` adds up and steps the tables.

What always holds:
    * Round r is applied once, when every trainer that it waits for has sent all messages of its part.
      Rounds are applied in order: ``applied`` is the last one.
    * At most two rounds have parts: the open one and the next. What comes for a later one waits
      outside (``NotYet``), and so does a pull whose round is not reached.
    * What is applied depends on the parts and the ids of their trainers, not on when they came.
    * If a round cannot be closed, nothing of it is applied, and every call of the group says why.
Owner: the shard's owner thread.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from pserver.errors import BarrierError, GroupError, PserverError, ShapeError
from pserver.server.members import Member, Members
from pserver.server.merge import Merge, Part
from pserver.server.waiting import NotYet, Progress
from pserver.wire import PushRequest, Stamp, parse_push

log = structlog.get_logger(__name__)

PARKED_BYTES_MAX = 4 << 30
"""Bytes of parts that wait for others, on one shard: two rounds of 64 trainers with 32 MiB each."""


@dataclass(slots=True)
class Coming:
    """What came of one trainer's part of a round.

    Attributes:
        samples: of the trainer's batch.
        num_messages: that the part has.
        messages: those that are here, by push counter: the request and its bytes.
    """

    samples: int
    num_messages: int
    messages: dict[int, tuple[PushRequest, bytes]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Return whether all messages are here."""
        return len(self.messages) == self.num_messages

    def part(self) -> Part:
        """Return the part, its tables in the order in which the trainer sent them."""
        requests = [self.messages[counter][0] for counter in sorted(self.messages)]
        return Part(self.samples, [table for request in requests for table in request.tables])


class Rounds:
    """The rounds of one shard. Owner: the shard's owner thread.

    Attributes:
        applied: the last round that was applied, or passed over; 0: none.
        failure: why no round can be closed any more; empty: it can.
        parked_bytes: of the parts that wait.
    """

    def __init__(self, members: Members, merge: Merge, progress: Progress) -> None:
        """Begin before round 1.

        Args:
            members: of the group.
            merge: makes one step of the parts of a round.
            progress: is told when a call that waits may go on.
        """
        self.applied = 0
        self.failure = ""
        self.parked_bytes = 0
        self._members = members
        self._merge = merge
        self._progress = progress
        self._coming: dict[int, dict[int, Coming]] = {}  # round -> trainer id -> part

    @property
    def open(self) -> int:
        """Return the round that waits for parts."""
        return self.applied + 1

    @property
    def is_waiting(self) -> bool:
        """Return whether a trainer has sent its part of the open round, and others have not."""
        return not self.failure and any(
            coming.is_whole for coming in dict(self._coming.get(self.open, {})).values()
        )

    def missing(self) -> list[Member]:
        """Return the trainers that the open round waits for, in the order of ids."""
        came = dict(self._coming.get(self.open, {}))  # a copy: status asks from another thread
        return [
            member
            for member in self._members.expected(self.open)
            if member.trainer_id not in came or not came[member.trainer_id].is_whole
        ]

    # --- questions of a request ---------------------------------------------------------------

    def check_pull(self, round_number: int) -> None:
        """Let a pull of a round pass once all rounds before it are applied.

        Raises:
            NotYet: they are not.
            BarrierError: they will not be.
        """
        self._check_failure()
        if round_number > self.open:
            raise NotYet(self._progress.count, f"round {round_number - 1} is not applied yet")

    def check_part(self, member: Member, stamp: Stamp) -> None:
        """Let a message pass if its round is the open one or the next, and its part misses it.

        Raises:
            NotYet: it is of a later round.
            GroupError: its round is over, or does not wait for this trainer.
            ShapeError: it says otherwise than the part's first message, or is one too many.
            BarrierError: no round can be closed any more.
        """
        self._check_failure()
        round_number = stamp.round
        if round_number <= self.applied or round_number < member.first_round:
            raise GroupError(
                f"{member.name}: round {round_number} is over, or did not wait for it: round "
                f"{self.open} is open, and its first was {member.first_round}; nothing was applied"
            )
        if round_number > self.open + 1:
            raise NotYet(
                self._progress.count,
                f"round {self.open} is open, and parts are taken one round ahead, not for "
                f"{round_number}",
            )
        coming = self._coming.get(round_number, {}).get(member.trainer_id)
        if coming is None:
            return
        if (coming.samples, coming.num_messages) != (stamp.samples, stamp.messages):
            raise ShapeError(
                f"{member.name}: a message of round {round_number} says {stamp.samples} samples in "
                f"{stamp.messages} messages, an earlier one {coming.samples} in "
                f"{coming.num_messages}"
            )
        if coming.is_whole:
            raise ShapeError(
                f"{member.name}: all {stamp.messages} messages of its part of round {round_number} "
                "are here already"
            )

    def _check_failure(self) -> None:
        if self.failure:
            raise BarrierError(self.failure)

    # --- commands -----------------------------------------------------------------------------

    def take(self, member: Member, request: PushRequest, message: bytes) -> None:
        """Park one message of a trainer's part; the last one that a round waits for applies it.

        Args:
            member: who sent it; ``check_part`` let it pass.
            request: checked, and not seen before.
            message: its bytes, kept until the round is applied.

        Raises:
            BarrierError: there is no room for it, or the round that it made whole failed.
        """
        stamp = request.stamp
        assert stamp is not None
        coming = self._coming.setdefault(stamp.round, {}).setdefault(
            member.trainer_id, Coming(stamp.samples, stamp.messages)
        )
        if self.parked_bytes + len(message) > PARKED_BYTES_MAX:
            self.fail(
                f"round {self.open}: the parts that wait for others would pass {PARKED_BYTES_MAX} "
                "bytes on this shard; use more shards or smaller batches"
            )
            raise BarrierError(self.failure)
        coming.messages[request.push_id.counter] = (request, message)
        self.parked_bytes += len(message)
        if coming.is_whole:
            member.last_round = max(member.last_round, stamp.round)
            self.advance()

    def advance(self) -> None:
        """Apply what can be applied; called when a part is whole or the group changed."""
        while not self.failure and self._members.is_sync:
            expected = self._members.expected(self.open)
            came = self._coming.get(self.open, {})
            if not expected and not came:
                if not self._pass_over():
                    return
                continue
            if self.missing():
                return
            self._close()

    def drop_unfinished(self, trainer_id: int) -> None:
        """Forget parts of which messages are missing: who sent them was dropped or replaced.

        A whole part stays: all of it was acknowledged, and it may be applied on other shards.
        """
        for parts in self._coming.values():
            coming = parts.get(trainer_id)
            if coming is not None and not coming.is_whole:
                del parts[trainer_id]
                self.parked_bytes -= _bytes_of(coming)

    def fail(self, why: str) -> None:
        """End the group's work: every call that waits or comes gets this error."""
        log.error(
            "a sync group cannot go on",
            reason=why,
            hint="start its trainers again; with --on-missing drop the others go on",
        )
        self.failure = why
        self._forget_parts()
        self._progress.bump()

    def begin_anew(self) -> None:
        """Forget a failure and what is parked: another group begins. ``applied`` goes on."""
        self.failure = ""
        self._forget_parts()

    def limit(self, round_number: int, seen_s: Mapping[int, float]) -> None:
        """Do what ``on_missing`` says: a round has waited for its parts as long as it may.

        Args:
            round_number: that the event loop saw open; if it was closed meanwhile nothing is done.
            seen_s: trainer id to the seconds since it was heard from, for the message only.
        """
        spec = self._members.spec
        if round_number != self.open or not self.is_waiting or spec is None:
            return
        missing = self.missing()
        text = self._missing_text(missing, seen_s)
        if spec.on_missing == "fail":
            self.fail(text)
        elif spec.on_missing == "wait":
            log.warning("a sync round waits", reason=text)
        else:
            log.warning("a sync round goes on without trainers", reason=text)
            for member in missing:
                self.drop_unfinished(member.trainer_id)
                self._members.drop(member.trainer_id, text)
            self.advance()
            self._members.end_if_empty()
            self._progress.bump()

    def _missing_text(self, missing: Iterable[Member], seen_s: Mapping[int, float]) -> str:
        spec = self._members.spec
        assert spec is not None
        who = []
        for member in missing:
            age = seen_s.get(member.trainer_id)
            seen = "never seen" if age is None else f"last seen {age:.1f} s ago"
            who.append(f"{member.name}: last round {member.last_round}, {seen}")
        whole = len(self._members.expected(self.open)) - len(who)
        return (
            f"round {self.open}: no part of {len(who)} of {spec.trainers} trainers within "
            f"{spec.barrier_timeout:g} s (--barrier-timeout), {whole} sent theirs; missing are "
            + "; ".join(who)
        )

    # --- inside -------------------------------------------------------------------------------

    def _pass_over(self) -> bool:
        """Go to the first round that somebody is in, or was; return whether there is one ahead."""
        firsts = [member.first_round for member in self._members if member.is_expected]
        firsts += [number for number, came in self._coming.items() if came]
        if not firsts or min(firsts) <= self.open:
            return False
        self.applied = min(firsts) - 1
        self._progress.bump()
        return True

    def _close(self) -> None:
        """Apply the open round."""
        spec = self._members.spec
        assert spec is not None
        came = self._coming.pop(self.open, {})
        whole = {number: coming for number, coming in sorted(came.items()) if coming.is_whole}
        registered = {m.trainer_id for m in self._members.expected(self.open)} | set(whole)
        try:
            self._merge.apply(
                [coming.part() for coming in whole.values()],
                divisor=spec.sync_divisor,
                registered=len(registered),
            )
        except Exception as error:  # a user's rule may raise anything
            kept = "nothing" if isinstance(error, PserverError) else "perhaps a part"
            self.fail(f"round {self.open} could not be applied, {kept} of it was: {error}")
            raise BarrierError(self.failure) from error
        self.parked_bytes -= sum(map(_bytes_of, came.values()))
        self.applied += 1
        self._progress.bump()

    def _forget_parts(self) -> None:
        self._coming = {}
        self.parked_bytes = 0

    # --- as plain data ------------------------------------------------------------------------

    def export(self) -> dict[str, Any]:
        """Return all of it as numbers, text, bytes, lists and dicts; ``load`` takes it back."""
        parts = [
            [
                number,
                trainer_id,
                coming.samples,
                coming.num_messages,
                [message for _, message in coming.messages.values()],
            ]
            for number, came in self._coming.items()
            for trainer_id, coming in came.items()
        ]
        return {"applied": self.applied, "failure": self.failure, "parts": parts}

    def load(self, state: dict[str, Any], mended: Callable[[PushRequest], PushRequest]) -> None:
        """Become what ``export`` returned elsewhere; ``Members.load`` goes with it.

        Args:
            state: what was exported; the tables that its parts name are there.
            mended: checks a push as when it came, see ``Pushes.mended``.
        """
        self.applied, self.failure = state["applied"], state["failure"]
        self._forget_parts()
        for number, trainer_id, samples, num_messages, messages in state["parts"]:
            coming = Coming(samples, num_messages)
            for message in messages:
                request = mended(parse_push(message))
                coming.messages[request.push_id.counter] = (request, message)
            self._coming.setdefault(number, {})[trainer_id] = coming
            self.parked_bytes += _bytes_of(coming)


def _bytes_of(coming: Coming) -> int:
    """Return the bytes of what is parked of a part."""
    return sum(len(message) for _, message in coming.messages.values())
