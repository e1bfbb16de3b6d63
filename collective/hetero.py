"""Carries micro-batches from trainers that hold embeddings to trainers that hold the dense stages.

Rooms before and after: an embedding trainer pulls and pools, and hands pooled rows to a ``Sender``; a dense
trainer takes them from a ``Receiver``, computes, and answers with their gradients, which go back
into pooling's backward. Any number on each side. All travels through host memory over plain sockets, so unlike
devices meet; nothing is unpickled.

On the wire a message is a head (magic, kind, weight, tensors), for each tensor dtype, dims and shape, then its
bytes; all numbers little-endian. A dense trainer answers each message of a connection before the
next comes, and a sender opens ``window`` connections to each dense trainer: so micro-batches go to
whoever is free, and one waits there while another is computed.

What always holds: micro-batches that wait to be taken have at most ``bytes_max`` bytes, or are one; who sends more waits. A
trainer that goes without a goodbye ends the others: every wait then raises ``PeerLostError``, which names it.
"""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from collective.errors import GroupError, PeerLostError, TensorError

BYTES_MAX = 1 << 30
"""Bytes that wait on a dense trainer when nothing is said."""

WINDOW = 2
"""One micro-batch is computed while the next travels."""

DIMS_MAX = 8

TENSORS_MAX = 64

MESSAGE_BYTES_MAX = 1 << 32

CONNECT_S = 30.0

_RETRY_S = 0.1

_HEAD = struct.Struct("<4sBdB")  # magic, kind, weight, tensors
_SHAPE = struct.Struct(f"<BB{DIMS_MAX}Q")  # dtype, dims, shape
_MAGIC = b"PHT1"
_WORK, _BYE = 1, 2

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


@dataclass(frozen=True, slots=True)
class Work:
    """A micro-batch on a dense trainer. Answer it, once.

    Attributes:
        tensors: such as pooled rows, dense values and labels; in host memory.
        weight: that its sender gave it, such as its samples.
        peer: HOST:PORT of its sender.
    """

    tensors: tuple[Tensor, ...]
    weight: float
    peer: str
    _answer: "Future[tuple[Tensor, ...]]" = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def answer(self, gradients: Sequence[Tensor]) -> None:
        """Send gradients back."""
        self._answer.set_result(tuple(gradients))


class Receiver:
    """A dense trainer's end. Owner: the training thread; the queue has a lock. Close it at the end."""

    def __init__(self, bind: str, *, senders: int, bytes_max: int = BYTES_MAX) -> None:
        """Listen.

        Args:
            bind: HOST:PORT; port 0 takes a free one.
            senders: connections that will come: embedding trainers × their window. ``take`` ends
                when all of them said goodbye.
            bytes_max: of micro-batches that wait.

        Raises:
            GroupError: the address cannot be bound.
        """
        host, port = _address(bind)
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise GroupError(f"cannot listen on {bind}: {error.strerror}") from error
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._bytes_max = bytes_max
        self._lock = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._waiting_bytes = 0
        self._left = senders
        self._lost: str | None = None
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, name="hetero-accept", daemon=True).start()

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of micro-batches that wait to be taken."""
        return self._waiting_bytes

    def take(self, timeout_s: float) -> Work | None:
        """Return the next micro-batch; None when all senders are through.

        Raises:
            PeerLostError: a sender went without a goodbye, or nothing came within the limit.
        """
        with self._lock:
            is_there = self._lock.wait_for(
                lambda: self._waiting or self._lost or not self._left, timeout_s
            )
            if self._lost:
                raise PeerLostError(f"embedding trainer {self._lost} went away")
            if not is_there:
                raise PeerLostError(f"{self.address}: no micro-batch came within {timeout_s:g} s")
            if not self._waiting:
                return None
            work = self._waiting.popleft()
            self._waiting_bytes -= work.num_bytes
            self._lock.notify_all()
            return work

    def close(self) -> None:
        """Listen no more, and break the connections that have not said goodbye."""
        self._socket.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it ended by itself
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError:  # closed
                return
            _tune(connection)
            self._connections.append(connection)
            name = f"{peer[0]}:{peer[1]}"
            threading.Thread(
                target=self._serve, args=(connection, name), name=f"hetero-{name}", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, name: str) -> None:
        """Pass one connection's micro-batches on, and their gradients back."""
        with connection:
            try:
                while (received := _receive(connection)) is not None:
                    tensors, weight = received
                    answer: Future[tuple[Tensor, ...]] = Future()
                    self._put(Work(tensors, weight, name, answer))
                    _send(connection, _WORK, 0.0, answer.result())
                with self._lock:
                    self._left -= 1
                    self._lock.notify_all()
            except (OSError, TensorError) as error:
                with self._lock:
                    self._lost = self._lost or f"{name} ({error})"
                    self._lock.notify_all()

    def _put(self, work: Work) -> None:
        size = work.num_bytes
        with self._lock:
            self._lock.wait_for(
                lambda: not self._waiting or self._waiting_bytes + size <= self._bytes_max
            )
            self._waiting.append(work)
            self._waiting_bytes += size
            self._lock.notify_all()


class Sender:
    """An embedding trainer's end. Owner: the training thread. Close it at the end."""

    def __init__(
        self, addresses: Sequence[str], *, window: int = WINDOW, connect_s: float = CONNECT_S
    ) -> None:
        """Connect to every dense trainer.

        Args:
            addresses: HOST:PORT of each.
            window: micro-batches on their way to each at once.
            connect_s: how long to try; dense trainers may start later.

        Raises:
            GroupError: no address, or one that is no HOST:PORT.
            PeerLostError: a dense trainer could not be reached; the message names it.
        """
        if not addresses:
            raise GroupError("a sender needs the address of at least one dense trainer")
        self._todo: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._lost: PeerLostError | None = None
        end_s = time.monotonic() + connect_s
        connections = [
            (_connect(address, end_s=end_s), address)
            for address in addresses
            for _ in range(window)
        ]
        self._threads = [
            threading.Thread(target=self._carry, args=pair, name="hetero-send", daemon=True)
            for pair in connections
        ]
        for thread in self._threads:
            thread.start()

    def send(self, tensors: Sequence[Tensor], *, weight: float) -> "Future[tuple[Tensor, ...]]":
        """Send a micro-batch to the next dense trainer that is free.

        Args:
            tensors: in host memory; they must not change until the answer is there.
            weight: travels with it.

        Returns:
            The gradients that come back; or it raises ``PeerLostError``.

        Raises:
            TensorError: a tensor that cannot travel.
        """
        _check(tensors)
        order = _Order(tuple(tensor.detach() for tensor in tensors), weight, Future())
        self._todo.put(order)
        return order.answer

    def close(self) -> None:
        """Say goodbye, when all answers are there."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()

    def _carry(self, connection: socket.socket, address: str) -> None:
        """Carry micro-batches over one connection, one at a time."""
        with connection:
            while (order := self._todo.get()) is not None:
                if self._lost is None:
                    try:
                        _send(connection, _WORK, order.weight, order.tensors)
                        received = _receive(connection)
                        if received is None:
                            raise ConnectionError("it closed")
                        order.answer.set_result(received[0])
                        continue
                    except (OSError, TensorError) as error:
                        self._lost = PeerLostError(f"dense trainer {address} went away ({error})")
                order.answer.set_exception(self._lost)
            if self._lost is None:
                _send(connection, _BYE, 0.0, ())


@dataclass(frozen=True, slots=True)
class _Order:
    """A micro-batch that waits for a connection."""

    tensors: tuple[Tensor, ...]
    weight: float
    answer: "Future[tuple[Tensor, ...]]"


def _connect(address: str, *, end_s: float) -> socket.socket:
    """Connect to a dense trainer, which may not listen yet."""
    host, port = _address(address)
    while True:
        left_s = end_s - time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=max(left_s, _RETRY_S))
        except OSError as error:
            if left_s <= 0:
                raise PeerLostError(f"no dense trainer at {address}: {error}") from error
            time.sleep(_RETRY_S)
        else:
            connection.settimeout(None)
            _tune(connection)
            return connection


def _tune(connection: socket.socket) -> None:
    """Send at once, and notice a host that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise GroupError(f"an address must be HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def _check(tensors: Sequence[Tensor]) -> None:
    if len(tensors) > TENSORS_MAX:
        raise TensorError(f"a micro-batch has at most {TENSORS_MAX} tensors, got {len(tensors)}")
    for tensor in tensors:
        if tensor.dtype not in _DTYPES or tensor.dim() > DIMS_MAX or tensor.device.type != "cpu":
            raise TensorError(
                f"a tensor on the wire is on cpu, has at most {DIMS_MAX} dims and a common dtype; "
                f"got {tensor.dim()} dims of {tensor.dtype} on {tensor.device}"
            )


def _send(connection: socket.socket, kind: int, weight: float, tensors: Sequence[Tensor]) -> None:
    _check(tensors)
    connection.sendall(_HEAD.pack(_MAGIC, kind, weight, len(tensors)))
    for tensor in tensors:
        fill = [0] * (DIMS_MAX - tensor.dim())
        dtype = _DTYPES.index(tensor.dtype)
        connection.sendall(_SHAPE.pack(dtype, tensor.dim(), *tensor.shape, *fill))
        if tensor.numel():
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            connection.sendall(raw.numpy().data)


def _receive(connection: socket.socket) -> tuple[tuple[Tensor, ...], float] | None:
    """Receive a message; None for a goodbye."""
    magic, kind, weight, count = _HEAD.unpack(_exactly(connection, _HEAD.size))
    if magic != _MAGIC or kind not in (_WORK, _BYE) or count > TENSORS_MAX:
        raise TensorError("what came is no message of a trainer")
    if kind == _BYE:
        return None
    tensors = []
    room = MESSAGE_BYTES_MAX
    for _ in range(count):
        dtype, dims, *shape = _SHAPE.unpack(_exactly(connection, _SHAPE.size))
        if dtype >= len(_DTYPES) or dims > DIMS_MAX:
            raise TensorError("what came is no tensor of a trainer")
        size = _DTYPES[dtype].itemsize
        for length in shape[:dims]:
            size *= length
        room -= size
        if room < 0:
            raise TensorError(f"a message of more than {MESSAGE_BYTES_MAX} bytes came")
        raw = torch.frombuffer(_exactly(connection, size), dtype=torch.uint8) if size else None
        empty = torch.empty(shape[:dims], dtype=_DTYPES[dtype])
        tensors.append(empty if raw is None else raw.view(_DTYPES[dtype]).view(shape[:dims]))
    return tuple(tensors), weight


def _exactly(connection: socket.socket, size: int) -> bytearray:
    """Receive so many bytes."""
    buffer = bytearray(size)
    rest = memoryview(buffer)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionError("the connection closed in the middle")
        rest = rest[count:]
    return buffer
