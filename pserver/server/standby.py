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
    * Promoted without the other one's word, it first waits until its promise is over, see ``fence``, and
      then tells the other one as soon as that answers. Its term is a later one, on the disk before it serves.
Owner: the event loop; records are applied in the owner thread.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import structlog

from pserver.deadline import Deadline
from pserver.errors import (
    DeadlineError,
    JournalError,
    PserverError,
    StandbyError,
    SupersededError,
    TransientError,
)
from pserver.journal.records import checksum_at, records_in
from pserver.journal.writer import Begun, Journal
from pserver.server.copies import copy_version
from pserver.server.fence import PROMISE_S, Fence
from pserver.server.recovery import Recovery, Replayed
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

log = structlog.get_logger(__name__)

_WAIT_S = 2.0  # that a question waits for records at the other end
_TRY_S = PROMISE_S  # a later answer would renew nothing
_PAUSE_S = 0.2  # after a question that was not answered
_LEAVE_S = 2.0
_RENEW_S = 1.5  # that applying may take before the promise is renewed
_TELL_PAUSE_S = 1.0  # between two tries to tell the other server that its place is taken


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
    primary: Primary,
    journal: Callable[[Begun], Journal],
    recovery: Recovery,
    fence: Fence,
    *,
    new_base: Path | None,
) -> tuple["Standby", list[str]]:
    """Return a standby that is as far as its journal and the checkpoints bring it, and lines about it.

    Args:
        primary: the server to follow; waited for until it answers.
        journal: opens this server's.
        recovery: brings state back.
        fence: of this server.
        new_base: of a server whose journal is empty, so that it begins as the other one's does: where a
            version is copied to, if the other journal does not reach back to its first record.

    Raises:
        CheckpointError: the version that covers those records is gone or damaged.
    """
    begun = Begun()
    if new_base is not None:
        told = await _first_word(primary)
        after = 0 if told.first == 1 else await _covered(primary, told, recovery, new_base)
        begun = Begun(told.begun_by, told.journal, after)
    opened = journal(begun)
    try:
        lines = await recovery.stand_by(opened)
    except BaseException:
        opened.close()
        raise
    return Standby(primary, opened, recovery, fence, recovery.live), lines


async def _covered(primary: Primary, told: pb.FeedReply, recovery: Recovery, base: Path) -> int:
    """Return up to which record a version covers the other journal; copy one if there is none here."""
    found = await asyncio.to_thread(recovery.covering, told.journal)
    if found is not None and found.position + 1 >= told.first:
        return found.position
    recovery.bases[:] = [await copy_version(primary, told.journal, base, recovery.shard)]
    found = await asyncio.to_thread(recovery.covering, told.journal)
    assert found is not None  # it was copied for that
    return found.position


async def _first_word(primary: Primary) -> pb.FeedReply:
    """Return what the other server says of its journal; wait until it says something."""
    while True:
        try:
            return await ask(primary, pb.FeedRequest(), timeout_s=_TRY_S)
        except (TransientError, DeadlineError) as error:
            log.info("the server to follow does not answer yet", reason=str(error))
            await asyncio.sleep(_PAUSE_S)


async def tell_old(primary: Primary, number: int, fence: Fence) -> None:
    """Tell a server that its place is taken, as soon as it can be reached.

    If it has a later term (somebody said that this server is gone for good), this one takes no requests any more.

    Args:
        primary: the server.
        number: of the journal that it had.
        fence: of the server that has its place.
    """
    place = fence.place
    request = pb.FeedRequest(journal=number, hand_over=True, term=place.term, standby=place.name)
    while True:
        try:
            await ask(primary, request, timeout_s=_TRY_S)
        except (StandbyError, JournalError) as error:  # it is another one by now
            log.info("the old server is none any more", endpoint=primary.endpoint, now=str(error))
            return
        except SupersededError as error:
            log.error("the old server went on", endpoint=primary.endpoint, reason=str(error))
            await fence.keep(replace(fence.place, newer=fence.place.term + 1))  # or a later one
            return
        except PserverError:
            await asyncio.sleep(_TELL_PAUSE_S)
        else:
            log.info("told the old server that its place is taken", endpoint=primary.endpoint)
            return


@dataclass(slots=True)
class Standby:
    """Follows one server.

    Attributes:
        primary: the server.
        journal: of this one.
        recovery: applies records.
        fence: has this server's term.
        live: makes this server serve.
        told: the last record that the other one spoke of.
        heard_s: when it did, on the monotonic clock.
        failure: why it does not follow any more; empty: it does.
        is_promoted: whether it took the other one's place.
    """

    primary: Primary
    journal: Journal
    recovery: Recovery
    fence: Fence
    live: Callable[[Journal], Awaitable[None]]
    told: int = 0
    heard_s: float = field(default_factory=time.monotonic)
    failure: str = ""
    is_promoted: bool = False
    _checksum: int = 0  # of the last record
    _number: int = 0  # of the last answer
    _promoting: "asyncio.Task[pb.PromoteReply] | None" = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_leaving: bool = False

    async def run(self) -> None:
        """Follow until promoted, or until it cannot; then tell the server that did not hand over."""
        reason = ""
        while not (self.is_promoted or self.failure or self._is_leaving):
            try:
                async with self._asking:
                    if not self.is_promoted:
                        await self._follow(wait_s=_WAIT_S, timeout_s=_TRY_S, hand_over=False)
            except JournalError as error:
                self.failure = str(error)
                log.error("a standby cannot follow", reason=self.failure)
                await self.leave()
            except PserverError as error:
                if str(error) != reason:
                    reason = str(error)
                    log.warning("a standby is not answered, and asks again", reason=reason)
                await asyncio.sleep(_PAUSE_S)
        if self.is_promoted and self._promoting and not (await self._promoting).handed_over:
            await tell_old(self.primary, self.journal.number, self.fence)

    async def leave(self) -> None:
        """Let the other server go on alone: this one ends, and is not promoted before it heard from it again."""
        place, self._is_leaving = self.fence.place, True
        if self.is_promoted or place.role != "standby":
            return
        await self.fence.keep(replace(place, has_left=True))  # before the other one relies on it
        request = pb.FeedRequest(
            journal=self.journal.number, standby=place.name, leave=True, only_promise=True
        )
        with contextlib.suppress(PserverError):  # then that one waits for this one to come back
            await ask(self.primary, request, timeout_s=_LEAVE_S)

    async def promote(self, message: bytes) -> bytes:
        """Take the other server's place; once, however many ask, and whoever of them goes away.

        Raises:
            JournalError: this one could not follow, or did not yet, so it is not what the other one is.
            SupersededError: the other one went on without it.
        """
        request = parse_small(pb.PromoteRequest, message)
        if self._promoting is None:
            self._promoting = asyncio.ensure_future(self._promote(request.timeout_s or _TRY_S))
        try:
            reply = await asyncio.shield(self._promoting)
        except PserverError:
            self._promoting = None  # who asks again may have more luck
            raise
        return build_small(reply)

    async def _promote(self, timeout_s: float) -> pb.PromoteReply:
        """Take the other server's place."""
        async with self._asking:
            if self.failure:
                raise JournalError(f"this standby did not follow to the end: {self.failure}")
            handed_over = await self._take_all(timeout_s)
            place = self.fence.place
            if place.role != "standby" or place.has_left:
                raise JournalError(
                    f"this standby did not hear from {self.primary.endpoint} since it was started, and that "
                    "one may have gone on without it"
                )
            if not handed_over:
                await asyncio.sleep(self.heard_s + PROMISE_S - time.monotonic())
            reply = pb.PromoteReply(
                position=self.journal.position,
                told=max(self.told, self.journal.position),
                heard_s=time.monotonic() - self.heard_s,
                handed_over=handed_over,
                term=place.term + 1,
            )
            await self.fence.keep(replace(place, term=reply.term, role="promoted"))
            await self.live(self.journal)
            self.is_promoted = True
        log.warning(
            "promoted",
            term=reply.term,
            record=reply.position,
            handed_over=handed_over,
            old_server_spoke_of=reply.told,
            seconds_ago=round(reply.heard_s, 1),
        )
        return reply

    async def _take_all(self, timeout_s: float) -> bool:
        """Let the other server stop, and take its last records; return whether it answered.

        Raises:
            SupersededError: it answers, and its place is not for this one.
        """
        until = Deadline.after(timeout_s)
        try:
            while await self._follow(wait_s=0.0, timeout_s=until.remaining_s, hand_over=True):
                pass
        except SupersededError:
            raise
        except PserverError:
            return False
        return True

    async def _follow(self, *, wait_s: float, timeout_s: float, hand_over: bool) -> bool:
        """Ask once, apply what comes, and return whether something came."""
        request = pb.FeedRequest(
            after=self.journal.position,
            checksum=self._checksum,
            wait_s=wait_s,
            hand_over=hand_over,
            term=self.fence.place.term + 1,
        )
        reply = await self._ask(request, timeout_s=timeout_s)
        if reply.first > self.journal.position + 1:
            raise JournalError(
                f"{self.primary.endpoint} has dropped the records behind {self.journal.position}; start "
                "this standby again with an empty journal folder and the cluster's --checkpoint-dir"
            )
        if reply.records:
            await self._apply_all(reply.records)
        return bool(reply.records)

    async def _ask(self, request: pb.FeedRequest, *, timeout_s: float) -> pb.FeedReply:
        """Ask, with a promise; note what the answer says beside records."""
        if (
            not self.fence.place.name
        ):  # on the disk before the other one knows it: it knows no second one
            name = secrets.randbits(63) | 1
            await self.fence.keep(replace(self.fence.place, name=name))
        place = self.fence.place
        request.journal, request.standby = self.journal.number, place.name
        request.promise_s, request.heard = PROMISE_S, self._number
        reply = await ask(self.primary, request, timeout_s=timeout_s)
        self._number, self.told, self.heard_s = reply.number, reply.position, time.monotonic()
        term, has_left = max(place.term, reply.term), self._is_leaving
        await self.fence.keep(replace(place, term=term, role="standby", has_left=has_left))
        return reply

    async def _apply_all(self, records: bytes) -> None:
        """Apply records in the owner thread; renew the promise while that takes long."""
        applying = asyncio.ensure_future(
            self.recovery.shard.executor.run(lambda: self._apply(records))
        )
        renewed = self.journal.position
        while not (await asyncio.wait((applying,), timeout=_RENEW_S))[0]:
            with contextlib.suppress(PserverError):
                await self._ask(pb.FeedRequest(after=renewed, only_promise=True), timeout_s=_TRY_S)
        await applying

    def _apply(self, data: bytes) -> None:
        """Write records to the journal and apply them; in the owner thread."""
        for record in records_in(data, first=self.journal.position + 1):
            self.journal.append(record.kind, record.body)
            self.journal.settle()
            self._checksum = checksum_at(data, record.offset)
            self.recovery.apply(record, Replayed())
