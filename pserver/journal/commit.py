"""When what was written is durable: one sync for all records that wait for it, in a thread of its own.

Rooms before and after: ``writer`` says what was written; ``server.recording`` holds replies until it is
durable, where that was promised.

    ========  ====================================================  ==================================
    fsync     a reply leaves                                        a power failure takes
    ========  ====================================================  ==================================
    always    after the sync that covers its record; the tables     nothing that was acknowledged
              go on meanwhile, so one sync covers many records
    interval  at once; there is a sync every ``interval_s``         that long, and the sync's own time
    off       at once; the system writes when it likes              what it had not written: often 30 s
    ========  ====================================================  ==================================

A process that is killed loses nothing in any of them: what it wrote is the system's.

What always holds: ``durable`` returns only if all records up to the position are on the disk. After a sync
that failed nothing is promised any more: what it was to write may be gone, whatever a later one says.
"""

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable

import structlog

from pserver.errors import StorageError
from pserver.journal.folder import Fsync

log = structlog.get_logger(__name__)


def loss_bound(fsync: Fsync, interval_ms: float) -> str:
    """Return what people are told of a promise.

    >>> loss_bound("interval", 100.0)
    'fsync interval: a killed process loses nothing, a power failure at most 100 ms and one sync'
    """
    lost = {
        "always": "nothing that was acknowledged",
        "interval": f"at most {interval_ms:g} ms and one sync",
        "off": "what the system has not written yet",
    }
    return f"fsync {fsync}: a killed process loses nothing, a power failure {lost[fsync]}"


class Commit:
    """Syncs one journal. Thread-safe; clients of an embedded cluster have an event loop each.

    Attributes:
        failure: why nothing is promised any more; empty: it is.
        listener: is called, in any thread, when others may hear of more records; None: nobody.
        syncs, sync_s: how many there were, and the seconds that they took; the thread writes them.
    """

    def __init__(
        self, fsync: Fsync, interval_s: float, *, on_failure: Callable[[str], None]
    ) -> None:
        """Sync nothing yet: the thread starts with the first segment.

        Args:
            fsync: the promise.
            interval_s: seconds between two syncs, with ``interval``.
            on_failure: is told, in the thread, of a sync that failed.
        """
        self.failure = ""
        self.listener: Callable[[], None] | None = None
        self.syncs, self.sync_s = 0, 0.0
        self._fsync, self._interval_s, self._on_failure = fsync, interval_s, on_failure
        self._changed = threading.Condition()
        self._written = self._synced = 0  # sequences; under _changed, as is all that follows
        self._file = -1
        self._retired: list[int] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    @property
    def synced(self) -> int:
        """Return the last position that is known to be durable."""
        return self._synced

    def begin_segment(self, file: int) -> None:
        """Sync another file from now on; the one before is synced and closed."""
        with self._changed:
            is_first = self._file < 0
            if not is_first:
                self._retired.append(self._file)
            self._file = file
            retired = self._retired if self._fsync == "off" else []
        if is_first and self._fsync != "off":
            self._thread.start()
        while retired:
            os.close(retired.pop())

    def wrote(self, position: int) -> None:
        """Hear that records up to a position are with the system."""
        if self._fsync != "off":
            with self._changed:
                self._written = position
                if self._fsync == "always":
                    self._changed.notify()
        if self._fsync != "always":
            self._tell()

    async def durable(self, position: int) -> None:
        """Return once records up to a position are as durable as was promised.

        Raises:
            StorageError: they could not be synced.
        """
        if self._fsync != "always" or self._synced >= position:
            return
        with self._changed:
            if self.failure:
                raise StorageError(self.failure)
            if self._synced >= position:
                return
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((position, future))
        await future

    def close(self) -> bool:
        """Sync and close all files, end the thread, and return whether all of it is durable."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._sync(always=True)
        os.close(self._file)
        self._file = -1
        return not self.failure

    def _run(self) -> None:
        """Be the thread."""
        while True:
            with self._changed:
                if self._fsync == "interval":
                    self._changed.wait_for(lambda: self._is_closed, self._interval_s)
                else:
                    self._changed.wait_for(lambda: self._is_closed or self._has_work())
                if self._is_closed or self.failure:
                    return
            self._sync(always=False)

    def _has_work(self) -> bool:
        return self._written > self._synced

    def _sync(self, *, always: bool) -> None:
        """Sync what was written until now, and let those go on that wait for it."""
        with self._changed:
            position, file, retired = self._written, self._file, self._retired
            self._retired = []
            if not (always or self._has_work() or retired):
                return
        begin = time.perf_counter()
        try:
            for other in retired:
                os.fdatasync(other)
            os.fdatasync(file)
            self.syncs += 1
            self.sync_s += time.perf_counter() - begin
        except OSError as error:
            self._fail(f"the journal could not be synced ({error}); restart this server")
        for other in retired:
            os.close(other)
        with self._changed:
            if not self.failure:
                self._synced = max(self._synced, position)
            limit = math.inf if self.failure else self._synced
            ready = [future for wanted, future in self._waiting if wanted <= limit]
            self._waiting = [waiting for waiting in self._waiting if waiting[0] > limit]
        self._wake(ready)
        self._tell()

    def _tell(self) -> None:
        listener = self.listener
        if listener is not None:
            listener()

    def _fail(self, why: str) -> None:
        log.error("a sync failed", reason=why)
        with self._changed:
            self.failure = self.failure or why
        self._on_failure(why)

    def _wake(self, futures: list["asyncio.Future[None]"]) -> None:
        """Let replies go, each on its own loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future in futures:
            by_loop.setdefault(future.get_loop(), []).append(future)
        for loop, group in by_loop.items():
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, group, self.failure)


def _settle(futures: list["asyncio.Future[None]"], failure: str) -> None:
    for future in futures:
        if future.done():  # its caller went away
            continue
        if failure:
            future.set_exception(StorageError(failure))
        else:
            future.set_result(None)
