"""The verbs of geo mode: send differences until every shard has them, and ask what others changed.

Rooms before and after: ``Client`` lends its way to the shards as ``client.geo``; ``server.geo`` and
``PushDelta`` answer. Rows are read with ``pull`` and ``peek`` as always.

What always holds:
    * A ``DeltaPush`` is one set of messages, each with its push_id for good: however often it is
      delivered, each shard adds it once.
    * Marks are of one incarnation of each server; for another one they count as none.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pserver.arrays import Floats, Keys
from pserver.client.compose import Extra, push_messages
from pserver.client.gradients import check_gradients
from pserver.client.membership import ShardInfo
from pserver.client.pending import Reply, wait_for
from pserver.client.way import Way
from pserver.errors import PserverError, ShapeError
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

Marks = tuple[tuple[int, int], ...]
"""Of each shard, its incarnation and the position up to which its log is known."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangedKeys:
    """What others wrote to.

    Attributes:
        keys: (V,) uint64, distinct, rising; empty where ``is_all``.
        is_all: a shard no longer knows: take every row of the table for changed.
        marks: for the next question.
    """

    keys: Keys
    is_all: bool
    marks: Marks


class DeltaPush:
    """Differences on their way to the servers, kept until each shard acknowledged its part.

    Not thread-safe.
    """

    def __init__(self, what: str, messages: Sequence[tuple[int, str, bytes]], way: Way) -> None:
        """Take the messages; nothing is sent yet.

        Args:
            what: named in an error.
            messages: shard, method and bytes of each.
            way: to the shards.
        """
        self._what = what
        self._left = dict(enumerate(messages))
        self._way = way

    @property
    def is_done(self) -> bool:
        """Return whether every shard has acknowledged all of it."""
        return not self._left

    def deliver(self) -> None:
        """Send what is not acknowledged, and wait. May be called again after an error.

        Raises:
            DeadlineError: not all was acknowledged in time; what was stays so.
            PserverError: a shard refused a part; the others were waited for.
        """
        deadline = self._way.deadline()
        sent: dict[int, Reply] = {}
        failure: PserverError | None = None
        try:
            for number, message in self._left.items():
                sent[number] = self._way.put(*message, deadline)
        except PserverError as error:
            failure = error
        for number, reply in sent.items():
            try:
                wait_for(reply, deadline=deadline, what=self._what)
                del self._left[number]
            except PserverError as error:
                failure = failure or error
        if failure is not None:
            raise failure


class Geo:
    """The verbs. Thread-safe, as what they were lent is."""

    def __init__(self, way: Way) -> None:
        """Take the way to the shards."""
        self._way = way

    def push(
        self,
        deltas: Mapping[str, tuple[Keys, Floats]],
        dense: Mapping[str, ArrayLike],
        *,
        ends_window: bool = True,
    ) -> DeltaPush:
        """Make the messages that add differences to tables; ``deliver`` sends them.

        Args:
            deltas: name of a sparse table to (U,) distinct uint64 keys and (U * dim,) float32.
            dense: name of a dense table to (length,) floats.
            ends_window: whether this counts as a step of the trainer and raises versions; if not, it
                is a part of the push that does, and no shard without keys hears of it.

        Raises:
            UnknownTableError, ShapeError, NotFiniteError: nothing was made.
        """
        arrays = {}
        for name, (keys, values) in deltas.items():
            arrays[name] = (keys, values, np.empty(0, np.uint32))
            check_gradients(arrays[name], dim=self._way.spec(name).dim, where=f"delta {name!r}")
        specs = [self._way.spec(name) for name in arrays]
        orders = [self._way.router.split(arrays[spec.name][0]) for spec in specs]
        tables = list(zip(specs, orders, strict=True))
        extra = Extra(is_everywhere=ends_window, is_part=not ends_window)
        messages: list[tuple[int, str, bytes]] = []
        for name, vector in dense.items():  # first: what goes to tables of rows ends the step
            parts = self._way.dense.delta(name, vector)
            messages += [(shard, "PushDenseDelta", build_small(part)) for shard, part in parts]
        for info in self._way.shards:
            shard = info.shard
            new_id = functools.partial(self._way.push_id, shard)
            built = push_messages(shard, info.incarnation, new_id, tables, arrays, extra=extra)
            messages += [(shard, "PushDelta", message) for message in built]
        what = f"delta {', '.join(map(repr, [*deltas, *dense]))}"
        return DeltaPush(what, messages, self._way)

    def changed(self, table: str, marks: Marks | None) -> ChangedKeys:
        """Ask which keys other clients wrote to since the marks.

        Args:
            table: name of a sparse table.
            marks: of an earlier answer; None: begin now, which answers "all".

        Raises:
            UnknownTableError: there is no such table.
            ShapeError: the marks are of another cluster.
        """
        self._way.spec(table)
        shards = self._way.shards
        if marks is not None and len(marks) != len(shards):
            raise ShapeError(f"changed {table!r}: {len(marks)} marks came for {len(shards)} shards")
        acks = [
            mark[1] if mark is not None and mark[0] == info.incarnation else 0
            for info, mark in zip(shards, marks or [None] * len(shards), strict=True)
        ]
        keys: list[Keys] = []
        is_all = False
        asked = list(shards)
        while asked:
            replies = self._ask_changed(table, asked, acks)
            for info, reply in zip(asked, replies, strict=True):
                acks[info.shard] = reply.position
                is_all |= reply.is_all
                keys.append(np.frombuffer(reply.keys, np.uint64))
            asked = [info for info, reply in zip(asked, replies, strict=True) if reply.more]
        found = np.unique(np.concatenate(keys)) if not is_all else np.empty(0, np.uint64)
        reached = zip(shards, acks, strict=True)
        return ChangedKeys(found, is_all, tuple((info.incarnation, ack) for info, ack in reached))

    def _ask_changed(
        self, table: str, asked: Sequence[ShardInfo], acks: Sequence[int]
    ) -> list[pb.PullChangedReply]:
        """Ask some shards at once, each from where it is known."""
        deadline = self._way.deadline()
        sent = []
        for info in asked:
            request = pb.PullChangedRequest(
                incarnation=info.incarnation,
                table=table,
                trainer=self._way.trainer,
                ack=acks[info.shard],
            )
            sent.append(self._way.put(info.shard, "PullChanged", build_small(request), deadline))
        what = f"changed {table!r}"
        return [
            parse_small(pb.PullChangedReply, wait_for(reply, deadline=deadline, what=what))
            for reply in sent
        ]
