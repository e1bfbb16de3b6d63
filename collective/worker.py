"""One thread that runs a rank's collectives in order, while others compute.

Rooms before and after: ``fusion`` and ``hooks`` hand over operations as buckets become ready; each
gets a future.

What always holds: operations run in the order in which they were handed over. After one failed, the
later ones fail with its error at once: the group is of no more use. Owner: whoever made it; all
ranks must hand over the same operations in the same order.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future


class Worker:
    """A thread and its queue. Close it at the end."""

    def __init__(self, *, name: str) -> None:
        """Start the thread."""
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[], None]) -> "Future[None]":
        """Run an operation after those before it, and return what tells when it is done."""
        future: Future[None] = Future()
        self._queue.put((operation, future))
        return future

    def close(self) -> None:
        """Finish what was handed over, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            operation, future = item
            if self._failure is None:
                try:
                    operation()
                except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                    self._failure = error
            if self._failure is None:
                future.set_result(None)
            else:
                future.set_exception(self._failure)
            del item, operation, future
