"""What a shard answers about the rows of sparse tables: pulls, and a look at one row.

Rooms before and after: ``servicer`` hands on the bytes, in a turn on the tables; ``recording`` records rows
that a pull makes; ``pushes`` knows whose pulls have to wait.

What always holds: a message is checked whole before any row is made. Owner: the shard's owner thread.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pserver.arrays import Keys
from pserver.config import MESSAGE_BYTES_MAX
from pserver.errors import ShapeError
from pserver.server.pushes import Pushes
from pserver.server.recording import Recorder
from pserver.server.report import Tallies
from pserver.table import shrink
from pserver.table.registry import Registry
from pserver.table.shown import check_shown, read_shown
from pserver.trace import span
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import build_pull_reply, parse_pull
from pserver.wire.small import build_small, parse_small


@dataclass(frozen=True, slots=True)
class Pulls:
    """The reading methods of one shard. Owner: the shard's owner thread.

    Attributes:
        registry: the shard's tables.
        pushes: which knows whose pulls have to wait.
        tallies: what is counted.
        recorder: is told of rows before they are made.
        check_incarnation: refuses a request for another process.
        check_keys: refuses keys of another shard.
        may_make: whether pulls make rows where there are none: not on a read-only shard.
    """

    registry: Registry
    pushes: Pushes
    tallies: Tallies
    recorder: Recorder
    check_incarnation: Callable[[int], None]
    check_keys: Callable[[str, Keys], None]
    may_make: Callable[[], bool]

    def pull(self, message: bytes) -> bytes:
        """Return weights; a pull that makes rows has them recorded first."""
        request = parse_pull(message)
        self.check_incarnation(request.incarnation)
        self.pushes.check_pull(request.trainer, request.round)
        tables = [self.registry.get(part.table) for part in request.tables]
        for part in request.tables:
            self.check_keys(part.table, part.keys)
        pairs = list(zip(request.tables, tables, strict=True))
        for part, table in pairs:
            if part.create and self.may_make():
                table.check_pull(part.keys)
            if part.shown:
                check_shown(table)
        reply_bytes = sum(
            4 * part.keys.size * (table.spec.dim + 2 * part.shown) for part, table in pairs
        )
        if reply_bytes > MESSAGE_BYTES_MAX:
            raise ShapeError(
                f"pull: {reply_bytes} bytes of weights were asked for in one message, "
                f"at most {MESSAGE_BYTES_MAX} are sent; ask for them in parts"
            )
        reply, blocks = build_pull_reply(
            [
                (table.version, part.keys.size * table.spec.dim, part.keys.size * part.shown)
                for part, table in pairs
            ]
        )
        for (part, table), block in zip(pairs, blocks, strict=True):
            with span("kernel", table=part.table):
                if part.create and self.may_make():
                    self.recorder.pull(table, part.keys, block.weights)
                else:
                    table.peek(part.keys, block.weights, unknown=self.registry.unknown_reads)
            if part.shown:
                read_shown(table, part.keys, block.shows, block.clicks)
            self.tallies.keys_pulled[part.table] += part.keys.size
        return reply

    def inspect(self, message: bytes) -> bytes:
        """Show the row of one key, or what it would begin with."""
        request = parse_small(pb.InspectRequest, message)
        self.check_incarnation(request.incarnation)
        table = self.registry.get(request.table)
        keys = np.array([request.key], np.uint64)
        self.check_keys(request.table, keys)
        reply = pb.InspectReply(table_epoch=table.epoch, version=table.version)
        row = table.row(request.key)
        if row is None:
            weights = np.empty(table.spec.dim, np.float32)
            table.peek(keys, weights, unknown=self.registry.unknown_reads)
            reply.weights.extend(weights.tolist())
            reply.is_waiting = table.gate is not None
            counted = {} if table.gate is None else table.gate.filter.record(request.key)
            for name, value in counted.items():
                reply.counted.add(name=name, value=value)
        else:
            reply.has_row, reply.epoch = True, row.epoch
            reply.would_go, reply.why = shrink.verdict(table, row)
            reply.weights.extend(row.weights.tolist())
            for name, values in row.state.items():
                reply.state.add(name=name, values=values.tolist())
            for name, value in row.fields.items():
                reply.words.add(name=name, value=value)
            if row.score is not None:
                reply.score, reply.has_embedx = row.score, bool(row.has_embedx)
        return build_small(reply)
