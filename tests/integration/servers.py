"""Real ``pserver serve`` processes: started on free ports, waited for by their line, always ended.

They are forks of a process that has imported all they need (see ``forked``); ``FRESH`` starts an
interpreter, as a user does.

What always holds: a process that was started here is ended by its own id when its context ends,
whatever happened to it: stopped, killed, or drained. Every wait has a limit.
"""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from pserver.cli.main import main
from tests.integration.forked import Forked

WAIT_S = 30.0
"""The longest that a test waits for what must come."""

FRESH = (sys.executable, "-m", "pserver", "serve")
"""The command as a user starts it."""

READY = re.compile(r"shard (\d+) of (\d+) ready on (\S+:\d+)")

Start = Callable[..., "Server"]
Cluster = Callable[..., list["Server"]]


class Server:
    """One process. ``endpoint`` is where it listens, once ``wait_ready`` has returned."""

    def __init__(self, *flags: str, command: Sequence[str] | None = None) -> None:
        """Start it.

        Args:
            flags: of ``pserver serve``.
            command: that runs it; None for a fork.
        """
        self.endpoint = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.log: list[str] = []
        self._seen = 0
        output, into = os.pipe()
        self._output: IO[str] = os.fdopen(output, encoding="utf-8")
        self._process: Forked | subprocess.Popen[bytes]
        if command is None:
            self._process = Forked(main, ["serve", *flags], output=into, errors=into)
        else:
            self._process = subprocess.Popen([*command, *flags], stdout=into, stderr=into)
        os.close(into)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    def _read(self) -> None:
        """Be the reader of what the process prints."""
        for line in self._output:
            self._lines.put(line)
        self._lines.put(None)

    def wait_line(self, pattern: str) -> re.Match[str]:
        """Return the match of the next line in which a pattern is found."""
        while (line := self._lines.get(timeout=WAIT_S)) is not None:
            self.log.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no {pattern!r} in what the server printed: {''.join(self.log)}")

    def wait_ready(self) -> "Server":
        """Return once the server listens."""
        self.endpoint = self.wait_line(READY.pattern)[3]
        return self

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        self._process.send_signal(number)

    def wait_exit(self) -> tuple[int, str]:
        """Return the exit status and all that was printed."""
        status = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        while not self._lines.empty():
            self.log.append(self._lines.get() or "")
        return status, "".join(self.log)

    @property
    def is_running(self) -> bool:
        """Return whether the process is there."""
        return self._process.poll() is None

    def end(self) -> None:
        """End the process if it is there, stopped or not."""
        if self.is_running:
            self._process.kill()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        self._output.close()


@contextmanager
def servers() -> Iterator[Start]:
    """Return a starter of servers, all of which end with the context."""
    started: list[Server] = []

    def start(*flags: str, command: Sequence[str] | None = None) -> Server:
        given = flags if "--bind" in flags else ("--bind", "127.0.0.1:0", *flags)
        started.append(Server(*given, command=command))
        return started[-1]

    try:
        yield start
    finally:
        for server in started:
            server.end()


def start_cluster(start: Start, num_shards: int, *flags: str) -> list[Server]:
    """Start all shards of a cluster at once and wait until they are ready."""
    cluster = [
        start("--shard", str(shard), "--shards", str(num_shards), *flags)
        for shard in range(num_shards)
    ]
    return [server.wait_ready() for server in cluster]


def endpoints(cluster: list[Server]) -> str:
    """Return what ``connect`` takes."""
    return ",".join(server.endpoint for server in cluster)
