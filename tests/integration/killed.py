"""A server that is killed at random moments and comes back within a moment, each time a real process.

Each is a fork (see ``forked``), so a restart costs 0.1 s. What always holds: the server that runs last is ended with
the context.
"""

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pserver.cli.main import main
from tests.integration.forked import Forked

WAIT_S = 60.0
"""The longest that a test waits for what must come."""


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
        self._process.wait(WAIT_S)

    def _start(self) -> Forked:
        with self.log.open("ab") as log:
            file = log.fileno()
            return Forked(main, ["serve", *self._flags], output=file, errors=file)

    def kill(self) -> None:
        """End the process as a lack of memory does, and start the next one."""
        assert self._process.poll() is None, self.log.read_text()
        self._process.kill()
        self._process.wait(WAIT_S)
        self.kills += 1
        self._process = self._start()

    def stop(self) -> None:
        """Let it drain and end."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(WAIT_S) == 0, self.log.read_text()

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
