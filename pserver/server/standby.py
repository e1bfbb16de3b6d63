"""A server that follows another one's journal, and takes its place when it is told to.

Rooms before and after: ``app`` starts it instead of a serving shard; ``feed`` of the other server answers;
records go into a journal of its own and are applied by ``recovery`` as after a restart.

What always holds:
    * Its journal is the other's, record by record, so it may become the shard: the same incarnation,
      windows of push_ids and rounds. Trainers go on, with each push counted once.
    * Until it is promoted it answers nothing but Stats and Promote.
    * Promoted while the other one answers, it has every record, and the other one takes no requests any
      more. Promoted while the other one is gone, it lacks what that one wrote and it did not hear of; with
      ``--acknowledge standby`` nothing of that was acknowledged.
Owner: the event loop; records are applied in the owner thread.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from pserver.deadline import Deadline
from pserver.errors import DeadlineError, JournalError, PserverError, TransientError
from pserver.journal.records import checksum_at, records_in
from pserver.journal.writer import Begun, Journal
from pserver.server.recovery import Recovery, Replayed
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

log = structlog.get_logger(__name__)

_WAIT_S = 2.0  # that a question waits for records at the other end
_TRY_S = 10.0
_PAUSE_S = 0.2  # after a question that was not answered


class Primary(Protocol):
    """The way to the server that is followed."""

    @property
    def endpoint(self) -> str:
        """Return HOST:PORT."""
        ...

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one request and return the reply."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


async def ask(primary: Primary, request: pb.FeedRequest, *, timeout_s: float) -> pb.FeedReply:
    """Return what the other server tells."""
    reply = await primary.call("Feed", build_small(request), deadline=Deadline.after(timeout_s))
    return parse_small(pb.FeedReply, reply)


async def stand_by(
    primary: Primary, journal: Callable[[Begun], Journal], recovery: Recovery, *, is_new: bool
) -> tuple["Standby", list[str]]:
    """Return a standby that is as far as its journal and the checkpoints bring it, and lines about it.

    Args:
        primary: the server to follow; waited for until it answers.
        journal: opens this server's.
        recovery: brings state back.
        is_new: whether its folder is empty, so that it begins as the other one's journal does.

    Raises:
        JournalError: the other journal does not reach back to its first record, and there is no
            checkpoint that does.
    """
    begun = Begun()
    if is_new:
        told = await _first_word(primary)
        after = 0 if told.first == 1 else recovery.newest_of(told.journal)
        if after is None or after + 1 < told.first:
            raise JournalError(
                f"{primary.endpoint}: its journal begins with record {told.first}, and no checkpoint here "
                "covers those before: save one (`pserver checkpoint save`), and give this server the "
                "same --checkpoint-dir"
            )
        begun = Begun(told.begun_by, told.journal, after)
    opened = journal(begun)
    try:
        lines = await recovery.stand_by(opened)
    except BaseException:
        opened.close()
        raise
    return Standby(primary, opened, recovery, recovery.live), lines


async def _first_word(primary: Primary) -> pb.FeedReply:
    """Return what the other server says of its journal; wait until it says something."""
    while True:
        try:
            return await ask(primary, pb.FeedRequest(), timeout_s=_TRY_S)
        except (TransientError, DeadlineError) as error:
            log.info("the server to follow does not answer yet", reason=str(error))
            await asyncio.sleep(_PAUSE_S)


@dataclass(slots=True)
class Standby:
    """Follows one server.

    Attributes:
        primary: the server.
        journal: of this one.
        recovery: applies records.
        live: makes this server serve.
        told: the last record that the other one spoke of.
        heard_s: when it did, on the monotonic clock.
        failure: why it does not follow any more; empty: it does.
        is_promoted: whether it took the other one's place.
    """

    primary: Primary
    journal: Journal
    recovery: Recovery
    live: Callable[[Journal], Awaitable[None]]
    told: int = 0
    heard_s: float = field(default_factory=time.monotonic)
    failure: str = ""
    is_promoted: bool = False
    _checksum: int = 0  # of the last record
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Follow until promoted, or until it cannot."""
        while not (self.is_promoted or self.failure):
            try:
                async with self._asking:
                    if not self.is_promoted:
                        await self._follow(wait_s=_WAIT_S, timeout_s=_TRY_S, hand_over=False)
            except JournalError as error:
                self.failure = str(error)
                log.error("a standby cannot follow", reason=self.failure)
            except PserverError as error:
                log.debug("a standby asks again", reason=str(error))
                await asyncio.sleep(_PAUSE_S)

    async def promote(self, message: bytes) -> bytes:
        """Take the other server's place.

        Raises:
            JournalError: this one could not follow, so it is not what the other one is.
        """
        request = parse_small(pb.PromoteRequest, message)
        async with self._asking:
            if self.failure:
                raise JournalError(f"this standby did not follow to the end: {self.failure}")
            handed_over = False
            if not self.is_promoted:
                handed_over = await self._take_all(request.timeout_s or _TRY_S)
                await self.live(self.journal)
                self.is_promoted = True
                log.info("promoted", record=self.journal.position, handed_over=handed_over)
        reply = pb.PromoteReply(
            position=self.journal.position,
            told=max(self.told, self.journal.position),
            heard_s=time.monotonic() - self.heard_s,
            handed_over=handed_over,
        )
        return build_small(reply)

    async def _take_all(self, timeout_s: float) -> bool:
        """Let the other server stop, and take its last records; return whether it answered."""
        until = Deadline.after(timeout_s)
        with contextlib.suppress(PserverError):
            await self._follow(wait_s=0.0, timeout_s=timeout_s, hand_over=True)
            while await self._follow(wait_s=0.0, timeout_s=until.remaining_s, hand_over=True):
                pass
            return True
        return False

    async def _follow(self, *, wait_s: float, timeout_s: float, hand_over: bool) -> bool:
        """Ask once, apply what comes, and return whether something came."""
        request = pb.FeedRequest(
            after=self.journal.position,
            journal=self.journal.number,
            checksum=self._checksum,
            wait_s=wait_s,
            hand_over=hand_over,
        )
        reply = await ask(self.primary, request, timeout_s=timeout_s)
        if reply.first > self.journal.position + 1:
            raise JournalError(
                f"{self.primary.endpoint} has dropped the records behind {self.journal.position}; start "
                "this standby again with an empty journal folder and the cluster's --checkpoint-dir"
            )
        self.told, self.heard_s = reply.position, time.monotonic()
        if reply.records:
            await self.recovery.shard.executor.run(lambda: self._apply(reply.records))
        return bool(reply.records)

    def _apply(self, data: bytes) -> None:
        """Write records to the journal and apply them; in the owner thread."""
        for record in records_in(data, first=self.journal.position + 1):
            self.journal.append(record.kind, record.body)
            self.journal.settle()
            self._checksum = checksum_at(data, record.offset)
            self.recovery.apply(record, Replayed())
