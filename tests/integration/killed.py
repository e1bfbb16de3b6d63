"""A server that is killed at random moments and comes back within a moment, each time a real process.

A process of its own imports all that ``pserver serve`` needs and loads its kernels once; each server is a
fork of it, so a restart costs 0.1 s and not the 3 s of an interpreter. What always holds: the server that
runs last is ended with the context.
"""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType

from pserver.cli import main

WAIT_S = 60.0
"""The longest that a test waits for what must come."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.integration.warm"])


def _serve(flags: list[str], log: str) -> None:
    """Be the server: what it prints goes to a file."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.exit(main(["serve", *flags]))


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Killed:
    """One shard on one port, over many processes.

    Attributes:
        endpoint: of all of them.
        kills: that there were.
    """

    def __init__(self, folder: Path, *flags: str, journal: bool = True) -> None:
        """Start it.

        Args:
            folder: for its journal and what it prints.
            flags: of ``pserver serve`` beside.
            journal: whether it keeps one; without, it comes back empty.
        """
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.log = folder / "server.log"
        self.kills = 0
        kept = ("--journal", str(folder / "journal"), "--restore", "latest") if journal else ()
        self._flags = ["--bind", self.endpoint, *kept, *flags]
        self._process = self._start()

    def __enter__(self) -> "Killed":
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process that runs now."""
        self._process.kill()
        self._process.join(WAIT_S)

    def _start(self) -> ForkServerProcess:
        process = _CONTEXT.Process(target=_serve, args=(self._flags, str(self.log)))
        process.start()
        return process

    def kill(self) -> None:
        """End the process as a lack of memory does, and start the next one."""
        assert self._process.is_alive(), self.log.read_text()
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(WAIT_S)
        self.kills += 1
        self._process = self._start()

    def stop(self) -> None:
        """Let it drain and end."""
        self._process.terminate()
        self._process.join(WAIT_S)
        assert self._process.exitcode == 0, self.log.read_text()

    def start(self) -> None:
        """Start it again after ``stop``."""
        self._process = self._start()


def until(is_so: Callable[[], bool], pause: Callable[[float], object]) -> None:
    """Return when something is so, looked at every millisecond."""
    for _ in range(int(WAIT_S * 1000)):
        if is_so():
            return
        pause(0.001)
    raise AssertionError("it did not come to be")
