"""The client's event loop, in a thread of its own.

Rooms before and after: ``client`` is called from any thread; ``sendqueue`` lets what failed wait and be tried
again on the loop, a trainer's heartbeats live there, and in embedded mode the shards.

Fork: the thread does not exist in a forked child (a DataLoader worker). Using the client there is
an error that says what to do, at once; a child that does not use it is not disturbed.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from pserver.errors import RequestError

T = TypeVar("T")


class Runtime:
    """One thread that runs one loop. Thread-safe."""

    def __init__(self) -> None:
        """Start the thread."""
        self._pid = os.getpid()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pserver-client", daemon=True)
        self._thread.start()

    def check_process(self) -> None:
        """Refuse to work in a forked child.

        Raises:
            RequestError: this process was forked after the client was made.
        """
        if os.getpid() != self._pid:
            raise RequestError(
                f"this client was made in process {self._pid} and does not work in its forked "
                f"child {os.getpid()}; connect in the child, or use the client in the parent only"
            )

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Run a coroutine on the loop and return its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """End the loop and its thread."""
        if os.getpid() == self._pid and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        """Be the loop's thread."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
