"""At the end of a program: clients that nobody closed are closed, so that queued pushes arrive.

Rooms before and after: ``Client`` remembers itself here when it is made.
"""

import atexit
import os
import weakref
from typing import Protocol


class Closeable(Protocol):
    """Something that must be closed before the program ends; closing twice is fine."""

    def close(self) -> None:
        """Finish what is on its way, and close."""
        ...


_open: "weakref.WeakKeyDictionary[Closeable, int]" = weakref.WeakKeyDictionary()


def close_at_exit(client: Closeable) -> None:
    """Close a client when this process ends, unless it is gone by then.

    A forked child does not close its parent's. What closing raises is printed by Python.
    """
    _open[client] = os.getpid()


@atexit.register
def _close_all() -> None:
    """Close every client that this process made."""
    for client, pid in list(_open.items()):
        if pid == os.getpid():
            client.close()
