"""The exit statuses that orchestrators read, each from a real process: try again, or give up.

The table stands in ``deploy/RUNBOOK.md``; ``tests/deploy`` holds the policies of the manifests to it.
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from pserver.options import USAGE_EXIT
from tests.integration.servers import WAIT_S, Start
from trainer.cli.main import FAILURE_EXIT, SIGTERM_EXIT

pytestmark = pytest.mark.integration

AS_PROCESS_1 = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--")
SMALL = (
    "--rows",
    "100000",
    "--batch-size",
    "64",
    "--model",
    "lr",
    "--epochs",
    "1000",
    "--threads",
    "1",
)


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Have a process whose two outputs are one; it is ended with the context."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_line(process: subprocess.Popen[str], text: str) -> str:
    """Return the next line that holds a text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return line
    raise AssertionError(f"no {text!r} in {''.join(lines)}")


@pytest.fixture
def as_process_1() -> tuple[str, ...]:
    """Return the words that have a command be process 1, as in a container."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare of util-linux")
    tried = subprocess.run([*AS_PROCESS_1, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"needs a namespace of process ids, which needs privileges: {tried.stderr}")
    return AS_PROCESS_1


def process_1_of(outer: subprocess.Popen[str]) -> psutil.Process:
    """Return the process that ``unshare`` has made process 1."""
    (inner,) = psutil.Process(outer.pid).children()
    return inner


def test_i7_taken_port_is_for_giving_up(start: Start) -> None:
    """A server that cannot listen where it is told to exits 2: trying again would not help."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = start("--bind", f"127.0.0.1:{taken.getsockname()[1]}")

        status, text = server.wait_exit()

    assert status == USAGE_EXIT, text
    assert "cannot listen there" in text.splitlines()[-1]  # what a pod's end is told with (I8)


def test_i3_server_drains_when_it_is_process_1(as_process_1: tuple[str, ...]) -> None:
    """SIGTERM to a server that is process 1 drains it, exit 0; nobody else would handle it."""
    command = (*as_process_1, sys.executable, "-m", "pserver", "serve", "--bind", "127.0.0.1:0")
    with running(*command) as outer:
        wait_line(outer, " ready on ")

        process_1_of(outer).send_signal(signal.SIGTERM)
        text, _ = outer.communicate(timeout=WAIT_S)

        assert outer.returncode == 0
        assert "event='drained'" in text


@pytest.mark.slow
def test_i3_trainer_ends_when_it_is_process_1(as_process_1: tuple[str, ...]) -> None:
    """SIGTERM to a trainer that is process 1 and at work ends it with the status for trying again."""
    command = (*as_process_1, sys.executable, "-m", "trainer", "run", "--json-progress", *SMALL)
    with running(*command) as outer:
        wait_line(outer, '{"progress": ')

        process_1_of(outer).send_signal(signal.SIGTERM)
        text, _ = outer.communicate(timeout=WAIT_S)

        assert outer.returncode == SIGTERM_EXIT, text
        assert text.splitlines()[-1] == "trainer run: ended by SIGTERM"


@pytest.mark.slow
def test_i7_lost_server_is_for_trying_again(start: Start) -> None:
    """A trainer whose server is killed ends with the status of failures, which may pass."""
    server = start().wait_ready()
    flags = ("--ps", server.endpoint, "--give-up-after", "2", "--json-progress")
    with running(sys.executable, "-m", "trainer", "run", *flags, *SMALL) as trainer:
        wait_line(trainer, '{"progress": ')

        server.send(signal.SIGKILL)
        text, _ = trainer.communicate(timeout=WAIT_S)

        assert trainer.returncode == FAILURE_EXIT, text
        assert server.endpoint in text.splitlines()[-1]
