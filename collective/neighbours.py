"""A rank's connections to its two neighbours in a ring: bytes come from the left and go to the right.

Rooms before and after: ``group`` has two ranks of a ring exchange their addresses and keeps what is made here;
``ring`` gives bytes to send and asks for those that come.

Plain TCP sockets, served by the thread that runs the operation: it sends as long as the right neighbour takes, reads
what the left one sent, and sleeps only when neither goes. torch's own messages between two ranks need an
answer and two changes of threads each; bytes of a stream need none, so a tensor may travel in small pieces that are
still in the processor's cache when they are added and sent on.

What always holds:
    * Bytes go and come in order. What is asked for is asked for on both sides, so nothing is framed but the
      beginning of an operation (``ring``).
    * Reading never waits for sending, so a ring whose ranks all send cannot stand still.
    * Every wait has a limit, and a connection that closes is an ``OSError``.
Owner: the thread that runs the group's operation.
"""

import contextlib
import secrets
import select
import socket
import time
import weakref
from collections import deque

import torch
from torch import Tensor

WORD_BYTES = 80
"""What one rank tells its left neighbour: a token, a port, and an address in text, filled up with zeros."""

_TOKEN_BYTES = 16

_PORT_BYTES = 2

_TOKEN_S = 5.0
"""How long who connects gets to show the token."""

_SHORT_S = 0.001

_SEND_BYTES = 512 << 10
"""Given to the system at once: then this thread looks at what came."""


class Listener:
    """Where a rank waits for its left neighbour, until both are connected. Use it as a context."""

    def __init__(self, address: str) -> None:
        """Listen on a free port.

        Args:
            address: IP address of this host by which the others reach it.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self._token = secrets.token_bytes(_TOKEN_BYTES)  # others may connect to the port, too
        port = self._socket.getsockname()[1].to_bytes(_PORT_BYTES, "little")
        self.word = (self._token + port + address.encode()).ljust(WORD_BYTES, b"\0")

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def meet(self, word: bytes, *, limit_s: float) -> "Neighbours":
        """Connect to the right neighbour and be connected to by the left one.

        Args:
            word: of the right neighbour's listener.
            limit_s: of every wait, here and later.

        Raises:
            OSError: one of them is not there.
        """
        token, rest = word[:_TOKEN_BYTES], word[_TOKEN_BYTES:]
        port = int.from_bytes(rest[:_PORT_BYTES], "little")
        address = rest[_PORT_BYTES:].rstrip(b"\0").decode()
        with contextlib.ExitStack() as stack:
            right = stack.enter_context(socket.create_connection((address, port), limit_s))
            right.sendall(token)
            left = stack.enter_context(self._accept(time.monotonic() + limit_s))
            stack.pop_all()
        return Neighbours(left, right, limit_s=limit_s)

    def _accept(self, end_s: float) -> socket.socket:
        """Return the connection that shows the token; others are sent away."""
        while True:
            self._socket.settimeout(max(end_s - time.monotonic(), _SHORT_S))
            connection, _ = self._socket.accept()
            with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                stack.enter_context(connection)
                connection.settimeout(_TOKEN_S)
                if connection.recv(_TOKEN_BYTES) == self._token:  # sent at once, so here at once
                    stack.pop_all()
                    return connection


class Neighbours:
    """The two connections."""

    def __init__(self, left: socket.socket, right: socket.socket, *, limit_s: float) -> None:
        """Take the connections; they are closed with this object, if not before."""
        for connection in (left, right):
            connection.settimeout(0.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = left
        self._right = right
        self._limit_s = limit_s
        self._leaving: deque[memoryview] = deque()
        self._room = torch.empty(0, dtype=torch.uint8)
        self._polls = {
            (reads, writes): _poll(left if reads else None, right if writes else None)
            for reads, writes in ((True, True), (True, False), (False, True))
        }
        self._close = weakref.finalize(self, _close, left, right)

    def room(self, size: int) -> Tensor:
        """Return (size,) uint8 to receive into, kept from one operation to the next: touching new memory takes time."""
        if self._room.numel() < size:
            self._room = torch.empty(size, dtype=torch.uint8)
        return self._room[:size]

    def put(self, view: memoryview) -> None:
        """Send bytes after those before; they must not change until they went, see ``fill`` and ``flush``."""
        self._leaving.append(view)

    def fill(self, view: memoryview) -> None:
        """Wait until so many bytes came, and meanwhile send what was put."""
        while view:
            sent, came = self._send(), self._receive(view)
            view = view[came:]
            if not sent and not came:
                self._wait(reads=True)

    def flush(self) -> None:
        """Wait until what was put has gone."""
        while self._leaving:
            if not self._send():
                self._wait(reads=False)

    def close(self) -> None:
        """Break the connections, so that the neighbours fail and do not wait."""
        self._leaving.clear()
        self._close()

    def _send(self) -> int:
        """Send some bytes; return how many, 0 if none may go now."""
        if not self._leaving:
            return 0
        view = self._leaving[0]
        try:
            count = self._right.send(view[:_SEND_BYTES])
        except BlockingIOError:
            return 0
        if count == len(view):
            self._leaving.popleft()
        else:
            self._leaving[0] = view[count:]
        return count

    def _receive(self, view: memoryview) -> int:
        """Receive some bytes; return how many, 0 if none are there now."""
        try:
            count = self._left.recv_into(view)
        except BlockingIOError:
            return 0
        if not count:
            raise ConnectionError("the left neighbour closed its connection")
        return count

    def _wait(self, *, reads: bool) -> None:
        """Sleep until bytes may go or come."""
        if not self._polls[reads, bool(self._leaving)].poll(self._limit_s * 1000):
            raise TimeoutError(f"nothing went or came for {self._limit_s:g} s")


def _poll(left: socket.socket | None, right: socket.socket | None) -> select.poll:
    poll = select.poll()
    if left is not None:
        poll.register(left, select.POLLIN)
    if right is not None:
        poll.register(right, select.POLLOUT)
    return poll


def _close(*connections: socket.socket) -> None:
    for connection in connections:
        connection.close()
