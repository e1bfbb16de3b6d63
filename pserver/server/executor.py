"""The owner thread of a shard: the only one that touches its tables, one request at a time.

Rooms before and after: ``servicer`` hands over a function and awaits its result on the event
loop; the function works on tables, and its kernels release the GIL.

What always holds:
    * Work runs in the order in which it was handed over.
    * At most ``queue_max`` pieces wait; more are refused with ``OverloadedError``, which clients
      retry. A piece whose caller went away before its turn is not begun.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pserver.errors import OverloadedError, UnavailableError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A function to run, and the future on the loop that waits for it."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any]


class Executor:
    """One thread and its queue. Owner: whoever made it; ``run`` is for event loops."""

    def __init__(self, *, name: str, queue_max: int) -> None:
        """Start the thread.

        Args:
            name: of the thread, seen in dumps.
            queue_max: pieces that may wait.
        """
        self._queue: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._queue_max = queue_max
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Return how many pieces wait."""
        return self._queue.qsize()

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in the owner thread and return what it returned, or raise what it raised.

        Raises:
            OverloadedError: the queue is full; nothing was begun.
            UnavailableError: the shard is closed.
        """
        if self._is_closed:
            raise UnavailableError("the shard is closed")
        if self._queue.qsize() >= self._queue_max:
            raise OverloadedError(
                f"{self._queue_max} requests wait for this shard's owner thread; try again, "
                "or raise --queue-max"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Piece(loop, future, work))
        return await future

    def close(self) -> None:
        """Finish what waits, and end the thread. What comes later is refused."""
        self._is_closed = True
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Be the owner thread."""
        while (piece := self._queue.get()) is not None:
            if piece.future.cancelled():
                continue
            try:
                result, error = piece.work(), None
            except Exception as raised:  # noqa: BLE001 - it is raised where it is awaited
                result, error = None, raised
            # The loop is closed if its process is ending: nobody waits any more.
            with contextlib.suppress(RuntimeError):
                piece.loop.call_soon_threadsafe(_settle, piece.future, result, error)
            del piece, result, error


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Give a future its outcome unless its caller went away."""
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
