"""Our commands as real processes, each a fork of one that has imported all that they need.

An interpreter needs 1 s of CPU until ``pserver serve`` listens, and 4 s until a trainer trains; a fork 0.1 s. The same are: process id,
signals, exit status, file descriptors, environment, folder, and ``main`` with its words. What a fork does not show
is ``python -m`` and what it imports; tests of that start an interpreter (``servers.FRESH``).

What always holds: the process that is forked from has one thread and no channel. A fork that still runs at the
end of the tests is ended.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import DupFd
from types import MappingProxyType
from typing import Any

from typing_extensions import override

Main = Callable[[Sequence[str]], int]
"""Of a command: takes its words, returns its exit status."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.integration.warm"])


class _Handed:
    """A file descriptor on its way to a fork."""

    def __init__(self, file: int) -> None:
        self._file = file

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _take, (DupFd(self._file),)


def _take(handed: Any) -> int:
    file: int = handed.detach()
    return file


def _be(
    main: Main, words: Sequence[str], environ: dict[str, str], output: int, errors: int
) -> None:
    """Be the command, to the end of an interpreter."""
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for file in {output, errors}:
        os.close(file)
    try:
        status = main(words)
    finally:
        atexit._run_exitfuncs()
    sys.exit(status)


class Forked:
    """A command that runs, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(
        self,
        main: Main,
        words: Sequence[str],
        *,
        output: int,
        errors: int,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start it.

        Args:
            main: of the command.
            words: for it.
            output: file descriptor of what it prints; stays open here.
            errors: of what it says beside.
            env: variables beside those of this process.
        """
        environ = {**os.environ, **env}
        given: Any = (main, words, environ, _Handed(output), _Handed(errors))
        self._process = _CONTEXT.Process(target=_be, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Return the exit status once it is there.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to this process only, if it is there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Piped(Forked):
    """One whose output is read here as it comes.

    Attributes:
        stdout: what it prints.
        stderr: what it says beside.
        returncode: as of ``subprocess.Popen``.
    """

    def __init__(self, main: Main, *words: str) -> None:
        """Start it with these words."""
        (output, print_to), (errors, say_to) = os.pipe(), os.pipe()
        self.stdout = os.fdopen(output, encoding="utf-8")
        self.stderr = os.fdopen(errors, encoding="utf-8")
        super().__init__(main, words, output=print_to, errors=say_to)
        os.close(print_to)
        os.close(say_to)
        self.returncode: int | None = None

    @override
    def wait(self, timeout: float) -> int:
        self.returncode = super().wait(timeout)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Return the rest of what it prints and says, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it still ran, and is ended.
        """
        with ThreadPoolExecutor(2) as pool, self.stdout, self.stderr:
            reading = [pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            finally:
                self.kill()
            printed, said = (read.result() for read in reading)
            return printed, said

    def end(self, timeout: float) -> None:
        """End it if it is there, and close what was read."""
        self.kill()
        self.wait(timeout)
        self.stdout.close()
        self.stderr.close()


def run(
    main: Main, *words: str, timeout: float, env: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.CompletedProcess[str]":
    """Return how a command ended and what it printed, as ``subprocess.run`` does."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
    ):
        files = {"output": output.fileno(), "errors": errors.fileno()}
        process = Forked(main, words, env=env, **files)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, status, output.read(), errors.read())
