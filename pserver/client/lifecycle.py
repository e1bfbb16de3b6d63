"""Keeping tables small, as a client sees it: clear, drop, shrink; and which keys are hot.

Rooms before and after: ``Client`` lends its way to the shards; ``server.lifecycle`` answers;
``pserver clear``, ``drop``, ``shrink`` and ``top-keys`` show.

What always holds: all shards are asked, each does its part as one, and there is no order among shards.
Where one of them fails, the others have done theirs: asking again does what is missing.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from pserver.arrays import Keys
from pserver.client.membership import ShardInfo
from pserver.client.specs import Ask
from pserver.errors import ConfigError
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small

_FIRST_WAIT_S = 0.02
_LAST_WAIT_S = 0.5  # between two questions about a walk that takes long

R = TypeVar("R", pb.ShrinkReply, pb.TopKeysReply)


@dataclass(frozen=True, slots=True)
class Gone:
    """What a clear or drop removed, over all shards.

    Attributes:
        shards: that had the table.
        rows: of a dense table, floats.
        bytes: that go back to the system.
    """

    shards: tuple[int, ...]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Shrink:
    """What a shrink did, or would do, over all shards.

    Attributes:
        table: its name.
        day: that was asked for.
        last_day: of the last shrink that began, on the shard that is farthest.
        past_shards: shards that had shrunk that day or a later one before: they did nothing.
        num_shards: that were asked.
        rows: that were walked.
        gone: of them, those that went.
        gone_bytes: of these.
        by_score: that went because of their score.
        by_age: that went because they were unseen for long; some went for both.
        has_scores: whether the histogram is of scores after the decay; else it is of days unseen.
        edges: of its bins.
        all_counts: rows by bin: below the first edge, between two, from the last on.
        gone_counts: those of them that went.
    """

    table: str
    day: int
    last_day: int
    past_shards: tuple[int, ...]
    num_shards: int
    rows: int
    gone: int
    gone_bytes: int
    by_score: int
    by_age: int
    has_scores: bool
    edges: tuple[float, ...]
    all_counts: tuple[int, ...]
    gone_counts: tuple[int, ...]

    @property
    def is_past(self) -> bool:
        """Return whether no shard did anything."""
        return len(self.past_shards) == self.num_shards


@dataclass(frozen=True, slots=True, eq=False)
class TopKeys:
    """The first keys of a table by some value.

    Attributes:
        keys: (U,) uint64, most first.
        values: (U,) float64.
        missed: by how much a value may be too low.
        seen: what was looked at: pushed keys (estimated) or rows.
    """

    keys: Keys
    values: NDArray[np.float64]
    missed: float
    seen: float


class Lifecycle:
    """The verbs of one client. Thread-safe, as what it was lent is."""

    def __init__(self, shards: Sequence[ShardInfo], ask: Ask, forget: Callable[[], None]) -> None:
        """Take the way to the shards, and what forgets the specs of tables."""
        self._shards = tuple(shards)
        self._ask = ask
        self._forget = forget

    def clear(self, table: str) -> Gone:
        """Remove all rows of a sparse table; the table, its version and its schedule stay.

        Trainers may go on: what they pull next are first weights, and what they push next begins there.

        Raises:
            UnknownTableError: there is none of that name.
        """
        return self._remove("Clear", table)

    def drop(self, table: str) -> Gone:
        """Remove a table of either kind; fine if there is none.

        Trainers that use it get ``UnknownTableError`` from then on, until it is made again.
        """
        gone = self._remove("Drop", table)
        self._forget()
        return gone

    def shrink(
        self,
        table: str,
        day: int,
        *,
        dry: bool = False,
        progress: Callable[[float], None] = lambda _: None,
    ) -> Shrink:
        """Shrink a table for a day of its data, once; see ``table.shrink`` for what goes.

        Args:
            table: name of a sparse table.
            day: over 0, such as days since 1970-01-01; higher than that of any shrink before.
            dry: tell what would go, and change nothing.
            progress: is told the share that is done, in [0, 1].

        Raises:
            ConfigError: rows of the table never go by day.
            BusyError: another walk over it is under way.
            UnknownTableError: there is no such table, or it was dropped meanwhile.
        """
        number = _draw()

        def make(info: ShardInfo) -> pb.ShrinkRequest:
            return pb.ShrinkRequest(
                incarnation=info.incarnation, table=table, day=day, dry=dry, walk=number
            )

        def told(replies: Sequence[pb.ShrinkReply]) -> None:
            progress(sum(reply.is_done for reply in replies) / len(replies))

        replies = self._until_done("Shrink", make, pb.ShrinkReply, told)
        walked = [reply for reply in replies if not reply.is_past] or replies[:1]
        return Shrink(
            table=table,
            day=day,
            last_day=max(reply.last_day for reply in replies),
            past_shards=tuple(s for s, reply in enumerate(replies) if reply.is_past),
            num_shards=len(replies),
            rows=sum(reply.rows for reply in replies),
            gone=sum(reply.gone for reply in replies),
            gone_bytes=sum(reply.gone_bytes for reply in replies),
            by_score=sum(reply.by_score for reply in replies),
            by_age=sum(reply.by_age for reply in replies),
            has_scores=walked[0].has_scores,
            edges=tuple(walked[0].edges),
            all_counts=_added([reply.all_counts for reply in walked]),
            gone_counts=_added([reply.gone_counts for reply in walked]),
        )

    def top_keys(self, table: str, *, by: str = "pushes", count: int = 20) -> TopKeys:
        """Return the keys that are pushed most, or whose rows have the highest score or most shows.

        Args:
            table: name of a sparse table.
            by: "pushes", estimated since the table was made, cleared, or its server started;
                "score" or "show", exact, of the accessor ctr.
            count: keys at most.

        Raises:
            ConfigError: ``by`` is no such word, or rows have no such value.
            UnknownTableError, BusyError: as of ``shrink``.
        """
        if count < 1:
            raise ConfigError(f"top-keys {table!r}: count must be at least 1, got {count}")
        number = _draw()

        def make(info: ShardInfo) -> pb.TopKeysRequest:
            return pb.TopKeysRequest(
                incarnation=info.incarnation, table=table, by=by, count=count, walk=number
            )

        replies = self._until_done("TopKeys", make, pb.TopKeysReply, lambda _: None)
        keys = np.concatenate([np.array(reply.keys, np.uint64) for reply in replies])
        values = np.concatenate([np.array(reply.values, np.float64) for reply in replies])
        order = np.lexsort((keys, -values))[:count]
        return TopKeys(
            keys=keys[order],
            values=values[order],
            missed=max(reply.missed for reply in replies),
            seen=sum(reply.seen for reply in replies),
        )

    def _remove(self, method: str, table: str) -> Gone:
        """Ask all shards to remove something, once."""
        number = _draw()
        requests = [
            (
                info.shard,
                pb.TableRequest(incarnation=info.incarnation, table=table, request=number),
            )
            for info in self._shards
        ]
        answers = self._ask(method, requests, what=f"{method.lower()} {table!r}")
        replies = [parse_small(pb.GoneReply, answer) for answer in answers]
        return Gone(
            shards=tuple(s for s, reply in enumerate(replies) if reply.was_there),
            rows=sum(reply.rows for reply in replies),
            bytes=sum(reply.bytes for reply in replies),
        )

    def _until_done(
        self,
        method: str,
        make: Callable[[ShardInfo], Message],
        kind: type[R],
        told: Callable[[Sequence[R]], None],
    ) -> list[R]:
        """Ask the shards that are not done, again and again, and return each one's last answer."""
        replies: dict[int, R] = {}
        wait_s = _FIRST_WAIT_S
        waiting = list(self._shards)
        while True:
            requests = [(info.shard, make(info)) for info in waiting]
            answers = self._ask(method, requests, what=method.lower())
            for info, answer in zip(waiting, answers, strict=True):
                replies[info.shard] = parse_small(kind, answer)
            told(list(replies.values()))
            waiting = [info for info in waiting if not replies[info.shard].is_done]
            if not waiting:
                return [replies[info.shard] for info in self._shards]
            threading.Event().wait(wait_s)
            wait_s = min(2.0 * wait_s, _LAST_WAIT_S)


def _draw() -> int:
    """Return the number of a request or walk; never 0."""
    return secrets.randbits(63) | 1


def _added(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the sums of the shards' bins."""
    return tuple(sum(bins) for bins in zip(*counts, strict=True))
