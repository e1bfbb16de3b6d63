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
"""

import asyncio
import concurrent.futures
import functools
import random
import threading
from collections import deque
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

log = structlog.get_logger(__name__)

SPAN_MAX = 1024
"""How far the newest request on the wire may be ahead of the oldest: a shard remembers the last
2048 pushes of a trainer, and one that fell behind those would be refused when it is tried again."""

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 2.0


@dataclass(frozen=True, slots=True)
class Request:
    """A message on its way, and the future that gets its reply."""

    method: str
    message: bytes
    deadline: Deadline
    future: "concurrent.futures.Future[bytes]"


class SendQueue:
    """The queue of one shard. ``put`` and the counters are thread-safe; the rest is the loop's."""

    def __init__(self, channel: Channel, runtime: Runtime, settings: ClientSettings) -> None:
        """Begin empty.

        Args:
            channel: to the shard.
            runtime: whose loop delivers.
            settings: the limits.
        """
        self._channel = channel
        self._runtime = runtime
        self._settings = settings
        self._room = threading.Condition()
        self._count = 0  # waiting or open; under _room
        self._bytes = 0  # of those; under _room
        self._is_closed = False  # under _room; the loop's to write
        self._waiting: deque[Request] = deque()  # the loop's
        self._num_started = 0  # the loop's
        self._open: dict[int, asyncio.Task[bytes]] = {}  # by number, oldest first; the loop's
        self.retries = 0  # written by the loop only
        self._is_out = False  # whether an outage was told; the loop's
        self.acknowledged = (
            0  # pushes, by the process that the shard is now; written by the loop only
        )
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

    def put(
        self, method: str, message: bytes, *, deadline: Deadline
    ) -> "concurrent.futures.Future[bytes]":
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
            may_go = self._room.wait_for(
                lambda: self._is_closed or self._has_room(size), deadline.remaining_s
            )
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
            request = Request(method, message, deadline, concurrent.futures.Future())
            self._runtime.call_soon(self._enqueue, request)  # in here, so never after ``close``
        return request.future

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

    async def close(self) -> None:
        """Give up what is not delivered, with an error, and close the channel."""
        with self._room:
            self._is_closed = True
            self._room.notify_all()
        await asyncio.sleep(0)  # what was put just before is in _waiting now
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._waiting:
            self._finish(self._waiting.popleft(), self._closed())
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

    def _enqueue(self, request: Request) -> None:
        self._waiting.append(request)
        self._start_some()

    def _start_some(self) -> None:
        """Send what the window allows."""
        while self._waiting and self._may_start() and not self._is_closed:
            request = self._waiting.popleft()
            task = self._runtime.create_task(self._try_until_deadline(request))
            self._open[self._num_started] = task
            task.add_done_callback(functools.partial(self._end, self._num_started, request))
            self._num_started += 1

    def _may_start(self) -> bool:
        """Return whether the window and the span allow one more on the wire."""
        oldest = next(iter(self._open), self._num_started)
        return len(self._open) < self._settings.window and self._num_started - oldest < SPAN_MAX

    def _end(self, number: int, request: Request, task: "asyncio.Task[bytes]") -> None:
        """Give a request's future what its delivery came to, even if it never began."""
        del self._open[number]
        if task.cancelled():
            self._finish(request, self._closed())
        elif (error := task.exception()) is None:
            self._finish(request, task.result())
        elif isinstance(error, PserverError):
            self._finish(request, error)
        else:
            mistake = InternalError(f"{request.method} to {self.endpoint}: {error!r}")
            mistake.__cause__ = error
            self._finish(request, mistake)
        self._start_some()

    async def _try_until_deadline(self, request: Request) -> bytes:
        """Return the reply, trying again after failures that may pass."""
        delay_s = _BACKOFF_FIRST_S
        message, tries = request.message, 0
        limit = self._limit(request)
        while True:
            tries += 1
            try_deadline = Deadline.after(min(self._settings.try_timeout_s, limit.remaining_s))
            try:
                reply = await self._channel.call(request.method, message, deadline=try_deadline)
            except NotYetError as error:  # the server is there, and held it as long as it may
                tries, limit = 0, self._limit(request)
                if limit.is_over:
                    raise DeadlineError(
                        f"{request.method} to {self.endpoint} waited until the deadline: {error}"
                    ) from error
            except RestartedError as error:
                if self.revival is None or request.deadline.is_over:
                    raise
                message = await self.revival.revived(self, request.method, message, error)
                limit = self._limit(request)
            except (TransientError, DeadlineError) as error:
                self._tell_outage(tries, error)
                # Full jitter, so that trainers do not come back all at once.
                pause_s = delay_s * random.random()
                if limit.remaining_s <= pause_s:
                    raise DeadlineError(
                        f"{request.method}: {self.endpoint} did not answer before the deadline; "
                        f"last failure: {error}"
                    ) from error
                self.retries += 1
                await asyncio.sleep(pause_s)
                delay_s = min(2.0 * delay_s, _BACKOFF_MAX_S)
            else:
                self._tell_return()
                self.acknowledged += request.method == "Push"
                return reply

    def _limit(self, request: Request) -> Deadline:
        """Return when to give up a server that does not answer from now on.

        A request that waits for other trainers has a later deadline than that; each time that its
        server says so, it is there.
        """
        patience = Deadline.after(self._settings.timeout_s)
        return min(request.deadline, patience, key=lambda deadline: deadline.at_s)

    def _tell_outage(self, tries: int, error: PserverError) -> None:
        """Say once which shard does not answer, when a request has failed often enough."""
        if tries > self._settings.retry and not self._is_out:
            self._is_out = True
            log.warning(
                "server does not answer", endpoint=self.endpoint, tries=tries, error=str(error)
            )

    def _tell_return(self) -> None:
        """Say that a shard that did not answer does."""
        if self._is_out:
            self._is_out = False
            log.warning("server answers again", endpoint=self.endpoint, retries=self.retries)

    def _finish(self, request: Request, outcome: bytes | BaseException) -> None:
        """Free the request's room and settle its future."""
        with self._room:
            self._count -= 1
            self._bytes -= len(request.message)
            self._room.notify_all()
        if isinstance(outcome, BaseException):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome)
