"""One process of a job on the machine where Ray put it: what a Ray actor does.

Rooms before and after: ``launch.ray_remote`` asks from where the job was launched, again and again; what runs here is
``pserver serve`` or ``trainer run``.

What always holds:
    * The process starts with the first question, and again with the first one after it ended; so an actor that
      Ray put on another machine needs nothing but to be asked.
    * What a question was answered is told again if it is asked again, so a lost reply loses no line.
    * The process ends with the actor, also when that is killed.
Owner: the actor's thread.
"""

import os
import queue
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pserver
from trainer.launch.child import Child, Events
from trainer.launch.local import without_ours

_WAIT_S = 1.0  # a question waits so long for the first line; what it brings along is here within that time


@dataclass(frozen=True, slots=True)
class Order:
    """What a process is.

    Attributes:
        name: for errors.
        module: that Python runs.
        listens: whether it gets ``--bind`` with an address of its machine.
        cwd: where it runs: a folder that every machine has.
        folder: for the files of the process, made here and removed at the end.
    """

    name: str
    module: str
    listens: bool
    cwd: str
    folder: str


@dataclass(frozen=True, slots=True)
class Told:
    """What a process did since the question before.

    Attributes:
        lines: that it printed.
        log: what it said on standard error.
        status: of its end; None: it runs.
    """

    lines: Sequence[str]
    log: str
    status: int | None


class Host:
    """The actor."""

    def __init__(self, order: Order, address: str | None = None) -> None:
        """Begin without a process.

        Args:
            order: what it will be.
            address: of this machine; None: what other machines of the cluster know it by.
        """
        self._order = order
        self._folder = Path(order.folder)
        self._address = address or _address_here()
        self._child: Child | None = None
        self._events: Events = queue.Queue()
        self._log_bytes = 0  # of the log, told
        self._turn = -1
        self._told = Told((), "", None)

    def free_place(self) -> str:
        """Return HOST:PORT of this machine with a port that nobody uses just now."""
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            return f"{self._address}:{probe.getsockname()[1]}"

    def ask(self, turn: int, words: Sequence[str], files: Mapping[str, str]) -> Told:
        """Return what the process did since the last turn, after a second at the most.

        Args:
            turn: one more than in the last question that was answered.
            words: arguments of the process, if it is started now.
            files: what its folder must hold, by name.

        Raises:
            pserver.ConfigError: the process cannot run on this machine.
        """
        if turn == self._turn:
            return self._told
        self._write(files)
        child = self._child or self._start(words)
        lines: list[str] = []
        is_over = False
        try:
            line = self._events.get(timeout=_WAIT_S)[1]
            while line is not None:
                lines.append(line)
                line = self._events.get_nowait()[1]
            is_over = True
        except queue.Empty:
            pass
        status = child.wait() if is_over else None
        log = self._new_log(child)
        if is_over:
            self._child = None
        self._turn, self._told = turn, Told(lines, log, status)
        return self._told

    def end(self) -> str:
        """End the process, if there is one, and return the rest of its log."""
        child, self._child = self._child, None
        log = ""
        if child is not None:
            child.terminate()
            child.end()
            log = self._new_log(child)
        shutil.rmtree(self._folder, ignore_errors=True)
        return log

    def _start(self, words: Sequence[str]) -> Child:
        """Start the process."""
        order = self._order
        if not Path(order.cwd).is_dir():
            raise pserver.ConfigError(
                f"{order.name}: {self._address} has no folder {order.cwd}, from which the job was launched; "
                "launch it from one that all nodes share"
            )
        os.chdir(order.cwd)
        bind = [f"--bind={self._address}:0"] if order.listens else []
        command = [sys.executable, "-m", order.module, *words, *bind]
        self._log_bytes = 0
        self._child = Child(
            order.name,
            0,
            command,
            log=self._folder / "log",
            environ=without_ours(os.environ),
            events=self._events,
        )
        return self._child

    def _new_log(self, child: Child) -> str:
        """Return what the log holds beyond what was told."""
        with child.log.open("rb") as file:
            file.seek(self._log_bytes)
            log = file.read()
        self._log_bytes += len(log)
        return log.decode("utf-8", errors="replace")

    def _write(self, files: Mapping[str, str]) -> None:
        """Let the folder hold some files, each one whole at every moment."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(self._folder / name, text)


def _address_here() -> str:
    """Return by which address the cluster knows this machine."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def write_whole(path: Path, text: str) -> None:
    """Let a file hold a text; who reads it meanwhile finds it as it was, or as it is."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
