"""One process that a launch started: its output line by line, its log, its end.

Rooms before and after: ``launch`` starts trainers and servers; what they print on standard output comes
back through one queue, what they say on standard error goes to a file. ``launch.ray_remote`` has the same of
processes of other machines.

What always holds: a process that was started is ended, by its own id, when the launch ends, and is killed when the
thread that started it ends without that, as with a launcher that is killed.
"""

import contextlib
import json
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from trainer.launch.leash import on_leash

END_S = 10.0
"""Seconds that a process gets to end by itself after SIGTERM."""

_REASON_MAX = 500  # characters of a log's last line in an error


class Started(Protocol):
    """A process of a job, wherever it is.

    Attributes:
        name: such as ``trainer 2``.
        number: among those of its kind, from 0.
        log: the file with its standard error.
    """

    name: str
    number: int
    log: Path

    def wait(self) -> int:
        """Return the exit status, once the process has closed its output; below 0 it was killed, or is lost."""
        ...

    def how(self) -> str:
        """Return how it ended, such as ``ended with status 1``."""
        ...

    def reason(self) -> str:
        """Return the last thing that it said on standard error."""
        ...


Events: TypeAlias = "queue.Queue[tuple[Started, str | None]]"
"""Lines that processes printed; None when one has closed its output."""


class Child:
    """A process. Owner: the thread that launched it, which it does not outlive.

    Attributes:
        name: such as ``trainer 2``.
        number: among those of its kind, from 0.
        log: the file with its standard error.
    """

    def __init__(
        self,
        name: str,
        number: int,
        command: Sequence[str],
        *,
        log: Path,
        environ: Mapping[str, str],
        events: Events,
    ) -> None:
        """Start it.

        Args:
            name: of it, for messages.
            number: of it.
            command: the path of a program, and its arguments.
            log: written anew.
            environ: all of its environment.
            events: gets its lines.
        """
        self.name = name
        self.number = number
        self.log = log
        self._events = events
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                on_leash(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                env=dict(environ),
                text=True,
                encoding="utf-8",
            )
        self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    def wait(self) -> int:
        """Return the exit status, once the process has closed its output."""
        return self._process.wait()

    def how(self) -> str:
        """Return how it ended."""
        return how_ended(self.wait())

    def reason(self) -> str:
        """Return the last thing that it said on standard error."""
        return last_words(self.log)

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process.poll() is None:
            self._process.terminate()

    def end(self) -> None:
        """Wait for its end, and end it by force if that takes too long."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        """Hand on what it prints."""
        assert self._process.stdout is not None, "a pipe was asked for"
        with self._process.stdout as lines:
            for line in lines:
                self._events.put((self, line.rstrip("\n")))
        self._events.put((self, None))


def how_ended(status: int) -> str:
    """Return what an exit status means.

    >>> how_ended(1), how_ended(-9)
    ('ended with status 1', 'was killed by SIGKILL')
    """
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def last_words(log: Path) -> str:
    """Return the last thing that a log says."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line for line in lines if line.strip()]
    if not said:
        return "it said nothing"
    with contextlib.suppress(ValueError, KeyError, TypeError):  # a line of --log-format json
        return str(json.loads(said[-1])["error"])[:_REASON_MAX]
    return said[-1][:_REASON_MAX]


def end_all(children: Sequence[Child]) -> None:
    """End processes: ask all, then wait for each."""
    for child in children:
        child.terminate()
    for child in children:
        child.end()
