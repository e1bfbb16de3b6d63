"""One gRPC connection to one server, with the certificates and the token of now.

Rooms before and after: ``channel`` sends a request on it, once; ``credentials`` holds what the server is shown.

gRPC's own threads carry the bytes, and no event loop is asked: a pull of 27,600 keys costs a client 1.3 ms of CPU and
a push 1.1, and 1.6 each through the stubs for asyncio (4 in flight, paired runs on 2 busy cores).

A thread of gRPC ends when no call is open any more, and the next call starts another one. So the thread that ended
the last call waits a moment for the next: with one call in flight a pull of 27,600 keys costs a client 1.5 to 1.7 ms of
CPU instead of 1.8 to 2.1, a push 1.3 to 1.4 instead of 1.4 to 1.8 (paired runs on a busy machine).

What always holds: a connection that was lost is made again with the certificates that are in the files then, to the
address that ``whereabouts`` knows then; what is open on the one before may finish. Thread-safe.
"""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import grpc

from pserver.client.credentials import Credentials, Metadata
from pserver.client.whereabouts import address_of
from pserver.errors import PserverError, UnavailableError
from pserver.trace.call import wire
from pserver.trace.recorder import Place, here
from pserver.transport import SERVICE

Failing = Callable[[grpc.Call], PserverError]

_NOBODY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""After these somebody else may be there: a server whose host is gone does not even refuse."""

LINGER_S = 0.2
"""How long that thread waits: as long as gRPC's own wait between two looks at whether the process forks."""


@dataclass(slots=True, eq=False)
class _Line:
    """A connection with the certificates of one time; owner: the lock of its ``Connection``.

    Attributes:
        address: of the server; empty: nobody knows one, and calls fail.
        channel: of gRPC.
        generation: of the certificates.
        methods: the stubs that were needed so far.
        num_open: calls that have no end yet.
        is_left: whether another one took its place: it is closed with its last call.
    """

    address: str
    channel: grpc.Channel
    generation: int
    methods: dict[str, grpc.UnaryUnaryMultiCallable] = field(default_factory=dict)
    num_open: int = 0
    is_left: bool = False

    def stub(self, method: str) -> grpc.UnaryUnaryMultiCallable:
        """Return what calls a method."""
        stub = self.methods.get(method)
        if stub is None:
            stub = self.methods[method] = self.channel.unary_unary(f"/{SERVICE}/{method}")
        return stub


@dataclass(frozen=True, slots=True)
class _Sent:
    """One request on its way.

    Attributes:
        method: of the service.
        message: its bytes.
        timeout_s: that it gets.
        failing: makes our error of gRPC's.
        reply: the future of whoever asked.
        place: in a trace; None: not traced.
        thread: that asks.
    """

    method: str
    message: bytes
    timeout_s: float
    failing: Failing
    reply: "Future[bytes]"
    place: Place | None
    thread: int = field(default_factory=threading.get_ident)


class Connection:
    """A connection that is made by its first call.

    Attributes:
        more_metadata: that each call carries beside the token.
        has_answered: whether a server ever did.
    """

    def __init__(self, endpoint: str, credentials: Credentials) -> None:
        """Name the server."""
        self._endpoint = endpoint
        self._credentials = credentials
        self.more_metadata: Metadata = ()
        self.has_answered = False
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)  # a call began, or the line is another
        self._is_closed = False
        self._line = self._open()
        self._left: list[_Line] = []  # that have calls open

    def send(
        self, method: str, message: bytes, *, timeout_s: float, failing: Failing
    ) -> "Future[bytes]":
        """Begin to send one request, and return the future of its reply; cancelling that gives the request up.

        A server that refuses the token is asked again if the file has another one by now: it did not look at the
        request, so nothing can happen twice.

        Args:
            method: of the service.
            message: the request.
            timeout_s: seconds that it gets.
            failing: is asked on a thread of gRPC for the error that the future fails with.
        """
        sent = _Sent(method, message, timeout_s, failing, Future(), here())
        self._once(sent, is_last=False)
        return sent.reply

    @property
    def hint(self) -> str:
        """Return what a connection that the other side closed at once may come from; empty: not known."""
        if self.has_answered or self._credentials.is_tls:
            return ""
        return "; does that server speak TLS? Then give --tls-cert, --tls-key and --tls-ca"

    def close(self) -> None:
        """Close it, and those before it; what is open on them fails."""
        with self._lock:
            lines, self._left = [self._line, *self._left], []
            self._is_closed = True
            self._moved.notify_all()
        for line in lines:
            line.channel.close()

    def _open(self) -> _Line:
        """Return a connection with the certificates and to the address of now."""
        address = address_of(self._endpoint)
        return _Line(address, self._credentials.open(address), self._credentials.generation)

    def _once(self, sent: _Sent, *, is_last: bool) -> None:
        """Make one call."""
        with self._lock:
            line = self._line
            stub = line.stub(sent.method)
            line.num_open += 1
        if not line.address:
            self._renew()
            self._refuse(sent, line, "no address of a server stands there")
            return
        shown, traced = self._credentials.metadata, wire(sent.place, self._endpoint)
        try:
            call = stub.future(
                sent.message,
                timeout=sent.timeout_s,
                metadata=shown + self.more_metadata + traced.metadata,
            )
        except ValueError as error:  # gRPC's word for a connection that was closed
            self._refuse(sent, line, str(error))
            return
        traced.follow(call)
        sent.reply.add_done_callback(functools.partial(_give_up, call))
        call.add_done_callback(functools.partial(self._end, sent, line, shown, is_last=is_last))
        with self._lock:
            self._moved.notify_all()

    def _refuse(self, sent: _Sent, line: _Line, reason: str) -> None:
        """Settle a call that could not be begun."""
        self._leave_call(line)
        if sent.reply.set_running_or_notify_cancel():
            sent.reply.set_exception(
                UnavailableError(f"{sent.method} at {self._endpoint}: {reason}")
            )

    def _end(
        self, sent: _Sent, line: _Line, shown: Metadata, call: grpc.Future, *, is_last: bool
    ) -> None:
        """Settle a call that came to its end, or make it once more; on a thread of gRPC."""
        self._leave_call(line)
        code = call.code()
        if code in _NOBODY:
            self._renew()
        if code is grpc.StatusCode.UNAUTHENTICATED and not is_last:
            self._credentials.renew_token()
            if self._credentials.metadata != shown:
                self._once(sent, is_last=True)
                return
        if not sent.reply.set_running_or_notify_cancel():
            return
        if code is grpc.StatusCode.OK:
            self.has_answered = True
            sent.reply.set_result(call.result())
        else:
            sent.reply.set_exception(sent.failing(call))
        # Never in the thread of who asks, where gRPC ends a call that was over before it got a callback.
        if threading.get_ident() != sent.thread:
            self._linger(line)

    def _linger(self, line: _Line) -> None:
        """Wait for the next call if none is open; on a thread of gRPC, which ends if none comes."""
        with self._lock:
            if line is self._line and not line.num_open and not self._is_closed:
                self._moved.wait(LINGER_S)

    def _leave_call(self, line: _Line) -> None:
        """Note that a call is over; close a connection that was left with its last one."""
        with self._lock:
            line.num_open -= 1
            is_over = line.is_left and not line.num_open and line in self._left
            if is_over:
                self._left.remove(line)
        if is_over:
            line.channel.close()

    def _renew(self) -> None:
        """Take another connection, if there are other certificates or another address now."""
        self._credentials.renew_tls()
        address = address_of(self._endpoint)
        with self._lock:
            before = self._line
            is_there = address in ("", before.address)
            if is_there and before.generation == self._credentials.generation:
                return
            self._line = self._open()
            self._moved.notify_all()
            before.is_left = True
            is_idle = not before.num_open
            if not is_idle:
                self._left.append(before)
        if is_idle:
            before.channel.close()


def _give_up(call: grpc.Future, reply: "Future[bytes]") -> None:
    """Cancel a call whose reply nobody wants any more."""
    if reply.cancelled():
        call.cancel()
