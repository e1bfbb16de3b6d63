"""What ``pserver.client.connection`` promises, before a gRPC server that does what the test says."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from typing_extensions import override

from pserver.client import connection as connection_room
from pserver.client.connection import Connection
from pserver.client.credentials import OPEN, Credentials
from pserver.config import AccessSettings
from pserver.errors import PserverError, UnavailableError
from pserver.transport import SERVICE

pytestmark = pytest.mark.integration
WAIT_S = 20.0
TRY_S = 60.0


class Script:
    """Answers ``Fail`` with UNAVAILABLE, and ``Hold`` when the test lets it.

    Attributes:
        held: calls of ``Hold``, as they come: what lets it go on, and what is set when the client gave it up.
    """

    def __init__(self) -> None:
        """Begin without calls."""
        self.held: queue.Queue[tuple[threading.Event, threading.Event]] = queue.Queue()

    def hold(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Wait, and send the message back."""
        go_on, is_over = threading.Event(), threading.Event()
        context.add_callback(is_over.set)
        self.held.put((go_on, is_over))
        assert go_on.wait(WAIT_S)
        return message

    def fail(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Say that the server is out."""
        context.abort(grpc.StatusCode.UNAVAILABLE, message.decode())
        raise AssertionError("abort always raises")


class Changing(Credentials):
    """Credentials whose certificates are others each time that somebody looks.

    Attributes:
        opened: connections made with them.
    """

    def __init__(self) -> None:
        """Begin with nothing opened."""
        super().__init__(AccessSettings())
        self.opened: list[grpc.Channel] = []
        self._looks = 0

    @property
    @override
    def generation(self) -> int:
        """Return how often somebody looked."""
        return self._looks

    @override
    def renew_tls(self) -> None:
        """Look."""
        self._looks += 1

    @override
    def open(self, endpoint: str) -> grpc.Channel:
        """Remember what is opened."""
        self.opened.append(super().open(endpoint))
        return self.opened[-1]


@pytest.fixture
def server() -> Iterator[tuple[str, Script]]:
    """Return the endpoint of a server, and its script."""
    script = Script()
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(work)
        for name, work in (("Hold", script.hold), ("Fail", script.fail))
    }
    served = grpc.server(ThreadPoolExecutor(4))
    served.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = served.add_insecure_port("127.0.0.1:0")
    served.start()
    yield f"127.0.0.1:{port}", script
    served.stop(None).wait(WAIT_S)


def failing(error: grpc.Call) -> PserverError:
    """Return an error with what the server said."""
    return UnavailableError(str(error.details()))


def send(connection: Connection, method: str, message: bytes = b"x") -> "Future[bytes]":
    """Begin one call."""
    return connection.send(method, message, timeout_s=TRY_S, failing=failing)


def test_the_server_is_told_when_a_future_is_cancelled(server: tuple[str, Script]) -> None:
    """Who cancels the future gives the call up, on the server too; the connection goes on."""
    endpoint, script = server
    connection = Connection(endpoint, OPEN)
    reply = send(connection, "Hold")
    go_on, is_over = script.held.get(timeout=WAIT_S)

    assert reply.cancel()

    assert is_over.wait(WAIT_S)
    go_on.set()
    again = send(connection, "Hold", b"again")
    script.held.get(timeout=WAIT_S)[0].set()
    assert again.result(WAIT_S) == b"again"
    connection.close()


def test_the_future_fails_with_our_error_when_the_call_does(server: tuple[str, Script]) -> None:
    """What the server said is in the error that ``failing`` makes of it."""
    connection = Connection(server[0], OPEN)

    error = send(connection, "Fail", b"not now").exception(WAIT_S)

    assert isinstance(error, UnavailableError)
    assert str(error) == "not now"
    connection.close()


def test_a_connection_that_is_left_lives_until_its_last_call_is_over(
    server: tuple[str, Script],
) -> None:
    """With other certificates new calls go on a new connection; what is open on the old one gets its reply."""
    endpoint, script = server
    changing = Changing()
    connection = Connection(endpoint, changing)
    old_reply = send(connection, "Hold", b"old")
    old, _ = script.held.get(timeout=WAIT_S)

    assert send(connection, "Fail").exception(WAIT_S) is not None
    assert len(changing.opened) == 2
    new_reply = send(connection, "Hold", b"new")
    script.held.get(timeout=WAIT_S)[0].set()
    assert new_reply.result(WAIT_S) == b"new"
    assert not old_reply.done()
    old.set()

    assert old_reply.result(WAIT_S) == b"old"
    with pytest.raises(ValueError, match="closed channel"):
        changing.opened[0].unary_unary("/any")(b"")
    connection.close()


def test_a_request_is_refused_when_the_connection_was_closed(server: tuple[str, Script]) -> None:
    """Open calls fail when it is closed, and later ones at once, naming method and server."""
    endpoint, script = server
    connection = Connection(endpoint, OPEN)
    reply = send(connection, "Hold")
    go_on, _ = script.held.get(timeout=WAIT_S)

    connection.close()

    assert isinstance(reply.exception(WAIT_S), UnavailableError)
    late = send(connection, "Hold").exception(WAIT_S)
    assert isinstance(late, UnavailableError)
    assert f"Hold at {endpoint}: " in str(late)
    go_on.set()


def test_a_server_is_found_where_the_file_says_after_a_call_found_nobody(
    server: tuple[str, Script], tmp_path: Path
) -> None:
    """No address and a wrong one fail as a server that is out does; once the right one stands there, calls arrive."""
    endpoint, script = server
    file = tmp_path / "shard-0"
    connection = Connection(f"file:{file}", OPEN)

    nowhere = send(connection, "Hold").exception(WAIT_S)
    file.write_text("127.0.0.1:1", encoding="utf-8")
    still = send(connection, "Hold").exception(WAIT_S)
    wrong = send(connection, "Hold").exception(WAIT_S)
    file.write_text(endpoint, encoding="utf-8")
    assert isinstance(send(connection, "Hold").exception(WAIT_S), UnavailableError)
    reply = send(connection, "Hold", b"there")
    script.held.get(timeout=WAIT_S)[0].set()

    assert reply.result(WAIT_S) == b"there"
    expected = f"Hold at file:{file}: no address of a server stands there"
    assert [str(nowhere), str(still)] == [expected, expected]
    assert "127.0.0.1:1" in str(wrong)
    connection.close()


def ended_by(connection: Connection, script: Script) -> threading.Thread:
    """Make one call, and return the thread of gRPC that ended it."""
    threads: queue.Queue[threading.Thread] = queue.Queue()
    reply = send(connection, "Hold")
    reply.add_done_callback(lambda _: threads.put(threading.current_thread()))
    script.held.get(timeout=WAIT_S)[0].set()
    return threads.get(timeout=WAIT_S)


def test_one_thread_ends_all_calls_when_they_come_one_by_one(
    server: tuple[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that ended a call waits for the next one, and goes when the connection is closed."""
    monkeypatch.setattr(connection_room, "LINGER_S", TRY_S)
    endpoint, script = server
    connection = Connection(endpoint, OPEN)

    threads = {ended_by(connection, script) for _ in range(5)}
    connection.close()

    (thread,) = threads
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_the_thread_ends_when_no_other_call_comes(server: tuple[str, Script]) -> None:
    """A client that does nothing has no thread of gRPC waiting for long, and goes on with another one."""
    endpoint, script = server
    connection = Connection(endpoint, OPEN)

    thread = ended_by(connection, script)

    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert ended_by(connection, script) is not thread
    connection.close()
