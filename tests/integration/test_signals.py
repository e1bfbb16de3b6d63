"""SIGTERM drains and exits 0; a second one ends at once (I3)."""

import signal

import numpy as np
import pytest

import pserver
from pserver.client.gradients import Gradients
from pserver.server.app import SECOND_SIGNAL_EXIT
from tests.integration.proxy import Proxy
from tests.integration.servers import FRESH, WAIT_S, Server, Start

MIB = 1 << 20


def gradients(num_keys: int = 1) -> dict[str, Gradients]:
    """Return a push of ones."""
    keys = np.arange(num_keys, dtype=np.uint64)
    return {"t": (keys, np.ones(num_keys, np.float32), np.empty(0, np.uint32))}


def connect(endpoint: str, **settings: float) -> pserver.Client:
    """Return a client with a table of one float that sgd moves by 1."""
    client = pserver.connect(
        endpoint, settings=pserver.ClientSettings.make(settings, origins={}), connect_s=WAIT_S
    )
    client.create_table(
        pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros")
    )
    return client


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_exits_0(start: Start, number: signal.Signals) -> None:
    """A server without work ends at once, and says that it drained."""
    server = start(command=FRESH).wait_ready()

    server.send(number)
    status, text = server.wait_exit()

    assert status == 0
    assert number.name in text
    assert "event='drained'" in text
    assert "Traceback" not in text


def outcome(pending: pserver.PendingPush) -> int | pserver.PserverError:
    """Return a push's version or its error."""
    try:
        return pending.result()
    except pserver.PserverError as error:
        return error


@pytest.mark.parametrize("is_stopped", [True, False])
def test_i3_pushes_in_flight_finish_or_fail_when_the_server_drains(
    start: Start, is_stopped: bool
) -> None:
    """SIGTERM during four pushes: each is applied or reported failed, and the exit is 0."""
    server = start().wait_ready()
    client = connect(server.endpoint, timeout_s=1.5)
    if is_stopped:  # then all four are on the wire when the signal is seen
        server.send(signal.SIGSTOP)
    pushes = [client.start_push(gradients(MIB)) for _ in range(4)]

    server.send(signal.SIGTERM)
    if is_stopped:
        server.send(signal.SIGCONT)
    outcomes = [outcome(push) for push in pushes]
    status, text = server.wait_exit()

    assert status == 0, text
    assert "Traceback" not in text
    for each in outcomes:
        assert isinstance(each, int | pserver.DeadlineError | pserver.UnavailableError)
    versions = [each for each in outcomes if isinstance(each, int)]
    assert versions == sorted(versions)
    client.close(flush=False)


def stalled_call(server: Server, proxy: Proxy) -> pserver.Client:
    """Leave a call open on the server: half of a push arrived, the rest never will."""
    client = connect(proxy.endpoint)
    client.start_push(gradients(MIB // 4))
    assert proxy.stalled.wait(WAIT_S)
    return client


def test_i3_second_signal_ends_at_once(start: Start) -> None:
    """While a drain waits for a call that does not end, a second SIGTERM ends the process."""
    server = start("--drain-s", "3600").wait_ready()
    with Proxy(server.endpoint, stall_bytes=MIB) as proxy:
        client = stalled_call(server, proxy)

        server.send(signal.SIGTERM)
        server.wait_line("event='draining'")
        assert server.is_running
        server.send(signal.SIGTERM)
        status, text = server.wait_exit()

        assert status == SECOND_SIGNAL_EXIT
        assert "second signal: calls in flight are cut off" in text
        client.close(flush=False)


def test_i3_drain_ends_when_its_time_is_up(start: Start) -> None:
    """A call that does not end holds the drain for ``--drain-s`` only; the exit is 0."""
    server = start("--drain-s", "0.3").wait_ready()
    with Proxy(server.endpoint, stall_bytes=MIB) as proxy:
        client = stalled_call(server, proxy)

        server.send(signal.SIGTERM)
        status, text = server.wait_exit()

        assert status == 0
        assert "event='drained'" in text
        client.close(flush=False)
