"""Which trainer has which range of the training rows: handed out, reported done, taken back.

Rooms before and after: ``servicer`` runs ``lease`` in the owner thread of shard 0; ``members`` says who is
still with the group; a trainer's client asks and reports (``client.leases``).

An epoch's rows are cut into ranges of one size. A range is free, held by one process, or done.

What always holds:
    * A range is held by one process at a time, and once done is never handed out again in its epoch.
    * The ranges of a process that left, was replaced or dropped, or whose lease in the group is over, are
      free again. So every row is trained on at least once an epoch; and exactly once unless a trainer
      goes while it holds a range: then what it had pushed of that range is trained on again.
    * The next epoch begins when all ranges are done.
    * The same question again gets the same range, so a lost reply loses none.
    * State follows from the commands in their order; no clock is read. A new group begins anew.
Owner: the shard's owner thread.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pserver.errors import GroupError, ShapeError
from pserver.server.members import Member, Members
from pserver.server.waiting import NotYet, Progress
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

RANGES_MAX = 1 << 20
"""Ranges of an epoch at most: about 100 bytes each while they are held or done."""

_SHOWN_MAX = 5  # trainers named in a message


@dataclass(slots=True)
class Epoch:
    """One pass over the rows.

    Attributes:
        number: of it, from 0.
        rows: in all.
        range_rows: of a range; the last one may be shorter.
        fresh: the first range that nobody had yet.
        free: a heap of those that came back.
        held: by the uuid of which process.
        done: those that are.
        answers: by uuid, the last question's number and the range that it got.
    """

    number: int
    rows: int
    range_rows: int
    fresh: int = 0
    free: list[int] = field(default_factory=list)
    held: dict[int, bytes] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    answers: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    @property
    def ranges(self) -> int:
        """Return how many there are."""
        return -(-self.rows // self.range_rows)

    @property
    def is_over(self) -> bool:
        """Return whether all ranges are done."""
        return len(self.done) == self.ranges


class Leases:
    """The ranges of one group. Owner: the shard's owner thread."""

    def __init__(
        self, members: Members, progress: Progress, *, check_incarnation: Callable[[int], None]
    ) -> None:
        """Begin without an epoch.

        Args:
            members: of the group.
            progress: is told when a question that waits may be asked again.
            check_incarnation: refuses a request for another process.
        """
        self._members = members
        self._progress = progress
        self._check_incarnation = check_incarnation
        self._group_number = 0
        self._epoch: Epoch | None = None

    def lease(self, message: bytes) -> bytes:
        """Answer a question for a range, or a report of ranges that are done.

        Raises:
            GroupError: the sender is not in the group, or the trainers disagree on the rows.
            ShapeError: a number is out of range.
            NotYet: no range is free and some are not done; nothing was changed.
        """
        request = parse_small(pb.LeaseRequest, message)
        self._check_incarnation(request.incarnation)
        was_live = self._members.is_live(request.trainer)
        try:
            return self._answered(request)
        except NotYet:
            if not was_live:  # what waits leaves no record, so it may revive nobody
                self._members.expire(request.trainer)
            raise

    def _answered(self, request: pb.LeaseRequest) -> bytes:
        """Return the answer to a question or report, or have it wait."""
        member = self._sender(request.trainer)
        epoch = self._agreed(request, member)
        if epoch is None:
            return build_small(pb.LeaseReply(state="over"))
        self._take_back(epoch)
        if request.done:
            lost = self._report(epoch, request)
            reply = pb.LeaseReply(state="noted", lost=lost)
        else:
            reply = self._answer(epoch, request)
        reply.num_done, reply.num_ranges = len(epoch.done), epoch.ranges
        return build_small(reply)

    def export(self) -> dict[str, Any]:
        """Return all of it as numbers, bytes, lists and dicts; ``load`` takes it back."""
        epoch = self._epoch
        if epoch is None:
            return {"group_number": self._group_number, "epoch": None}
        plain = {
            "number": epoch.number,
            "rows": epoch.rows,
            "range_rows": epoch.range_rows,
            "fresh": epoch.fresh,
            "free": list(epoch.free),
            "held": list(epoch.held.items()),
            "done": sorted(epoch.done),
            "answers": [[uuid, *answer] for uuid, answer in epoch.answers.items()],
        }
        return {"group_number": self._group_number, "epoch": plain}

    def load(self, state: dict[str, Any]) -> None:
        """Become what ``export`` returned elsewhere."""
        self._group_number, plain = state["group_number"], state["epoch"]
        self._epoch = None
        if plain is not None:
            self._epoch = Epoch(
                number=plain["number"],
                rows=plain["rows"],
                range_rows=plain["range_rows"],
                fresh=plain["fresh"],
                free=plain["free"],
                held=dict(plain["held"]),
                done=set(plain["done"]),
                answers={uuid: (asked, number) for uuid, asked, number in plain["answers"]},
            )

    def _sender(self, uuid: bytes) -> Member:
        """Return who asks; one whose lease was over is heard from by asking."""
        member = self._members.of(uuid)
        if member is None or member.state == "left":
            raise GroupError("lease: the sender is in no group of trainers here")
        self._members.revive(uuid)
        return member

    def _agreed(self, request: pb.LeaseRequest, member: Member) -> Epoch | None:
        """Return the epoch that is asked for, begun if it is its time; None if it is over."""
        if not 1 <= request.range_rows <= request.rows:
            raise ShapeError(
                f"lease: range_rows must be in [1, rows], got {request.range_rows} of "
                f"{request.rows} rows"
            )
        wanted = Epoch(request.epoch, request.rows, request.range_rows)
        if wanted.ranges > RANGES_MAX:
            raise ShapeError(
                f"lease: at most {RANGES_MAX} ranges, got {wanted.ranges}; make them larger"
            )
        if self._group_number != self._members.number:
            self._group_number, self._epoch = self._members.number, None
        epoch = self._epoch
        if epoch is not None:
            if (epoch.rows, epoch.range_rows) != (wanted.rows, wanted.range_rows):
                raise GroupError(
                    f"the trainers of a group must agree on the rows: there are {epoch.rows} in "
                    f"ranges of {epoch.range_rows}, and {member.name} came with {wanted.rows} in "
                    f"ranges of {wanted.range_rows}; give all the same files and batch size"
                )
            if wanted.number < epoch.number:
                return None
            if wanted.number == epoch.number:
                return epoch
            if wanted.number > epoch.number + 1 or not epoch.is_over:
                raise GroupError(
                    f"{member.name} asks for epoch {wanted.number}, and epoch {epoch.number} is "
                    f"not over: {len(epoch.done)} of {epoch.ranges} ranges are done"
                )
        self._epoch = wanted
        return wanted

    def _take_back(self, epoch: Epoch) -> None:
        """Free the ranges of processes that are gone."""
        gone = {uuid for uuid in set(epoch.held.values()) if not self._members.is_live(uuid)}
        for number in [n for n, uuid in epoch.held.items() if uuid in gone]:
            del epoch.held[number]
            heapq.heappush(epoch.free, number)

    def _report(self, epoch: Epoch, request: pb.LeaseRequest) -> list[int]:
        """Note the ranges that are done, and return those that are with another process by now."""
        bad = [number for number in request.done if number >= epoch.fresh]
        if bad:
            raise ShapeError(f"lease: range {bad[0]} of epoch {epoch.number} was never handed out")
        lost = []
        for number in request.done:
            if epoch.held.get(number, request.trainer) != request.trainer:
                lost.append(number)
            elif number not in epoch.done:
                if epoch.held.pop(number, None) is None:  # it had come back, and nobody has it yet
                    epoch.free.remove(number)
                    heapq.heapify(epoch.free)
                epoch.done.add(number)
        self._progress.bump()
        return lost

    def _answer(self, epoch: Epoch, request: pb.LeaseRequest) -> pb.LeaseReply:
        """Return a range, or why there is none."""
        question, number = epoch.answers.get(request.trainer, (0, 0))
        if question == request.question and epoch.held.get(number) == request.trainer:
            return pb.LeaseReply(state="range", range=number)
        if epoch.is_over:
            return pb.LeaseReply(state="over")
        if epoch.free:
            number = heapq.heappop(epoch.free)
        elif epoch.fresh < epoch.ranges:
            number = epoch.fresh
            epoch.fresh += 1
        elif request.may_wait:
            raise NotYet(self._progress.count, self._waits_for(epoch))
        else:
            return pb.LeaseReply(state="wait")
        epoch.held[number] = request.trainer
        epoch.answers[request.trainer] = (request.question, number)
        return pb.LeaseReply(state="range", range=number)

    def _waits_for(self, epoch: Epoch) -> str:
        """Return whose ranges are not done."""
        holders = [self._members.of(uuid) for uuid in dict.fromkeys(epoch.held.values())]
        names = [member.name for member in holders if member is not None]
        more = "" if len(names) <= _SHOWN_MAX else f" and {len(names) - _SHOWN_MAX} more"
        return (
            f"epoch {epoch.number}: {len(epoch.done)} of {epoch.ranges} ranges are done; the last "
            f"are with {', '.join(names[:_SHOWN_MAX])}{more}"
        )
