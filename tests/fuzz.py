"""Malformed requests from one seed: messages of every method, with their bytes or their fields broken.

What always holds: the same seed gives the same requests. Nothing is made up that only an admin could want: what
is broken are messages as a client sends them.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pserver.server.methods import METHODS
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small
from tests.unit.server.messages import TRAINER, pull_bytes, push_bytes

NAMES = ("ads", "top", "", "x" * 300, "../../etc/passwd", "\x00", "ads\n", "träger")
NUMBERS = (0, 1, 2, 7, 127, 128, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 64) - 1)
FLOATS = (0.0, -1.0, 1.0, 1e300, float("inf"), float("nan"))
WORDS = (
    *NAMES,
    "sync",
    "async",
    "begin",
    "end",
    "commit",
    "latest",
    "v00000001",
    "sgd",
    "adam:lr=",
)
LIKELY: dict[str, tuple[Any, ...]] = {
    "incarnation": (0,) * 15 + (5,),
    "table": ("ads", "ads", "ads", "top", "top", *NAMES),
    "name": ("ads", "top", "new", "newer", *NAMES),
    "optimizer": ("sgd", "sgd:lr=1", "adagrad", "adam:lr=", "sgd:lr=nan", ""),
    "initializer": ("zeros", "zeros", "uniform:low=1,high=0", ""),
    "accessor": ("", "plain", "ctr"),
    "embedx_optimizer": ("",),
    "admission": ("", "always", "count:n=2", "count:n=0"),
    "on_nan": ("", "reject", "zero", "fail", "x"),
    "unknown_reads": ("", "zeros", "x"),
    "evict": ("", "none", "lru:rows=100", "lru:rows=1e99"),
    "row_dtype": ("", "float32", "float64"),
    "storage": ("", "memory", "file"),
    "dim": (1, 2, 8, 0, 4096, 1 << 31),
    "capacity_max": (1000, 1 << 20, 1 << 28, 0, (1 << 64) - 1),
    "length": (7, 1, 0, 1 << 20, 1 << 30, 1 << 40, (1 << 64) - 1),
    "mode": ("sync", "async", "half_async", "geo", "full", "delta", "x"),
    "trainers": (2, 1, 0, 1 << 31),
    "trainer_id": (0, 1, 1 << 31),
    "sync_divisor": ("contributors", "samples", "x"),
    "on_missing": ("fail", "drop", "wait", "x"),
    "staleness_lr": ("none", "inverse", "x"),
    "barrier_timeout": (1.0, 60.0, 0.0, float("nan")),
    "max_staleness": (0, 0, 1, 1 << 63),
    "first_round": (0, 1),
    "round": (0, 0, 1, 2, 1 << 63),
    "counter": (1, 2, 3, 0),
    "part": (0, 0, 1, 1 << 31),
    "lease_s": (1.0, 60.0, 0.0, float("nan")),
    "trainer": (TRAINER, TRAINER, b"fedcba9876543210", b"", b"short"),
    "step": ("begin", "hold", "align", "cut", "look", "put", "commit", "end", "x"),
    "by": ("pushes", "score", "show", "x"),
    "values": (bytes(28), bytes(28), b"", bytes(4), b"\x00\x00\xc0\x7f", b"x"),
}
"""Values that get further than any of their type would, by name of the field."""

_LARGE = ("Pull", "Push", "Assign", "PushDelta")


def tables() -> list[tuple[str, bytes]]:
    """Return requests that make the tables which most requests are about; fine to repeat."""
    spec = pb.TableSpec(
        name="ads", dim=1, optimizer="sgd:lr=1", initializer="zeros", capacity_max=1 << 20
    )
    sparse = pb.CreateTableRequest(spec=spec)
    dense = pb.CreateDenseRequest(spec=pb.DenseSpec(name="top", length=7, optimizer="sgd:lr=1"))
    return [("CreateTable", build_small(sparse)), ("CreateDense", build_small(dense))]


def kind_of(method: str) -> type[Message]:
    """Return the class of a method's message."""
    service = pb.DESCRIPTOR.services_by_name["PServer"]
    found: type[Message] = getattr(pb, service.methods_by_name[method].input_type.name)
    return found


def requests(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield methods and messages, without an end."""
    draw = random.Random(seed)
    methods = [*METHODS, *_LARGE * 8]
    for number in itertools.count():
        method = draw.choice(methods)
        whole = draw.random() < 0.7
        message = _valid(draw, method, number) if whole else _fields(draw, method)
        for _ in range(draw.choice((0, 0, 1, 1, 2, 5))):
            message = _broken(draw, message)
        yield method, message


def _valid(draw: random.Random, method: str, number: int) -> bytes:
    """Return a message as a client sends it."""
    keys = [draw.getrandbits(64) for _ in range(draw.randrange(9))]
    if method == "Pull":
        return bytes(pull_bytes({"ads": keys}, create=draw.random() < 0.5))
    if method in _LARGE:
        return bytes(push_bytes({"ads": (keys, [0.5] * len(keys))}, counter=number))
    return _fields(draw, method)


def _fields(draw: random.Random, method: str) -> bytes:
    """Return a message whose fields have values of their type, most of them wrong."""
    message = kind_of(method)()
    _fill(draw, message, left_out=draw.choice((0.0, 0.0, 0.2)))
    return build_small(message)


def _fill(draw: random.Random, message: Message, *, left_out: float) -> None:
    for field in message.DESCRIPTOR.fields:
        if draw.random() < left_out:
            continue
        try:
            if field.is_repeated:
                for _ in range(draw.randrange(3)):
                    _add(draw, message, field)
            elif field.message_type is not None:
                _fill(draw, getattr(message, field.name), left_out=left_out)
            else:
                setattr(message, field.name, _value(draw, field))
        except (TypeError, ValueError):
            continue  # not of the field's type or range: cannot be sent


def _add(draw: random.Random, message: Message, field: FieldDescriptor) -> None:
    values: Any = getattr(message, field.name)
    if field.message_type is not None:
        _fill(draw, values.add(), left_out=0.2)
    else:
        values.append(_value(draw, field))


def _value(draw: random.Random, field: FieldDescriptor) -> Any:
    likely = LIKELY.get(field.name, ())
    if likely and draw.random() < 0.9 and not field.is_repeated:
        return likely[int(len(likely) * draw.random() ** 4)]  # the first ones most
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return draw.choice((TRAINER, b"", draw.randbytes(draw.randrange(70))))
        return draw.choice(WORDS)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return draw.choice(FLOATS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    return draw.choice(NUMBERS)


def _broken(draw: random.Random, message: bytes) -> bytes:
    """Return a message with some of its bytes cut, changed, repeated or put in."""
    at = draw.randrange(len(message) + 1)
    how = draw.randrange(5)
    if how == 0:
        return message[:at]
    if how == 1 and message:
        at = min(at, len(message) - 1)
        return message[:at] + bytes([message[at] ^ 1 << draw.randrange(8)]) + message[at + 1 :]
    if how == 2:
        return message[:at] + draw.randbytes(draw.randrange(1, 17)) + message[at:]
    if how == 3:
        return message[at:] + message[:at]
    return (
        message[:at] + b"\xff" * draw.randrange(1, 12) + message[at:]
    )  # a length or number without end
