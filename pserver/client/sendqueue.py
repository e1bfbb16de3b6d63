"""Bounded, ordered delivery of requests to one shard.

Rooms before and after: ``client`` puts one message; ``channel`` carries it. Nothing here looks
inside a message.

What always holds:
    * Requests leave in the order in which they were put; with a window of one they also arrive so.
    * At most ``window`` are on the wire; at most ``size`` requests and ``bytes_max`` bytes are
      waiting or open (one request over that alone in the queue passes). A full queue makes
      ``put`` wait. It never drops.
    * A retry sends the same bytes, so it carries the push_id of the first try and the shard
      applies it once. Only ``TransientError`` and a try that timed out are retried, until the
      request's deadline.
"""

import asyncio
import concurrent.futures
import random
import threading
from collections import deque
from dataclasses import dataclass

from pserver.client.channel import Channel
from pserver.client.runtime import Runtime
from pserver.config import ClientSettings
from pserver.deadline import Deadline
from pserver.errors import DeadlineError, PserverError, TransientError, UnavailableError

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
        self._waiting: deque[Request] = deque()  # the loop's
        self._in_flight = 0  # the loop's
        self._tasks: set[asyncio.Task[None]] = set()  # the loop's
        self._is_closed = False  # the loop's
        self.retries = 0  # written by the loop only

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
        """
        size = len(message)
        with self._room:
            if not self._room.wait_for(lambda: self._has_room(size), deadline.remaining_s):
                raise DeadlineError(
                    f"{method} to {self.endpoint}: the send queue stayed full ({self._count} "
                    f"requests, {self._bytes} bytes) until the deadline; the server is too slow "
                    "or does not answer. The request was not sent"
                )
            self._count += 1
            self._bytes += size
        request = Request(method, message, deadline, concurrent.futures.Future())
        self._runtime.call_soon(self._enqueue, request)
        return request.future

    async def close(self) -> None:
        """Give up what is not delivered, with an error, and close the channel."""
        error = UnavailableError(f"the client of {self.endpoint} was closed")
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._waiting:
            self._finish(self._waiting.popleft(), error)
        await self._channel.close()

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
        while self._waiting and self._in_flight < self._settings.window and not self._is_closed:
            self._in_flight += 1
            task = self._runtime.create_task(self._deliver(self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, request: Request) -> None:
        """Send one request until it is answered, and give its future the outcome."""
        outcome: bytes | BaseException = UnavailableError(f"the client of {self.endpoint} closed")
        try:
            outcome = await self._try_until_deadline(request)
        except PserverError as error:
            outcome = error
        finally:
            self._finish(request, outcome)
            self._in_flight -= 1
            self._start_some()

    async def _try_until_deadline(self, request: Request) -> bytes:
        """Return the reply, trying again after failures that may pass."""
        delay_s = _BACKOFF_FIRST_S
        while True:
            left_s = request.deadline.remaining_s
            try_deadline = Deadline.after(min(self._settings.try_timeout_s, left_s))
            try:
                return await self._channel.call(
                    request.method, request.message, deadline=try_deadline
                )
            except (TransientError, DeadlineError) as error:
                # Full jitter, so that trainers do not come back all at once.
                pause_s = delay_s * random.random()
                if request.deadline.remaining_s <= pause_s:
                    raise DeadlineError(
                        f"{request.method}: {self.endpoint} did not answer before the deadline; "
                        f"last failure: {error}"
                    ) from error
                self.retries += 1
                await asyncio.sleep(pause_s)
                delay_s = min(2.0 * delay_s, _BACKOFF_MAX_S)

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
