"""Whose turn it is on a shard's tables: one piece of work at a time, in the order of arrival.

Rooms before and after: ``servicer`` hands over a function and awaits its result on the event
loop; the function works on tables, and its kernels release the GIL. ``lifecycle`` hands over walks:
work of seconds in slices of a millisecond or so, done in the owner thread.

Long work (``run``) is done in the owner thread, while the loop goes on. Short work (``run_short``) is
done by the loop itself, between two looks at its sockets: to hand a request to another thread and
its reply back costs the server 0.2 to 0.6 ms of CPU (requests of 27,600 keys, 4 in flight, paired runs
on 2 cores), more than the overlap of kernels with gRPC gives back to a shard that has one core.

What always holds:
    * Work is done in the order in which it was handed over, one piece at a time, so whoever does
      it owns the tables.
    * At most ``queue_max`` pieces wait; more are refused with ``OverloadedError``, which clients
      retry. A piece whose caller went away before its turn is not begun.
    * The loop does one short piece a turn, and replies leave before the next one is begun.
    * No request waits for more than one slice of a walk, and walks go on whatever the load: a slice
      is done after each request, and one after the other while no request waits.
"""

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from pserver.errors import OverloadedError, UnavailableError

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A function to run, and the future on the loop that waits for it."""

    future: asyncio.Future[Any]
    work: Callable[[], Any]
    is_short: bool

    @property
    def is_abandoned(self) -> bool:
        """Return whether nobody waits for it any more."""
        return self.future.cancelled() or self.future.get_loop().is_closed()


class Executor:
    """The owner thread and the queue. Used by one event loop at a time."""

    def __init__(self, *, name: str, queue_max: int) -> None:
        """Start the thread.

        Args:
            name: of the thread, seen in dumps.
            queue_max: pieces that may wait.
        """
        self._loop: asyncio.AbstractEventLoop | None = None  # the last one that put a piece
        self._waiting: deque[_Piece] = deque()  # the loop's
        self._turn_on: asyncio.AbstractEventLoop | None = None  # where one is arranged; the loop's
        self._handed: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._num_handed = 0  # to the thread; written by the loop only
        self._num_done = 0  # by the thread; written by it only
        self._num_put = 0
        self._queue_max = queue_max
        self._is_closed = False
        self._walks: deque[Iterator[None]] = deque()  # of whoever owns the tables
        self._is_slice_due = False  # a request had its turn since the last one; the loop's
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Return whether the shard is closing: walks that cannot go on give up."""
        return self._is_closed

    @property
    def num_put(self) -> int:
        """Return how many pieces came so far."""
        return self._num_put

    @property
    def queued(self) -> int:
        """Return how many pieces wait."""
        return len(self._waiting)

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in the owner thread and return what it returned, or raise what it raised.

        Raises:
            OverloadedError: the queue is full; nothing was begun.
            UnavailableError: the shard is closed.
        """
        return await self._put(work, is_short=False)

    async def run_short(self, work: Callable[[], T]) -> T:
        """Run a function of a few milliseconds on the loop, when its turn comes; else as ``run``."""
        return await self._put(work, is_short=True)

    def begin(self, walk: Iterator[None]) -> None:
        """Take up long work, each step of which is a slice. Called by a piece of work.

        The walk tells of its end itself, and of its failure: what it raises is logged here.
        """
        self._walks.append(walk)

    def close(self) -> None:
        """Finish what waits, walks included, and end the thread; on the loop, or when it has ended.

        What comes later is refused.
        """
        self._is_closed = True
        while self._waiting:
            self._hand_over(self._waiting.popleft())
        self._handed.put(None)
        self._thread.join()

    def _put(self, work: Callable[[], T], *, is_short: bool) -> asyncio.Future[T]:
        """Queue a piece and return its future."""
        if self._is_closed:
            raise UnavailableError("the shard is closed")
        if len(self._waiting) >= self._queue_max:
            raise OverloadedError(
                f"{self._queue_max} requests wait for this shard's owner thread; try again, "
                "or raise --queue-max"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append(_Piece(future, work, is_short))
        self._num_put += 1
        self._loop = loop  # before the counters are read: see ``_run``
        self._arrange_turn(loop)
        return future

    def _arrange_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take a turn soon, unless nothing waits, one is arranged, or the thread works."""
        has_work = self._waiting or self._walks
        if has_work and self._turn_on is not loop and self._num_handed == self._num_done:
            self._turn_on = loop
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do the next piece, or hand it to the thread; or a slice of a walk."""
        self._turn_on = None
        if self._walks and (self._is_slice_due or not self._waiting):
            self._is_slice_due = False
            self._hand_over(_Piece(loop.create_future(), self._advance, is_short=False))
            return
        self._is_slice_due = True
        while self._waiting:
            piece = self._waiting.popleft()
            if piece.is_abandoned:
                continue
            if piece.is_short:
                _settle(piece.future, *_do(piece.work))
            else:
                self._hand_over(piece)
            break
        self._arrange_turn(loop)

    def _hand_over(self, piece: _Piece) -> None:
        """Let the thread do a piece."""
        self._num_handed += 1
        self._handed.put(piece)

    def _run(self) -> None:
        """Be the owner thread."""
        while (piece := self._handed.get()) is not None:
            outcome = (None, None) if piece.is_abandoned else _do(piece.work)
            # In this order: if a new loop came meanwhile, either it is told here or it has seen that
            # the thread is done. A closed loop means that nobody waits any more.
            self._num_done += 1
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._finish, self._loop, piece.future, *outcome)
            del piece, outcome
        while self._walks:
            self._advance()

    def _advance(self) -> None:
        """Do one slice of the walk whose turn it is."""
        walk = self._walks.popleft()
        try:
            next(walk)
        except StopIteration:
            return
        except Exception:
            log.exception("long work ended by our own mistake")
            return
        self._walks.append(walk)

    def _finish(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
        result: object,
        error: Exception | None,
    ) -> None:
        """Hand back what the thread did, and go on."""
        if not future.get_loop().is_closed():
            _settle(future, result, error)
        self._arrange_turn(loop)


def _do(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what work came to: its result, or what it raised."""
    try:
        return work(), None
    except StopIteration as raised:  # no future takes it, and its caller would wait for ever
        error = RuntimeError("the work ended an iteration that it had not begun")
        error.__cause__ = raised
        return None, error
    except Exception as raised:  # noqa: BLE001 - it is raised where it is awaited
        return None, raised


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Give a future its outcome unless its caller went away."""
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
