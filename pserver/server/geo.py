"""What a shard does for geo mode beside adding differences: it tells each trainer what others changed.

Rooms before and after: ``servicer`` notes here what was written, and hands PullChanged on;
``table.geo`` holds a log for each table that somebody asked about.

What always holds: a write is noted after it was applied, and so are keys whose rows fell out or were shrunk, in the same
turn of the owner thread; a trainer that asks for what changed and then reads the rows sees at least what it was told of.
Owner: the shard's owner thread.
"""

import functools
from collections.abc import Callable, Mapping

from pserver.arrays import Keys
from pserver.errors import ShapeError
from pserver.table.geo import ChangeLog
from pserver.table.registry import Registry
from pserver.table.sparse import SparseTable
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import TRAINER_BYTES
from pserver.wire.small import build_small, parse_small

NOBODY = bytes(TRAINER_BYTES)
"""Writes what no trainer wrote: rounds of all of them, and rows that go."""


class GeoMethods:
    """The change logs of a shard's tables, and the method that reads them."""

    def __init__(self, registry: Registry, *, check_incarnation: Callable[[int], None]) -> None:
        """Begin without logs.

        Args:
            registry: the shard's tables.
            check_incarnation: refuses a request for another process.
        """
        self._registry = registry
        self._check_incarnation = check_incarnation
        self._logs: dict[str, ChangeLog] = {}

    def methods(self) -> dict[str, Callable[[bytes], bytes]]:
        """Return what answers each method."""
        return {"PullChanged": self.pull_changed}

    def note(self, table: str, keys: Keys, trainer: bytes) -> None:
        """Remember a write, if anybody ever asked for the table's changes."""
        log = self._logs.get(table)
        if log is not None:
            log.note(keys, trainer)

    def forget(self, table: str) -> None:
        """Let readers of a table that was cleared or dropped take every row for changed."""
        self._logs.pop(table, None)

    def export(self) -> dict[str, int]:
        """Return where each log ends."""
        return {table: log.position for table, log in self._logs.items()}

    def load(self, positions: Mapping[str, int]) -> None:
        """Go on with empty logs where others ended: who asks for what was before takes every row."""
        self._logs = {
            table: ChangeLog(table=table, position=position)
            for table, position in positions.items()
        }
        for table in self._registry:
            self._watch(table)

    def pull_changed(self, message: bytes) -> bytes:
        """Return which keys others wrote to; the first question about a table opens its log."""
        request = parse_small(pb.PullChangedRequest, message)
        self._check_incarnation(request.incarnation)
        if len(request.trainer) != TRAINER_BYTES:
            raise ShapeError(
                f"table {request.table!r}: a trainer is {TRAINER_BYTES} bytes, got "
                f"{len(request.trainer)}"
            )
        table = self._registry.get(request.table)
        name = table.spec.name
        self._watch(table)
        if name not in self._logs:
            self._logs[name] = ChangeLog(table=name)
        changed = self._logs[name].changed(request.ack, request.trainer)
        reply = pb.PullChangedReply(
            position=changed.position,
            is_all=changed.is_all,
            more=changed.more,
            keys=changed.keys.tobytes(),
        )
        return build_small(reply)

    def _watch(self, table: SparseTable) -> None:
        """Have keys noted whose rows a table removes: every trainer's copy of them is old then."""
        table.keeping.on_erase = functools.partial(self.note, table.spec.name, trainer=NOBODY)
