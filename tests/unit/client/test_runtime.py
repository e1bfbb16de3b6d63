"""What ``pserver.client.runtime`` promises: one thread with a loop, and a clear word in a fork."""

import os
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pserver
from pserver.client.runtime import Runtime

WAIT_S = 20.0


@pytest.fixture
def client() -> Iterator[pserver.Client]:
    """Return an embedded client with a table and a push that nobody waits for."""
    with pserver.embedded(2) as client:
        client.create_table(pserver.TableSpec(name="ads", dim=2, optimizer="sgd:lr=1"))
        client.start_push({"ads": gradients()})
        yield client


def gradients() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a push of one key."""
    return np.array([1], np.uint64), np.ones(2, np.float32), np.ones(1, np.uint32)


def in_fork(function: Callable[[], object]) -> str:
    """Return what a function ends with in a forked child of this process, as text.

    The child leaves without any of this process's clean-up. One that does not answer in time is
    killed, and the test fails.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python: there are threads
        child = os.fork()
    if child == 0:
        try:
            outcome = f"returned {function()!r}"
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            outcome = f"{type(error).__name__}: {error}"
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    try:
        answered, _, _ = select.select([reader], [], [], WAIT_S)
        if not answered:
            os.kill(child, signal.SIGKILL)
        assert answered, "the forked child hangs"
        return os.read(reader, 65536).decode()
    finally:
        os.close(reader)
        os.waitpid(child, 0)


CALLS: dict[str, Callable[[pserver.Client], object]] = {
    "pull": lambda client: client.pull("ads", [1]),
    "peek": lambda client: client.peek("ads", [1]),
    "push": lambda client: client.push("ads", [1], [[1.0, 1.0]]),
    "assign": lambda client: client.assign("ads", [1], [[1.0, 1.0]]),
    "start_pull": lambda client: client.start_pull({"ads": np.array([1], np.uint64)}),
    "start_push": lambda client: client.start_push({"ads": gradients()}),
    "create_table": lambda client: client.create_table(pserver.TableSpec(name="b", dim=1)),
    "spec": lambda client: client.spec("unknown"),
    "stats": lambda client: client.stats(),
    "flush": lambda client: client.flush(),
    "close": lambda client: client.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_forked_child_is_told_at_once_when_it_uses_the_client(
    client: pserver.Client, call: str
) -> None:
    """Every public call in a forked child is a RequestError that says what to do, never a hang."""
    outcome = in_fork(lambda: CALLS[call](client))

    assert outcome.startswith("RequestError: this client was made in process ")
    assert f"process {os.getpid()} and does not work in its forked child" in outcome
    assert outcome.endswith("connect in the child, or use the client in the parent only")


def test_client_goes_on_when_a_child_was_forked(client: pserver.Client) -> None:
    """A fork in between changes nothing for the parent."""
    in_fork(lambda: None)

    client.push("ads", [1], [[1.0, 1.0]])
    assert client.stats()[0].pushes_applied + client.stats()[1].pushes_applied == 2


def test_forked_child_can_connect_on_its_own(client: pserver.Client) -> None:
    """A child may make a client of its own, though it has inherited one."""

    def train() -> object:
        with pserver.embedded(1) as own:
            own.create_table(pserver.TableSpec(name="t", dim=1, initializer="constant:value=3"))
            return own.pull("t", [7, 8]).tolist()

    assert in_fork(train) == "returned [[3.0], [3.0]]"


def test_function_runs_on_the_loops_thread() -> None:
    """What is submitted runs in the one thread of the runtime, which ends with it."""
    runtime = Runtime()

    async def where() -> str:
        return threading.current_thread().name

    assert runtime.submit(where()).result(WAIT_S) == "pserver-client"
    runtime.stop()
    assert "pserver-client" not in {thread.name for thread in threading.enumerate()}
