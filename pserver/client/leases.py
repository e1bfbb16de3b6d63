"""Ranges of the training rows, leased from shard 0 for a trainer of a group.

Rooms before and after: ``Group.leases`` makes one; a trainer's reader asks for ranges and its training
thread reports them; ``server.leases`` says who has which.

What always holds: questions and reports go past the send queues, so a question that waits for other
trainers holds up no push; both are asked again, the same, until they are answered or the deadline.
Owner: none; ``next_range`` is for one thread, ``report`` for another.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pserver.client.way import Way
from pserver.deadline import Deadline
from pserver.errors import DeadlineError, NotYetError, TransientError
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

SHARD = 0
"""The shard that keeps the leases."""

_PAUSE_S = 0.2  # between two tries while the shard does not answer


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows that are this trainer's until it reports them.

    Attributes:
        number: of the range in its epoch, from 0.
        begin: its first row, from 0.
        end: one more than its last.
    """

    number: int
    begin: int
    end: int


class Leases:
    """The ranges of a group's rows, as one trainer asks for them."""

    def __init__(self, way: Way, *, rows: int, range_rows: int, check: Callable[[], None]) -> None:
        """Cut the rows.

        Args:
            way: to the shards; its trainer is in a group.
            rows: of an epoch, the same for all trainers.
            range_rows: of a range, the same for all trainers.
            check: raises if this trainer is out of its group.
        """
        self.rows = rows
        self.range_rows = range_rows
        self._way = way
        self._check = check
        self._epoch = 0
        self._question = 0

    def next_range(
        self, epoch: int, *, may_wait: bool = True
    ) -> RowRange | Literal["over", "wait"]:
        """Return a range that nobody else has, or why there is none.

        Args:
            epoch: the pass, from 0; the one after comes when this one is over.
            may_wait: if all ranges are with other trainers, wait: for one to come back, since
                its trainer died, or for all to be done. If not: "wait".

        Returns:
            A range; "over" when all are done.

        Raises:
            PserverError: the trainer is not in the group, the trainers disagree on the rows, or shard 0
                did not answer in time. While it waits for others no time counts.
        """
        if epoch != self._epoch:
            self._epoch, self._question = epoch, 0
        request = self._request(epoch)
        request.question = self._question + 1
        request.may_wait = may_wait
        reply = self._ask(request)
        if reply.state != "range":
            return "over" if reply.state == "over" else "wait"
        self._question += 1
        begin = reply.range * self.range_rows
        return RowRange(reply.range, begin, min(begin + self.range_rows, self.rows))

    def report(self, epoch: int, number: int) -> bool:
        """Say that a range is done: all its pushes are applied, or parked for their round.

        Returns:
            Whether it was still this trainer's; if not, another one trains on it again.

        Raises:
            PserverError: as ``next_range``.
        """
        request = self._request(epoch)
        request.done.append(number)
        return not self._ask(request).lost

    def _request(self, epoch: int) -> pb.LeaseRequest:
        return pb.LeaseRequest(
            incarnation=self._way.shards[SHARD].incarnation,
            trainer=self._way.trainer,
            epoch=epoch,
            rows=self.rows,
            range_rows=self.range_rows,
        )

    def _ask(self, request: pb.LeaseRequest) -> pb.LeaseReply:
        """Send a request until it is answered."""
        self._check()
        reply = self._way.runtime.submit(self._ask_on(build_small(request))).result()
        return parse_small(pb.LeaseReply, reply)

    async def _ask_on(self, message: bytes) -> bytes:
        deadline = self._way.deadline()
        while True:
            self._check()
            left_s = deadline.remaining_s
            one_try = Deadline.after(min(self._way.settings.try_timeout_s, left_s))
            try:
                return await self._way.queues[SHARD].call_past("Lease", message, deadline=one_try)
            except NotYetError:  # it was held as long as a server holds one; others go on
                deadline = self._way.deadline()
            except (TransientError, DeadlineError) as error:
                if deadline.remaining_s <= _PAUSE_S:
                    raise DeadlineError(
                        f"lease: {self._way.queues[SHARD].endpoint} did not answer before the "
                        f"deadline; last failure: {error}"
                    ) from error
                await asyncio.sleep(_PAUSE_S)
