"""Requests as bytes, and a servicer called with them directly: no client, no sockets."""

import asyncio
from collections.abc import Mapping, Sequence

from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import PushId, TableRows, TableSize, build_pull, build_push, parse_pull_reply
from pserver.wire.small import parse_small, proto_of, spec_of

TRAINER = b"0123456789abcdef"
Values = Mapping[str, tuple[Sequence[int], Sequence[float]]]
"""Table name to keys and a flat block of values."""


def call(servicer: Servicer, method: str, message: bytes = b"") -> bytes:
    """Return the reply to one request."""
    return asyncio.run(servicer.call(method, message))


def create(servicer: Servicer, spec: TableSpec, *, incarnation: int = 0) -> TableSpec:
    """Make a table."""
    request = pb.CreateTableRequest(incarnation=incarnation, spec=proto_of(spec))
    reply = parse_small(
        pb.CreateTableReply, call(servicer, "CreateTable", request.SerializeToString())
    )
    return spec_of(reply.spec)


def push_bytes(
    values: Values,
    *,
    counter: int,
    incarnation: int = 0,
    more: bool = False,
    counts: Mapping[str, Sequence[int]] | None = None,
) -> bytes:
    """Return the bytes of a push or assign."""
    counts = counts or {}
    sizes = [
        TableSize(name, len(keys), len(block), len(counts.get(name, ())))
        for name, (keys, block) in values.items()
    ]
    message, parts = build_push(incarnation, PushId(TRAINER, counter), sizes, more=more)
    for part, (name, (keys, block)) in zip(parts, values.items(), strict=True):
        part.keys[:] = keys
        part.values[:] = block
        part.counts[:] = counts.get(name, ())
    return message


def push(
    servicer: Servicer, values: Values, *, counter: int, method: str = "Push", more: bool = False
) -> pb.PushReply:
    """Push or assign, and return the reply."""
    message = push_bytes(values, counter=counter, more=more)
    return parse_small(pb.PushReply, call(servicer, method, message))


def pull_bytes(
    keys: Mapping[str, Sequence[int]], *, create: bool = True, incarnation: int = 0
) -> bytes:
    """Return the bytes of a pull."""
    tables = [(name, create, len(wanted)) for name, wanted in keys.items()]
    message, blocks = build_pull(incarnation, tables)
    for block, wanted in zip(blocks, keys.values(), strict=True):
        block[:] = wanted
    return message


def pull(
    servicer: Servicer, keys: Mapping[str, Sequence[int]], *, create: bool = True
) -> list[TableRows]:
    """Pull, and return each table's rows."""
    return parse_pull_reply(call(servicer, "Pull", pull_bytes(keys, create=create)))


def stats(servicer: Servicer) -> pb.StatsReply:
    """Return the shard's counters."""
    return parse_small(pb.StatsReply, call(servicer, "Stats"))
