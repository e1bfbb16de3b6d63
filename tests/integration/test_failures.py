"""Servers that are not there, do not answer, stand still, or die: errors in time, never a hang."""

import http.server
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from structlog.testing import CapturingLogger

import pserver
from pserver.client import connect as connect_room
from tests.integration.servers import WAIT_S, Server, Start

SLACK_S = 10.0
"""What a call may take beyond its deadline on a busy machine."""


def connect(server: Server, **settings: float) -> pserver.Client:
    """Return a client with a table of one float that sgd moves by 1."""
    spec = pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros")
    with pserver.connect(server.endpoint, connect_s=WAIT_S) as patient:
        patient.create_table(spec)  # which may compile for longer than a test's deadline
    client = pserver.connect(
        server.endpoint,
        settings=pserver.ClientSettings.make(settings, origins={}),
        connect_s=WAIT_S,
    )
    client.create_table(spec)
    return client


def weight(client: pserver.Client) -> float:
    """Return minus the pushes that the counter key got."""
    return float(client.peek("t", [7]).item())


@contextmanager
def closed_port() -> Iterator[str]:
    """Return an endpoint at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        endpoint = f"127.0.0.1:{once.getsockname()[1]}"
    yield endpoint


@contextmanager
def silent_port() -> Iterator[str]:
    """Return an endpoint that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        yield f"127.0.0.1:{silent.getsockname()[1]}"


@contextmanager
def other_program() -> Iterator[str]:
    """Return the endpoint of a web server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(WAIT_S)


@pytest.mark.parametrize("port", [closed_port, silent_port, other_program])
def test_connect_fails_in_time_when_nobody_answers(port) -> None:
    """A closed port, one that never answers and another program are named within the time (B5)."""
    before = set(threading.enumerate())
    with port() as endpoint:
        begin = time.monotonic()
        with pytest.raises(pserver.UnavailableError) as caught:
            pserver.connect(endpoint, connect_s=1.0)
        took_s = time.monotonic() - begin

    assert took_s < 1.0 + SLACK_S
    assert f"no pserver answers at {endpoint}; is it running and is the address right?" in str(
        caught.value
    )
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert "pserver-client" not in left


def test_i2_connect_waits_for_a_server_that_is_still_starting(start: Start) -> None:
    """A client that comes before its server is connected as soon as that is ready."""
    with closed_port() as endpoint:
        server = start("--bind", endpoint)

    with pserver.connect(endpoint, connect_s=WAIT_S) as client:
        assert client.shards[0].endpoint == endpoint
    assert server.is_running


@pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param("nobody.invalid:6170", id="name"),
        pytest.param(None, id="port", marks=pytest.mark.slow),
    ],
)
def test_i2_a_wait_for_servers_is_told_again_and_again(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None
) -> None:
    """A name that nobody knows yet, or a port that nobody has yet: tried to the limit, with a line now and then."""
    log = CapturingLogger()
    monkeypatch.setattr(connect_room, "log", log)
    monkeypatch.setattr(connect_room, "_TELL_EVERY_S", 0.3)
    with closed_port() as closed:
        wanted = endpoint or closed

    with pytest.raises(pserver.UnavailableError, match="no pserver answers"):
        pserver.connect(wanted, connect_s=3.0)

    assert len(log.calls) >= 2
    assert {call.args for call in log.calls} == {("waits for a server",)}
    assert wanted in log.calls[0].kwargs["reason"]


def test_calls_fail_in_time_when_a_server_died(start: Start) -> None:
    """Every call to a server that is gone ends at its deadline, and names it (B5)."""
    server = start().wait_ready()
    client = connect(server, timeout_s=0.5)
    server.send(signal.SIGKILL)
    server.wait_exit()

    for call in (
        lambda: client.pull("t", [1]),
        lambda: client.push("t", [1], [[1.0]]),
        lambda: client.stats(),
        lambda: client.spec("unknown"),
    ):
        begin = time.monotonic()
        with pytest.raises(pserver.DeadlineError) as caught:
            call()
        assert time.monotonic() - begin < 0.5 + SLACK_S
        assert f"{server.endpoint} did not answer before the deadline; last failure: " in str(
            caught.value
        )
    client.close()


def test_e9_stopped_server_is_named_within_the_timeout(start: Start) -> None:
    """A server that stands still is reported in time, and serves again when it goes on."""
    server = start().wait_ready()
    with connect(server, timeout_s=1.0) as client:
        server.send(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(pserver.DeadlineError) as caught:
            client.pull("t", [7])
        took_s = time.monotonic() - begin
        server.send(signal.SIGCONT)

        assert took_s < 1.0 + SLACK_S
        assert server.endpoint in str(caught.value)
        assert weight(client) == 0.0


def test_pushes_count_once_when_a_server_stood_still(start: Start) -> None:
    """Pushes tried again and again while the server stood still are applied once each."""
    server = start().wait_ready()
    with connect(server, timeout_s=WAIT_S, try_timeout_s=0.1) as client:
        server.send(signal.SIGSTOP)
        keys, ones, none = np.array([7], np.uint64), np.ones(1, np.float32), np.empty(0, np.uint32)
        pushes = [client.start_push({"t": (keys, ones, none)}) for _ in range(8)]
        wait_for_retries(client, 8)
        server.send(signal.SIGCONT)

        versions = [push.result() for push in pushes]

        assert weight(client) == -8.0
        assert max(versions) == 8
        assert client.stats()[0].pushes_applied == 8


def wait_for_retries(client: pserver.Client, count: int) -> None:
    """Return once the client has sent requests again that many times."""
    limit = time.monotonic() + WAIT_S
    never = threading.Event()
    while client.retries < count:
        assert time.monotonic() < limit, "the client does not try again"
        never.wait(0.01)


def test_queue_that_is_full_fails_in_time_when_a_server_stands_still(start: Start) -> None:
    """With the send queue full, a push waits no longer than its deadline, and says why."""
    server = start().wait_ready()
    client = connect(server, timeout_s=1.0, send_queue_size=2)
    server.send(signal.SIGSTOP)
    keys, ones, none = np.array([7], np.uint64), np.ones(1, np.float32), np.empty(0, np.uint32)
    begin = time.monotonic()

    with pytest.raises(pserver.DeadlineError):  # noqa: PT012 - the third one or a later one
        for _ in range(10):
            client.start_push({"t": (keys, ones, none)})

    assert time.monotonic() - begin < 2.0 + SLACK_S
    server.send(signal.SIGCONT)
    client.close(flush=False)


def test_restart_is_told_when_a_killed_server_came_back_empty(start: Start) -> None:
    """Pushes that run while a server is killed and restarted end in RestartedError, none applied."""
    server = start().wait_ready()
    client = connect(server, timeout_s=WAIT_S)
    errors: list[BaseException] = []
    pushed = threading.Event()

    def push_until_it_fails() -> None:
        try:
            while True:
                client.push("t", [7], [[1.0]])
                pushed.set()
        except pserver.PserverError as error:
            errors.append(error)

    pusher = threading.Thread(target=push_until_it_fails)
    pusher.start()
    assert pushed.wait(WAIT_S)
    server.send(signal.SIGKILL)
    server.wait_exit()
    start("--bind", server.endpoint).wait_ready()
    pusher.join(WAIT_S)

    assert not pusher.is_alive()
    (error,) = errors
    assert isinstance(error, pserver.RestartedError)
    assert f"Push at {server.endpoint}: shard 0 was restarted" in str(error)
    with pserver.connect(server.endpoint) as other:
        assert other.stats()[0].pushes_applied == 0
        assert not other.stats()[0].tables
    with pytest.raises(pserver.RestartedError):
        client.pull("t", [7])
    client.close()
