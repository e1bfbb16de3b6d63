"""Holds writes back for a moment, so that all shards of a cluster mark a cut with nothing in between.

Rooms before and after: ``servicer`` lets every write pass here before it enters the owner thread's queue;
``save`` shuts and opens.

What always holds: the gate opens by itself after ``HOLD_S_MAX``, whatever became of who shut it; writes go
on in the order in which they came. Owner: the event loop of who shuts it.
"""

import asyncio
import contextlib
import threading

HOLD_S_MAX = 2.0
"""A client that shut the gates and went away stops writes for this long."""

READS = frozenset(
    ("Describe", "Stats", "Inspect", "Pull", "PullDense", "PullChanged", "Save", "Load")
)
"""Methods that a gate does not stop. A pull may create a row: with first weights, which are the same
whether a cut has them or not."""


class Gate:
    """Open unless a save holds it. Thread-safe: embedded clients have an event loop each."""

    def __init__(self) -> None:
        """Begin open."""
        self._lock = threading.Lock()
        self._is_shut = False  # under _lock
        self._waiting: list[asyncio.Future[None]] = []  # under _lock
        self._timer: asyncio.TimerHandle | None = None
        self.has_expired = False

    async def passed(self, method: str) -> None:
        """Return when a request may go on; at once if it is no write or the gate is open."""
        if method in READS or self._is_open():
            return
        with self._lock:
            if self._is_open():  # it may have opened just now
                return
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
        await future

    def _is_open(self) -> bool:
        return not self._is_shut

    def shut(self) -> None:
        """Let writes wait from now on."""
        self._stop_timer()
        with self._lock:
            self._is_shut, self.has_expired = True, False
        self._timer = asyncio.get_running_loop().call_later(HOLD_S_MAX, self._expire)

    def open(self) -> None:
        """Let writes go on. Opening twice is fine."""
        self._stop_timer()
        with self._lock:
            self._is_shut = False
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_wake, future)

    def _expire(self) -> None:
        self.has_expired = True
        self.open()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _wake(future: "asyncio.Future[None]") -> None:
    """Let one request go on, unless its caller went away."""
    if not future.done():
        future.set_result(None)
