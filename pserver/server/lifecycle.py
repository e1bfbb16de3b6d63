"""What a shard does to keep its tables small: clear, drop, shrink; and which keys are hot.

Rooms before and after: ``servicer`` hands requests on; ``executor`` does walks, a slice after each
request; ``table.shrink`` and ``table.top`` are the walks.

What always holds:
    * A request is answered at once; long work is a walk, and whoever began it asks again until it is
      done. The number that the caller drew names it, so a retry begins nothing anew.
    * A table has one walk at a time. A walk ends when its table is dropped.
    * No table is dropped under a sync group, whose parts wait for their round.
    * Memory of rows that are gone goes back to the system in slices, too.
    * A walk that changes rows, and each of its slices, is recorded before it is done.
Owner: the owner thread.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from pserver.errors import (
    BusyError,
    ConfigError,
    InternalError,
    PserverError,
    StorageError,
    UnknownTableError,
    nearest,
)
from pserver.server.executor import Executor
from pserver.server.members import Members
from pserver.server.methods import METHODS, Own
from pserver.server.recording import Recorder, number_body
from pserver.table import shrink, top
from pserver.table.in_force import in_force
from pserver.table.registry import Registry
from pserver.table.sparse import SparseTable
from pserver.table.storage import AnyMapping
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

log = structlog.get_logger(__name__)

REMEMBERED_MAX = 64
"""Answers and walks that are remembered, for retries: a retry comes within a minute."""

LOG_EVERY_S = 10.0
"""How often a table says that rows fell out of it."""

_FULL_S = 0.001  # a walk that cannot be recorded looks again after that, as long as a slice takes

TOP_MAX = 10_000
"""Keys that are told at most: 160 KB."""


@dataclass(slots=True, eq=False)
class _Walk:
    """Long work on one table.

    Attributes:
        what: it does, for errors.
        reply: makes the answer, as far as it goes.
        message: that began it; empty where it changes nothing.
        is_done: whether it ended.
        failure: why it ended early, if it did.
    """

    what: str
    reply: Callable[[], pb.ShrinkReply | pb.TopKeysReply]
    message: bytes = b""
    is_done: bool = False
    failure: PserverError | None = None


def _say(event: str, **fields: object) -> None:
    """Log a line, if this process has logs: one that only embeds shards has none, and prints nothing."""
    if structlog.is_configured():
        log.info(event, **fields)


class LifecycleMethods:
    """The methods of one shard."""

    def __init__(
        self,
        registry: Registry,
        executor: Executor,
        members: Members,
        forget: Callable[[str], None],
        recorder: Recorder,
        *,
        check_incarnation: Callable[[int], None],
    ) -> None:
        """Take the shard's parts.

        Args:
            registry: its tables.
            executor: does walks.
            members: the trainers of a group, if there is one.
            forget: is told of a table that was cleared or dropped.
            recorder: is told what walks are about to change.
            check_incarnation: refuses a request for another process.
        """
        self._registry = registry
        self._executor = executor
        self._members = members
        self._check_incarnation = check_incarnation
        self._forget = forget
        self._recorder = recorder
        self._held: dict[int, Iterator[None]] | None = None  # walks, while records are replayed
        self._answers: OrderedDict[int, bytes] = OrderedDict()
        self._walks: OrderedDict[int, _Walk] = OrderedDict()
        self._busy: dict[str, _Walk] = {}
        self._told: dict[str, tuple[float, int]] = {}  # when rows were last told of, and how many

    def methods(self) -> dict[str, Callable[[bytes], bytes]]:
        """Return what answers each method."""
        return {
            "Clear": self.clear,
            "Drop": self.drop,
            "Shrink": self.shrink,
            "TopKeys": self.top_keys,
        }

    def made(self, table: SparseTable) -> None:
        """Say what is in force in a table that was just made."""
        _say("table made", table=table.spec.name, **in_force(table.spec))

    def note(self) -> None:
        """Say, now and then, what fell out of tables; called after each request, on the event loop."""
        for table in tuple(self._registry):
            eviction = table.keeping.eviction
            if eviction is None:
                continue
            last_s, told = self._told.get(table.spec.name, (-LOG_EVERY_S, 0))
            now_s, evicted = time.monotonic(), eviction.evicted
            if evicted == told or now_s - last_s < LOG_EVERY_S:
                continue
            self._told[table.spec.name] = (now_s, evicted)
            _say(
                "rows fell out",
                table=table.spec.name,
                rows=evicted - told,
                evict=table.spec.evict,
                last=eviction.fell(),
                rows_left=table.num_rows,
            )

    def clear(self, message: bytes) -> bytes:
        """Remove all rows of a table."""
        request = parse_small(pb.TableRequest, message)

        def work() -> pb.GoneReply:
            table = self._registry.get(request.table)
            reply = pb.GoneReply(was_there=True, rows=table.num_rows, bytes=table.num_bytes)
            self._leave(table.clear())
            return reply

        return self._once(request, work, "table cleared")

    def drop(self, message: bytes) -> bytes:
        """Remove a table."""
        request = parse_small(pb.TableRequest, message)

        def work() -> pb.GoneReply:
            gone = self._registry.find(request.table)
            if self._members.is_sync:
                raise BusyError(
                    f"drop {request.table!r}: a sync group of trainers works on these servers, and "
                    "parts of its round may name the table; end the group first"
                )
            if gone is None:
                return pb.GoneReply()
            if isinstance(gone, SparseTable):
                self._leave(gone.leave())
            self._registry.drop(request.table)
            self._told.pop(request.table, None)
            rows = gone.num_rows if isinstance(gone, SparseTable) else gone.size
            return pb.GoneReply(was_there=True, rows=rows, bytes=gone.num_bytes)

        return self._once(request, work, "table dropped")

    def shrink(self, message: bytes) -> bytes:
        """Begin to shrink a table, or tell how far that is."""
        request = parse_small(pb.ShrinkRequest, message)
        self._check_incarnation(request.incarnation)
        if request.walk in self._walks:
            return self._told_of(request.walk)
        table = self._registry.get(request.table)
        shrink.check_shrinkable(table)
        if not 1 <= request.day <= shrink.DAY_MAX:
            raise ConfigError(f"shrink {request.table!r}: day must be over 0, got {request.day}")
        if shrink.is_past(table, request.day):
            past = pb.ShrinkReply(is_done=True, is_past=True, last_day=table.keeping.day)
            return build_small(past)
        shrunk = shrink.Shrunk(shrink.edges_of(table))
        walk = _Walk(
            what=f"{'dry ' * request.dry}shrink for day {request.day}",
            reply=lambda: _shrink_reply(table, shrunk),
            message=b"" if request.dry else message,
        )
        slices = shrink.walk(table, request.day, shrunk, dry=request.dry)
        return self._begin(request.walk, walk, table, slices)

    def top_keys(self, message: bytes) -> bytes:
        """Begin to look for the keys that are pushed most or score highest, or tell of them."""
        request = parse_small(pb.TopKeysRequest, message)
        self._check_incarnation(request.incarnation)
        if request.walk in self._walks:
            return self._told_of(request.walk)
        table = self._registry.get(request.table)
        count = min(request.count, TOP_MAX)
        if request.by not in top.WORDS:
            hint = nearest(request.by, top.WORDS)
            raise ConfigError(f"top-keys {request.table!r}: by: unknown value; {hint}")
        if request.by != "pushes":
            best = top.Best(table, request.by, count)
            walk = _Walk(f"search for top keys by {request.by}", lambda: _best_reply(best))
            return self._begin(request.walk, walk, table, best.walk())
        found = table.hot.top(count)
        reply = pb.TopKeysReply(
            is_done=True,
            keys=found.keys.tolist(),
            values=found.low.tolist(),
            missed=found.missed,
            seen=found.seen,
        )
        return build_small(reply)

    def _once(
        self, request: pb.TableRequest, work: Callable[[], pb.GoneReply], event: str
    ) -> bytes:
        """Do what a request asks, or return the answer that it got before."""
        self._check_incarnation(request.incarnation)
        if request.request not in self._answers:
            reply = work()
            if reply.was_there:
                self._forget(request.table)
                _say(event, table=request.table, rows=reply.rows, bytes=reply.bytes)
            self._answers[request.request] = build_small(reply)
            while len(self._answers) > REMEMBERED_MAX:
                self._answers.popitem(last=False)
        return self._answers[request.request]

    def _leave(self, memory: list[AnyMapping]) -> None:
        """Give memory back, in slices."""

        def slices() -> Iterator[None]:
            while memory:
                yield from memory.pop().leave()

        self._executor.begin(slices())

    def _begin(self, number: int, walk: _Walk, table: SparseTable, slices: Iterator[None]) -> bytes:
        """Take up a walk, and tell how far it is: nowhere.

        Raises:
            BusyError: the table has another one.
        """
        name = table.spec.name
        other = self._busy.get(name)
        if other is not None:
            raise BusyError(
                f"table {name!r}: a {other.what} is under way; one at a time, try again when it is "
                "done"
            )
        if walk.message:
            self._recorder.note(METHODS["Shrink"].number, walk.message)
        self._busy[name] = self._walks[number] = walk
        while len(self._walks) > REMEMBERED_MAX:
            self._walks.popitem(last=False)
        guarded = self._guarded(number, walk, table, slices)
        if self._held is None:
            self._executor.begin(guarded)
        else:
            self._held[number] = guarded
        return build_small(walk.reply())

    def _guarded(
        self, number: int, walk: _Walk, table: SparseTable, slices: Iterator[None]
    ) -> Iterator[None]:
        """Do a walk until it ends, fails, or its table is gone."""
        name = table.spec.name
        try:
            while True:
                if not self._registry.has(table):
                    walk.failure = UnknownTableError(
                        f"table {name!r} was dropped in its {walk.what}"
                    )
                    return
                while walk.message and not self._is_noted(number):
                    if self._executor.is_closed:
                        return  # a restart takes it up where it stands
                    yield
                try:
                    next(slices)
                except StopIteration:
                    break
                yield
        except Exception as error:
            text = f"{walk.what} of table {name!r}: {type(error).__name__}: {error}"
            walk.failure = InternalError(text)
            raise
        finally:
            walk.is_done = True
            del self._busy[name]
        _say("walk done", table=name, what=walk.what)

    def _is_noted(self, number: int) -> bool:
        """Record the next slice of a walk; False if the disk is full, and it has to wait."""
        try:
            self._recorder.note(Own.SLICE, number_body(number))
        except StorageError:
            time.sleep(_FULL_S)
            return False
        return True

    # --- while records are replayed -----------------------------------------------------------

    def hold_walks(self) -> None:
        """Let walks go on by ``advance`` only, as they went on at first."""
        self._held = {}

    def advance(self, number: int) -> None:
        """Do the next slice of a walk.

        Raises:
            InternalError: no such walk was begun.
        """
        walk = None if self._held is None else self._held.get(number)
        if walk is None:
            raise InternalError(f"a slice of walk {number}, which was not begun")
        next(walk, None)

    def release_walks(self) -> None:
        """Let walks that did not end go on by themselves."""
        for walk in (self._held or {}).values():
            self._executor.begin(walk)
        self._held = None

    def export(self) -> dict[str, Any]:
        """Return answers, and what began the walks that go on; ``load`` takes it back."""
        under_way = [w.message for w in self._walks.values() if w.message and not w.is_done]
        return {"answers": list(self._answers.items()), "walks": under_way}

    def load(self, state: dict[str, Any]) -> None:
        """Become what ``export`` returned elsewhere; walks go on, and tell what they did since."""
        self._answers = OrderedDict((number, answer) for number, answer in state["answers"])
        for message in state["walks"]:
            self.shrink(message)

    # --- inside -------------------------------------------------------------------------------

    def _told_of(self, number: int) -> bytes:
        """Return how far a walk is.

        Raises:
            UnknownTableError: its table was dropped.
            InternalError: it failed by our own mistake.
        """
        walk = self._walks[number]
        if walk.failure is not None:
            raise walk.failure
        reply = walk.reply()
        reply.is_done = walk.is_done
        return build_small(reply)


def _shrink_reply(table: SparseTable, shrunk: shrink.Shrunk) -> pb.ShrinkReply:
    """Return what a shrink did so far."""
    return pb.ShrinkReply(
        last_day=table.keeping.day,
        rows=shrunk.rows,
        gone=shrunk.gone,
        gone_bytes=shrunk.gone_bytes,
        by_score=shrunk.by_score,
        by_age=shrunk.by_age,
        has_scores=table.accessor.is_ctr,
        edges=shrunk.edges,
        all_counts=shrunk.all_counts.tolist(),
        gone_counts=shrunk.gone_counts.tolist(),
    )


def _best_reply(best: top.Best) -> pb.TopKeysReply:
    """Return the highest rows so far."""
    return pb.TopKeysReply(keys=best.keys.tolist(), values=best.values.tolist(), seen=best.rows)
