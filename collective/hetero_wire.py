"""Messages between embedding trainers and dense ones, as bytes on a socket.

Rooms before and after: ``hetero`` and ``hetero_sender`` send and receive them; below are sockets, plain or of ``tls``.

A message is a head (magic, kind, weight, tensors, bytes of text), the text, and for each tensor dtype, dims
and shape, then its bytes. All numbers are little-endian; nothing is unpickled.

What always holds: what came is a whole message of the kinds below, or an error says why not.
"""

import enum
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from collective.errors import GroupError, TensorError

DIMS_MAX = 8

TENSORS_MAX = 64

MESSAGE_BYTES_MAX = 1 << 32

TEXT_BYTES_MAX = 1 << 14

_HEAD = struct.Struct("<4sBdBH")  # magic, kind, weight, tensors, bytes of text
_SHAPE = struct.Struct(f"<BB{DIMS_MAX}Q")  # dtype, dims, shape
_MAGIC = b"PHT3"

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


class Connection(Protocol):
    """A connected socket, or one with TLS around it."""

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Send all bytes."""
        ...

    def recv_into(self, buffer: memoryview, /) -> int:
        """Wait for some bytes and return how many; 0 at the end."""
        ...


class Kind(enum.IntEnum):
    """What a message is. An answer is of the kind of its question."""

    HELLO = 1
    """The first on each connection: who sends, as JSON."""
    TRAIN = 2
    """A micro-batch, or its gradients."""
    SCORE = 3
    """A micro-batch without targets, or what the model gives for it."""
    STEP = 4
    """The sender has all answers of its step; or all dense trainers have stepped."""
    DONE = 5
    """The sender trains no more; it may still score."""
    BYE = 6
    """The connection ends as it should."""
    FAIL = 7
    """The other side ends, because of the text."""
    STATE = 8
    """What a dense trainer has, to be saved; or, on a control connection, what was saved, before training."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        kind: what it is.
        tensors: in host memory.
        weight: of a micro-batch.
        text: of ``HELLO`` and ``FAIL``.
    """

    kind: Kind
    tensors: tuple[Tensor, ...] = ()
    weight: float = 0.0
    text: str = ""

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises:
        GroupError: it is none.

    >>> parse_address("[::1]:7000")
    ('::1', 7000)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise GroupError(f"an address must be HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def tune(connection: socket.socket) -> None:
    """Send at once, and notice a host that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def check_tensors(tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that cannot travel.

    Raises:
        TensorError: too many of them, or one with another dtype, device or number of dims.
    """
    if len(tensors) > TENSORS_MAX:
        raise TensorError(f"a micro-batch has at most {TENSORS_MAX} tensors, got {len(tensors)}")
    for tensor in tensors:
        if tensor.dtype not in _DTYPES or tensor.dim() > DIMS_MAX or tensor.device.type != "cpu":
            raise TensorError(
                f"a tensor on the wire is on cpu, has at most {DIMS_MAX} dims and a common dtype; "
                f"got {tensor.dim()} dims of {tensor.dtype} on {tensor.device}"
            )


def send(connection: Connection, message: Message) -> None:
    """Send a message.

    Raises:
        TensorError: a tensor cannot travel; nothing was sent.
        OSError: the connection broke.
    """
    check_tensors(message.tensors)
    text = message.text.encode()[:TEXT_BYTES_MAX]
    head = (_MAGIC, message.kind, message.weight, len(message.tensors), len(text))
    connection.sendall(_HEAD.pack(*head) + text)
    for tensor in message.tensors:
        fill = [0] * (DIMS_MAX - tensor.dim())
        dtype = _DTYPES.index(tensor.dtype)
        connection.sendall(_SHAPE.pack(dtype, tensor.dim(), *tensor.shape, *fill))
        if tensor.numel():
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            connection.sendall(raw.numpy().data)


def receive(connection: Connection) -> Message:
    """Wait for a message.

    Raises:
        TensorError: what came is none.
        OSError: the connection broke, or its time limit passed.
    """
    magic, kind, weight, count, text_bytes = _HEAD.unpack(_exactly(connection, _HEAD.size))
    is_ours = magic == _MAGIC and kind in Kind.__members__.values()
    if not is_ours or count > TENSORS_MAX or text_bytes > TEXT_BYTES_MAX:
        raise TensorError("what came is no message of a trainer")
    text = _exactly(connection, text_bytes).decode(errors="replace")
    room = MESSAGE_BYTES_MAX
    tensors = []
    for _ in range(count):
        tensor, size = _receive_tensor(connection, room)
        tensors.append(tensor)
        room -= size
    return Message(Kind(kind), tuple(tensors), weight, text)


def _receive_tensor(connection: Connection, room: int) -> tuple[Tensor, int]:
    """Return a tensor and its bytes, of which there may be so many."""
    dtype, dims, *shape = _SHAPE.unpack(_exactly(connection, _SHAPE.size))
    if dtype >= len(_DTYPES) or dims > DIMS_MAX:
        raise TensorError("what came is no tensor of a trainer")
    size = _DTYPES[dtype].itemsize
    for length in shape[:dims]:
        size *= length
    if size > room:
        raise TensorError(f"a message of more than {MESSAGE_BYTES_MAX} bytes came")
    if not size:
        return torch.empty(shape[:dims], dtype=_DTYPES[dtype]), 0
    raw = torch.frombuffer(_exactly(connection, size), dtype=torch.uint8)
    return raw.view(_DTYPES[dtype]).view(shape[:dims]), size


def _exactly(connection: Connection, size: int) -> bytearray:
    """Receive so many bytes."""
    buffer = bytearray(size)
    rest = memoryview(buffer)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionError("the connection closed")
        rest = rest[count:]
    return buffer
