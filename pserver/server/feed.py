"""What a shard tells its standby: the records of its journal behind a position, as they are in the file.

Rooms before and after: ``servicer`` hands on the method Feed; ``standby`` on another server asks, again and
again; ``recording`` holds replies until a standby has their records, where that was promised.

A standby asks for what is behind its last record, so the question is its acknowledgement, and there is
nothing to keep of a reader that is gone. A question that finds nothing new waits a little.

What always holds: only records that count are told, with ``always`` only those that are on the disk; a
standby that has another record at its position is refused. A question is taken for its promise, see ``fence``,
before it waits. Owner: the event loop.
"""

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, field

from pserver.config import PART_BYTES_MAX
from pserver.errors import ConfigError, JournalError, StorageError
from pserver.journal.reader import Cursor
from pserver.journal.writer import Journal
from pserver.server.copies import Copies
from pserver.server.executor import Executor
from pserver.server.fence import Fence
from pserver.server.recording import Recorder
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

WAIT_S_MAX = 5.0
"""The longest that a question waits for new records: a quarter of a client's time for one try."""

TAKEN_S_MAX = 10.0
"""The longest that a reply waits for the standby; then the request is refused and sent again."""


FOLLOWED_S = 60.0
"""A standby that asked for nothing for so long is gone: no segment is kept for it."""


@dataclass(slots=True)
class Feed:
    """The feed of one shard.

    Attributes:
        recorder: has the journal.
        executor: of the shard.
        fence: takes the standby's promises, and knows whether it took the shard's place.
        taken: the last record that a standby had.
        copies: sends files of versions; None: there are none.
    """

    recorder: Recorder
    executor: Executor
    fence: Fence
    taken: int = 0
    copies: Copies | None = None
    _needed: int = 0  # the record before those that the standby is going to ask for
    _asked_s: float = -math.inf  # when a standby asked last
    _cursor: Cursor | None = None
    _waiting: list[tuple[int, "asyncio.Future[None]"]] = field(default_factory=list)

    async def answer(self, message: bytes) -> bytes:
        """Tell records.

        Raises:
            ConfigError: this shard has no journal.
            JournalError: the standby's journal is another one, or went another way.
            UnavailableError: there is another standby.
            SupersededError: the place is not for who wants it.
        """
        request = parse_small(pb.FeedRequest, message)
        journal = self.recorder.journal
        if journal is None:
            raise ConfigError(
                "this shard has no journal to feed a standby from; start it with --journal"
            )
        if request.hand_over and request.journal == journal.number:
            await self.fence.give_away(request.term, request.standby)
            # A turn like any other: what came before it is recorded, what comes after it is refused.
            await self.executor.run(lambda: self.recorder.stop("this server has handed over"))
        if request.journal not in (0, journal.number):
            raise JournalError(
                f"{journal.where}: the standby follows another journal; start it with an empty folder"
            )
        reply = pb.FeedReply(journal=journal.number, begun_by=journal.begun_by, first=journal.first)
        self._asked_s = time.monotonic()
        if request.copy:
            if self.copies is None:
                raise ConfigError("this shard has no versions to copy")
            self._needed = await self.copies.fill(reply, request, journal.number)
            return build_small(reply)
        if request.leave:
            await self.fence.left(request.standby)
        elif request.journal and not request.hand_over:
            await self.fence.asked(request)
        if request.journal and request.after + 1 >= reply.first and not request.only_promise:
            self._needed = request.after
            await self._wait(journal, request)
            self._take(request.after)
            reply.records = await asyncio.to_thread(self._read, journal, request)
        reply.position = journal.told
        reply.term, reply.number = self.fence.place.term, self.fence.answers()
        return build_small(reply)

    async def go_on(self) -> int:
        """Take changes again, without a standby; return the last record."""
        await self.executor.run(lambda: self.recorder.stop(""))
        self._asked_s = -math.inf
        return 0 if self.recorder.journal is None else self.recorder.journal.position

    def drop_covered(self, position: int) -> None:
        """Remove what a durable checkpoint covers, but for what a standby has not taken yet.

        Raises:
            JournalError: the system refused.
        """
        if time.monotonic() - self._asked_s < FOLLOWED_S:
            position = min(position, self._needed)
        self.recorder.drop_covered(position)

    async def until_taken(self, position: int) -> None:
        """Return once the standby has all records up to a position.

        Raises:
            StorageError: it did not take them in time. They are applied here; the request is sent
                again, and known then.
        """
        if self.taken >= position:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((position, future))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TAKEN_S_MAX):
                await future
                return
        self._waiting = [waiting for waiting in self._waiting if waiting[1] is not future]
        raise StorageError(
            f"no standby has record {position} yet, the last one taken is {self.taken}; is it running?"
        )

    def _take(self, position: int) -> None:
        """Let replies go whose records the standby has."""
        self.taken = max(self.taken, position)
        ready = [future for wanted, future in self._waiting if wanted <= self.taken]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > self.taken]
        for future in ready:
            if not future.done():
                future.set_result(None)

    async def _wait(self, journal: Journal, request: pb.FeedRequest) -> None:
        """Wait for a record behind the position, for as long as was asked."""
        self._take(request.after)
        loop, more = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(more.set)

        journal.listen(told)
        with contextlib.suppress(TimeoutError):
            # While there is no promise the next question is wanted at once: it may bring one.
            is_at_once = request.promise_s and self.fence.is_cut_off
            wait_s = 0.0 if is_at_once else min(request.wait_s, WAIT_S_MAX)
            async with asyncio.timeout(wait_s):
                while journal.told <= request.after:
                    more.clear()
                    await more.wait()
        journal.listen(None)

    def _read(self, journal: Journal, request: pb.FeedRequest) -> bytes:
        """Return whole records, about ``PART_BYTES_MAX`` of them."""
        if request.after > journal.told:
            raise JournalError(
                f"{journal.where}: the standby has record {request.after}, and the last one here is "
                f"{journal.told}; start it with an empty folder"
            )
        if self._cursor is None:
            self._cursor = journal.cursor()
        records = self._cursor.read(
            after=request.after, until=journal.told, size=PART_BYTES_MAX, checksum=request.checksum
        )
        if records is None:
            raise JournalError(
                f"{journal.where}: record {request.after} is not the one that the standby has; start "
                "it with an empty folder"
            )
        return records
