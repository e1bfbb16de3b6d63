"""Requests that wait for others: on the event loop, and never in their turn on the tables.

Rooms before and after: ``servicer`` runs every request through ``Waiting.run``; work that must wait
raises ``NotYet``; ``rounds`` and ``group`` tell ``Progress`` when it may go on.

What always holds: work that raised ``NotYet`` changed nothing and is begun again after progress; no
progress is missed, since what raised it says how much there had been.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pserver.config import HOLD_S
from pserver.errors import NotYetError
from pserver.trace.call import turns

T = TypeVar("T")


class NotYet(Exception):  # noqa: N818 - it is no error: the work is begun again
    """Raised by work that has to wait. Never leaves the server.

    Attributes:
        seen: ``Progress.count`` when it was raised.
    """

    def __init__(self, seen: int, reason: str) -> None:
        """Take how much progress there had been, and what is waited for."""
        super().__init__(reason)
        self.seen = seen


class Progress:
    """Counts what lets requests go on. ``bump`` is the owner thread's, the rest the loop's."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order in which they came

    def bump(self) -> None:
        """Let everything that waits look again."""
        self.count += 1
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    async def after(self, seen: int, *, until: float) -> bool:
        """Wait for progress, and return whether there was any by a time of the loop."""
        loop = asyncio.get_running_loop()
        self._loop = loop  # before the count is read, so that a later bump wakes this
        if self.count != seen:
            return True
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout_at(until):
                await waiter
        except TimeoutError:
            return False
        finally:
            del self._waiters[waiter]
        return True

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class Waiting:
    """Runs work in turns of the executor, again and again while it has to wait. Owner: the loop."""

    def __init__(self, progress: Progress) -> None:
        """Take what tells of progress."""
        self._progress = progress

    async def run(self, run: Callable[[Callable[[], T]], Awaitable[T]], work: Callable[[], T]) -> T:
        """Return what the work returns once it need not wait.

        Args:
            run: of the executor, which gives it a turn.
            work: raises ``NotYet`` when it has to wait.

        Raises:
            NotYetError: it had to wait for ``HOLD_S``; nothing was changed.
        """
        until: float | None = None
        work = turns(work)
        while True:
            try:
                return await run(work)
            except NotYet as wait:
                seen, reason = wait.seen, str(wait)
            until = until or asyncio.get_running_loop().time() + HOLD_S
            if not await self._progress.after(seen, until=until):
                raise NotYetError(reason)
