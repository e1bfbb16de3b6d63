"""Shards that came back without what they held, made usable again: where the settings say "go_on".

Rooms before and after: ``sendqueue`` brings a message that a shard refused, since it was meant for the process
before; ``specs`` and ``dense`` say what the client's tables are, ``group`` how it joined.

What always holds:
    * A message goes to the new process only when that has every table that this client knows, values in each
      dense table, and this client in its group.
    * What is lost is what the process before had acknowledged: a push without an answer is sent again, under
      its push_id, and counts once.
Owner: the client's event loop; ``lost`` may be read from any thread.
"""

import asyncio
import dataclasses
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from google.protobuf.message import Message

from pserver.client.membership import ShardInfo, check_place
from pserver.deadline import Deadline
from pserver.errors import (
    DeadlineError,
    DenseInitError,
    PserverError,
    RestartedError,
    TransientError,
)
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

if TYPE_CHECKING:
    from pserver.client.dense import Dense
    from pserver.client.sendqueue import SendQueue
    from pserver.client.specs import Specs
    from pserver.config import ClientSettings

log = structlog.get_logger(__name__)

_GOES_ON: Final = frozenset(
    (
        "Pull",
        "Push",
        "Assign",
        "PullDense",
        "PushDense",
        "InitDense",
        "CreateTable",
        "CreateDense",
        "Join",
    )
)
"""Methods whose message means the same to the new process. A step of a save or a load, a lease of rows or a
difference of geo mode does not: it ends with ``RestartedError``."""

_STAMP = struct.Struct(
    "<BQ"
)  # field 1, fixed64: every request begins with the incarnation it is meant for
_TAG = 0x09
_PAUSE_S = 0.1  # between two tries while the shard starts


@dataclass(frozen=True, slots=True)
class Lost:
    """What a shard lost, as one client knows it.

    Attributes:
        shard: its index.
        restarts: how often it came back.
        pushes: of this client that it had acknowledged; those that a checkpoint brought back included.
        rows: of all tables that it held when it was last heard of, before each restart.
        incarnation: of the process that was there when this client last looked.
        held_pushes, held_rows: what would be lost with that one.
    """

    shard: int
    restarts: int
    pushes: int
    rows: int
    incarnation: int
    held_pushes: int
    held_rows: int


class Revival:
    """The shards of one client. Owner: see above."""

    def __init__(
        self,
        shards: list[ShardInfo],
        queues: Sequence["SendQueue"],
        specs: "Specs",
        dense: "Dense",
        settings: "ClientSettings",
    ) -> None:
        """Begin with shards that nothing happened to; have the queues ask, if the settings say so.

        Args:
            shards: each entry is replaced when its shard was made usable.
            queues: of each shard.
            specs: the client's sparse tables.
            dense: its dense ones.
            settings: of the client.
        """
        self.is_on = settings.on_restart == "go_on"
        self.rejoin: Callable[[ShardInfo], Message] | None = None
        self._shards, self._queues = shards, tuple(queues)
        self._specs, self._dense, self._settings = specs, dense, settings
        self._locks = [asyncio.Lock() for _ in shards]
        self._rows = [0] * len(shards)
        self._lost = [Lost(info.shard, 0, 0, 0, 0, 0, 0) for info in shards]
        if self.is_on:
            for queue in queues:
                queue.revival = self

    @property
    def lost(self) -> list[Lost]:
        """Return what each shard lost, and what it holds; nothing unless the settings say "go_on"."""
        told = zip(self._lost, self._shards, self._queues, self._rows, strict=True)
        return [
            dataclasses.replace(
                lost,
                incarnation=info.incarnation,
                held_pushes=queue.acknowledged,
                held_rows=rows,
            )
            for lost, info, queue, rows in (told if self.is_on else ())
        ]

    async def revived(
        self, queue: "SendQueue", method: str, message: bytes, error: RestartedError
    ) -> bytes:
        """Return a refused message as the new process takes it, once that is usable.

        Raises:
            RestartedError: the message means nothing to another process.
            PserverError: the new process cannot be used.
        """
        if method not in _GOES_ON or message[0] != _TAG:
            raise error
        shard = self._queues.index(queue)
        async with self._locks[shard]:
            _, named = _STAMP.unpack_from(message)
            if named == self._shards[shard].incarnation:
                await self._revive(shard, Deadline.after(self._settings.timeout_s))
        return _stamped(method, message, self._shards[shard].incarnation)

    async def look(self) -> None:
        """Note how many rows each shard holds, for the day that it does not; with each heartbeat."""
        for shard, queue in enumerate(self._queues if self.is_on else ()):
            stats = await self._stats(queue)
            async with self._locks[shard]:
                if stats and stats.server.incarnation == self._shards[shard].incarnation:
                    self._rows[shard] = _rows(stats)

    async def _stats(self, queue: "SendQueue") -> pb.StatsReply | None:
        """Return a shard's counters; None if it is away."""
        deadline = Deadline.after(self._settings.try_timeout_s)
        try:
            return parse_small(
                pb.StatsReply, await queue.call_once("Stats", b"", deadline=deadline)
            )
        except PserverError:
            return None

    async def _revive(self, shard: int, deadline: Deadline) -> None:
        """Make what a shard is now usable, and note what it lost."""
        before = self._shards[shard]
        while True:
            reply = parse_small(
                pb.DescribeReply, await self._call(shard, "Describe", b"", deadline)
            )
            check_place(before.endpoint, reply, shard=shard, num_shards=len(self._shards))
            info = dataclasses.replace(before, incarnation=reply.incarnation)
            try:
                await self._set_up(info, deadline)
            except RestartedError:  # once more, meanwhile
                continue
            break
        lost, pushes = self._lost[shard], self._queues[shard].forget_acknowledged()
        self._lost[shard] = dataclasses.replace(
            lost,
            restarts=lost.restarts + 1,
            pushes=lost.pushes + pushes,
            rows=lost.rows + self._rows[shard],
        )
        log.warning(
            "server came back without what it held; going on",
            shard=shard,
            endpoint=before.endpoint,
            lost_pushes=pushes,
            lost_rows=self._rows[shard],
        )
        self._rows[shard] = 0
        self._shards[shard] = info

    async def _set_up(self, info: ShardInfo, deadline: Deadline) -> None:
        """Make tables, give dense ones this client's last values unless others did, and join."""
        shard = info.shard
        for spec in self._specs.creating(info):
            await self._call(shard, "CreateTable", build_small(spec), deadline)
        for table in self._dense.known():
            request = self._dense.creating(table, info)
            await self._call(shard, "CreateDense", build_small(request), deadline)
            await self._init(table, info, deadline)
        if self.rejoin is not None:
            await self._call(shard, "Join", build_small(self.rejoin(info)), deadline)

    async def _init(self, table: str, info: ShardInfo, deadline: Deadline) -> None:
        """Have first values in a dense table: this client's last ones, or another's."""
        try:
            for write in self._dense.initializing(table, info):
                await self._call(info.shard, "InitDense", build_small(write), deadline)
        except DenseInitError:  # another client gave some, or is about to
            ask = build_small(pb.PullDenseRequest(incarnation=info.incarnation, table=table))
            while deadline.remaining_s > _PAUSE_S:
                try:
                    await self._call(info.shard, "PullDense", ask, deadline)
                except DenseInitError:
                    await asyncio.sleep(_PAUSE_S)
                else:
                    return
            raise

    async def _call(self, shard: int, method: str, message: bytes, deadline: Deadline) -> bytes:
        """Send a message past the queue until it is answered or the time is over."""
        while True:
            one_try = Deadline.after(min(self._settings.try_timeout_s, deadline.remaining_s))
            try:
                return await self._queues[shard].call_once(method, message, deadline=one_try)
            except (TransientError, DeadlineError):
                if deadline.remaining_s <= _PAUSE_S:
                    raise
                await asyncio.sleep(_PAUSE_S)


def _rows(stats: pb.StatsReply) -> int:
    """Return the rows of all sparse tables of a shard."""
    return sum(table.rows for table in stats.tables)


def _stamped(method: str, message: bytes, incarnation: int) -> bytes:
    r"""Return a message that is meant for another process.

    >>> _stamped("Pull", bytes([9, 1, 0, 0, 0, 0, 0, 0, 0, 7]), 2)
    b'\t\x02\x00\x00\x00\x00\x00\x00\x00\x07'
    """
    if method == "PullDense":  # what the sender knows is of the process before
        request = parse_small(pb.PullDenseRequest, message)
        request.incarnation, request.known = incarnation, 0
        return build_small(request)
    return _STAMP.pack(_TAG, incarnation) + message[_STAMP.size :]
