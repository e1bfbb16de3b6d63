"""Bounded, ordered delivery of requests to one shard.

Rooms before and after: ``client`` puts one message; ``channel`` carries it. Nothing here looks
inside a message.

What always holds:
    * Requests leave in the order in which they were put; with a window of one they also arrive so.
    * At most ``window`` are on the wire; at most ``size`` requests and ``bytes_max`` bytes are
      waiting or open (one request over that alone in the queue passes). A full queue makes
      ``put`` wait. It never drops.
    * At most ``SPAN_MAX`` requests that were put later have left before one that is still open,
      so the shard still remembers it when it is tried again.
    * A retry sends the same bytes, so it carries the push_id of the first try and the shard
      applies it once. Only ``TransientError`` and a try that timed out are retried, until the
      request's deadline.
    * Every future is settled: by the reply, an error, the deadline or ``close``.
    * A message that a shard refuses since it is another process now goes through ``revival``, if there is one.
    * An outage is told once: when a request's tries exceed ``retry``, and when one is answered again.

The first try of a request begins in the thread that puts it, or in the one that ended the request before it; what
failed is tried again on the client's event loop.
"""

import asyncio
import functools
import random
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from pserver.client.channel import Channel
from pserver.client.revival import Revival
from pserver.client.runtime import Runtime
from pserver.config import ClientSettings
from pserver.deadline import Deadline
from pserver.errors import (
    DeadlineError,
    InternalError,
    NotYetError,
    PserverError,
    RestartedError,
    TransientError,
    UnavailableError,
)
from pserver.trace.call import Sending, leaving, sending

log = structlog.get_logger(__name__)

SPAN_MAX = 1024
"""How far the newest request on the wire may be ahead of the oldest: a shard remembers the last
2048 pushes of a trainer, and one that fell behind those would be refused when it is tried again."""

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A message on its way, and the future that gets its reply."""

    method: str
    message: bytes
    deadline: Deadline
    future: "Future[bytes]"
    sending: Sending | None  # of a traced batch


@dataclass(slots=True, eq=False)
class _Open:
    """A request that left; owner: the lock of its queue.

    Attributes:
        number: of the requests that left before.
        request: which.
        limit: when a server that does not answer is given up.
        trying: what is done for it now.
    """

    number: int
    request: Request
    limit: Deadline
    trying: "Future[bytes]"


class SendQueue:
    """The queue of one shard. Thread-safe."""

    def __init__(self, channel: Channel, runtime: Runtime, settings: ClientSettings) -> None:
        """Begin empty.

        Args:
            channel: to the shard.
            runtime: whose loop tries again.
            settings: the limits.
        """
        self._channel = channel
        self._runtime = runtime
        self._settings = settings
        self._room = threading.Condition()
        # All below is under _room.
        self._count = 0  # waiting or open
        self._bytes = 0  # of those
        self._is_closed = False
        self._waiting: deque[Request] = deque()
        self._num_started = 0
        self._open: dict[int, _Open] = {}  # by number, oldest first
        self._is_out = False  # whether an outage was told
        self.retries = 0  # written by the loop only
        self._acknowledged = 0  # pushes, by the process that the shard is now
        self.wait_s = 0.0  # that callers waited for room; under _room
        self.revival: Revival | None = (
            None  # of a client that goes on; set before the first request
        )

    @property
    def endpoint(self) -> str:
        """Return what errors call the shard."""
        return self._channel.endpoint

    @property
    def depth(self) -> int:
        """Return the requests that wait or are open."""
        return self._count

    def put(self, method: str, message: bytes, *, deadline: Deadline) -> "Future[bytes]":
        """Hand over one request; wait while the queue is full.

        Args:
            method: of the service.
            message: not to be written to from now on.
            deadline: when to give up, waiting for room included.

        Returns:
            The future of the reply's bytes, or of the error.

        Raises:
            DeadlineError: there was no room in time; the request was not sent.
            UnavailableError: the queue was closed; the request was not sent.
        """
        size = len(message)
        with self._room:
            may_go = self._has_room(size) or self._wait_for_room(size, deadline)
            if self._is_closed:
                raise self._closed()
            if not may_go:
                raise DeadlineError(
                    f"{method} to {self.endpoint}: the send queue stayed full ({self._count} "
                    f"requests, {self._bytes} bytes) until the deadline; the server is too slow "
                    "or does not answer. The request was not sent"
                )
            self._count += 1
            self._bytes += size
            request = Request(method, message, deadline, Future(), sending(method, self.endpoint))
            self._waiting.append(request)
            self._start_some()
        return request.future

    def _wait_for_room(self, size: int, deadline: Deadline) -> bool:
        """Wait until a request may enter or the queue is closed; return whether it was in time."""
        begin = time.monotonic()
        came = self._room.wait_for(
            lambda: self._is_closed or self._has_room(size), deadline.remaining_s
        )
        self.wait_s += time.monotonic() - begin
        return came

    @property
    def has_room(self) -> bool:
        """Return whether a request would enter without waiting, unless it is large."""
        return self._has_room(0)

    async def call_past(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one small request past the queue, once; on the loop.

        For what must not wait behind requests that wait for other trainers.
        """
        try:
            return await self.call_once(method, message, deadline=deadline)
        except RestartedError as error:
            if self.revival is None:
                raise
            message = await self.revival.revived(self, method, message, error)
        return await self.call_once(method, message, deadline=deadline)

    async def call_once(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one request past the queue as it is, whatever comes of it; on the loop."""
        return await self._channel.call(method, message, deadline=deadline)

    @property
    def acknowledged(self) -> int:
        """Return the pushes that the process acknowledged which the shard is now."""
        return self._acknowledged

    def forget_acknowledged(self) -> int:
        """Return that number, and begin anew: the shard is another process now."""
        with self._room:
            count, self._acknowledged = self._acknowledged, 0
        return count

    async def close(self) -> None:
        """Give up what is not delivered, with an error, and close the channel; on the loop."""
        with self._room:
            self._is_closed = True
            left = list(self._open.values())
            given_up = [*(each.request for each in left), *self._waiting]
            self._open.clear()
            self._waiting.clear()
            self._count = self._bytes = 0
            self._room.notify_all()
        for each in left:
            each.trying.cancel()
        for request in given_up:
            request.future.set_exception(self._closed())
        for _ in range(2):  # turns: what was cancelled on this loop is told, and ends
            await asyncio.sleep(0)
        await self._channel.close()

    def _closed(self) -> UnavailableError:
        return UnavailableError(f"the client of {self.endpoint} was closed")

    def _has_room(self, size: int) -> bool:
        """Return whether a request of that many bytes may enter."""
        if self._count == 0:
            return True
        return (
            self._count < self._settings.send_queue_size
            and self._bytes + size <= self._settings.send_queue_bytes
        )

    def _start_some(self) -> None:
        """Send what the window allows; under _room, so that requests leave in order."""
        while self._waiting and self._may_start() and not self._is_closed:
            request = self._waiting.popleft()
            limit = self._limit(request)
            with leaving(request.sending):
                trying = self._channel.start(
                    self._runtime,
                    request.method,
                    request.message,
                    deadline=self._try_deadline(limit),
                )
            each = _Open(self._num_started, request, limit, trying)
            self._open[each.number] = each
            self._num_started += 1
            trying.add_done_callback(functools.partial(self._tried, each))

    def _may_start(self) -> bool:
        """Return whether the window and the span allow one more on the wire."""
        oldest = next(iter(self._open), self._num_started)
        return len(self._open) < self._settings.window and self._num_started - oldest < SPAN_MAX

    def _tried(self, each: _Open, trying: "Future[bytes]") -> None:
        """Take note of a first try; on the thread that ended it."""
        failure = None if trying.cancelled() else trying.exception()
        if not isinstance(failure, PserverError) or not self._may_pass(failure):
            self._end(each, trying)
            return
        with self._room:
            if each.number not in self._open:
                return  # closed
            with leaving(each.request.sending):
                each.trying = self._runtime.submit(self._try_again(each, failure))
            trying = each.trying
        trying.add_done_callback(functools.partial(self._end, each))

    def _end(self, each: _Open, trying: "Future[bytes]") -> None:
        """Give a request's future what its delivery came to, free its room, and go on."""
        request = each.request
        with self._room:
            if self._open.pop(each.number, None) is None:
                return  # closed, which settled it
            error = self._closed() if trying.cancelled() else trying.exception()
            self._acknowledged += error is None and request.method == "Push"
            self._count -= 1
            self._bytes -= len(request.message)
            self._room.notify_all()
        if request.sending is not None:
            request.sending.end(error)
        if error is None:
            self._tell_return()
            request.future.set_result(trying.result())
        elif isinstance(error, PserverError):
            request.future.set_exception(error)
        else:
            mistake = InternalError(f"{request.method} to {self.endpoint}: {error!r}")
            mistake.__cause__ = error
            request.future.set_exception(mistake)
        with self._room:
            self._start_some()

    def _may_pass(self, failure: PserverError) -> bool:
        """Return whether a failure may be gone at another try."""
        if isinstance(failure, RestartedError):
            return self.revival is not None
        return isinstance(failure, TransientError | DeadlineError)

    async def _try_again(self, each: _Open, failure: PserverError) -> bytes:
        """Return the reply to a request whose first try failed, trying on after failures that may pass."""
        request, message, limit = each.request, each.request.message, each.limit
        delay_s, tries = _BACKOFF_FIRST_S, 1
        while True:
            if isinstance(failure, NotYetError):  # the server is there, and held it long enough
                tries, limit = 0, self._limit(request)
                if limit.is_over:
                    raise DeadlineError(
                        f"{request.method} to {self.endpoint} waited until the deadline: {failure}"
                    ) from failure
            elif isinstance(failure, RestartedError):
                if self.revival is None or request.deadline.is_over:
                    raise failure
                message = await self.revival.revived(self, request.method, message, failure)
                limit = self._limit(request)
            else:
                self._tell_outage(tries, failure)
                await self._pause(request, failure, limit=limit, delay_s=delay_s)
                delay_s = min(2.0 * delay_s, _BACKOFF_MAX_S)
            tries += 1
            try:
                return await self._channel.call(
                    request.method, message, deadline=self._try_deadline(limit)
                )
            except PserverError as error:
                if not self._may_pass(error):
                    raise
                # A try that the deadline cut short says less than the server said before it.
                if not (isinstance(failure, TransientError) and limit.is_over):
                    failure = error

    async def _pause(
        self, request: Request, failure: PserverError, *, limit: Deadline, delay_s: float
    ) -> None:
        """Wait before another try.

        Raises:
            DeadlineError: there is no time for one.
        """
        # Full jitter, so that trainers do not come back all at once.
        pause_s = delay_s * random.random()
        if limit.remaining_s <= pause_s:
            raise DeadlineError(
                f"{request.method}: {self.endpoint} did not answer before the deadline; "
                f"last failure: {failure}"
            ) from failure
        self.retries += 1
        await asyncio.sleep(pause_s)

    def _try_deadline(self, limit: Deadline) -> Deadline:
        """Return when a try that begins now has failed."""
        return Deadline.after(min(self._settings.try_timeout_s, limit.remaining_s))

    def _limit(self, request: Request) -> Deadline:
        """Return when to give up a server that does not answer from now on.

        A request that waits for other trainers has a later deadline than that; each time that its
        server says so, it is there.
        """
        patience = Deadline.after(self._settings.timeout_s)
        return min(request.deadline, patience, key=lambda deadline: deadline.at_s)

    def _tell_outage(self, tries: int, error: PserverError) -> None:
        """Say once which shard does not answer, when a request has failed often enough."""
        if tries <= self._settings.retry:
            return
        with self._room:
            was_out, self._is_out = self._is_out, True
        if not was_out:
            log.warning(
                "server does not answer", endpoint=self.endpoint, tries=tries, error=str(error)
            )

    def _tell_return(self) -> None:
        """Say that a shard that did not answer does."""
        with self._room:
            was_out, self._is_out = self._is_out, False
        if was_out:
            log.warning("server answers again", endpoint=self.endpoint, retries=self.retries)
