"""What one table may take of a shard: rows, bytes, and new rows a call and a minute.

Rooms before and after: ``servicer`` runs the methods that make rows or tables through ``guard``, in a turn on the
tables and before anything is recorded; settings of the server say how much.

What always holds:
    * A refusal comes before the request is recorded or applied, so the clock that is asked here is in no state
      that a replay has to repeat. That a trainer's push was refused is state: other shards may have their part of
      it, so it counts as the trainer's step, and has a record of its own.
    * New rows are counted for the whole message: it is taken, or refused.
    * A table that lets rows fall out at or under a limit here (``evict``) is never refused for that limit: it
      keeps within it by itself.
    * A part of a sync round counts when it arrives, with the parts that wait for their round: what they make
      together is within the quota. (Parts that waited when the server was restarted are not counted again.)
    * With ``on_full`` evict the limits of a table become part of its spec when it is made, so rows fall out by the
      table's own rule, and a replay does the same whatever the settings are then.
Owner: whoever has the turn on the shard's tables. Without quotas nothing of this runs.

Cost: one more look into the index for the keys of each message that may make rows.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pserver.arrays import Keys
from pserver.config import ServeSettings
from pserver.errors import QuotaError
from pserver.occurrences import NO_OCCURRENCES, Occurrences
from pserver.server.methods import METHODS
from pserver.server.named import GRADIENTS, PUSHES
from pserver.server.pushes import Pushes
from pserver.spec import parse_rule
from pserver.table.optimizer import make_optimizer
from pserver.table.sparse import SparseTable
from pserver.table.values import read_only
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import parse_pull, parse_push
from pserver.wire.small import build_small, dense_spec_of, parse_small

_MINUTE_S = 60.0
_SLOT_S = 1.0  # new rows are remembered by the second: 61 numbers a table


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits of each table on one shard; None: none."""

    table_rows_max: int | None = None
    table_bytes_max: int | None = None
    new_rows_per_minute: int | None = None
    new_rows_per_call: int | None = None
    on_full: Literal["deny", "evict"] = "deny"


@dataclass(frozen=True, slots=True)
class Parked:
    """What a part of a round, which waits, says of a table's keys."""

    round: int
    keys: Keys
    said: Occurrences


class Lately:
    """The rows that a table made in the last minute."""

    def __init__(self) -> None:
        """Begin with none."""
        self._slots: deque[tuple[float, int]] = deque()
        self.rows = 0

    def forget(self, now_s: float) -> None:
        """Leave out what is older than a minute."""
        while self._slots and now_s - self._slots[0][0] >= _MINUTE_S:
            self.rows -= self._slots.popleft()[1]

    def add(self, now_s: float, rows: int) -> None:
        """Count rows that were made now."""
        self.rows += rows
        if self._slots and now_s - self._slots[-1][0] < _SLOT_S:
            began, before = self._slots.pop()
            self._slots.append((began, before + rows))
        else:
            self._slots.append((now_s, rows))

    def wait_s(self, now_s: float) -> float:
        """Return how long until the oldest of them no longer count."""
        return _MINUTE_S - (now_s - self._slots[0][0]) if self._slots else 0.0


class Quota:
    """The quotas of one shard at work."""

    def __init__(
        self,
        limits: Quotas,
        pushes: Pushes,
        num_shards: int,
        *,
        note: Callable[[int, bytes], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the limits.

        Args:
            limits: of each table.
            pushes: knows the shard's tables, which pushes were applied, and the rounds.
            num_shards: over which a dense table is split.
            note: records that a trainer's push was refused.
            now: seconds.
        """
        self._limits, self._registry, self._once = limits, pushes.registry, pushes.once
        self._rounds, self._num_shards = pushes.rounds, num_shards
        self._pushes, self._note, self._now = pushes, note, now
        self._lately: dict[str, Lately] = {}
        self._parked: dict[str, list[Parked]] = {}  # by table

    def adapted(self, method: str, message: bytes) -> bytes:
        """Return a request as it is recorded and applied: new tables with the limits that ``on_full`` gives them.

        Raises:
            ConfigError: the table's own rule of eviction cannot be read.
        """
        if method != "CreateTable" or self._limits.on_full != "evict":
            return message
        request = parse_small(pb.CreateTableRequest, message)
        request.spec.evict = self._rule_within(request.spec)
        return build_small(request)

    def _rule_within(self, spec: pb.TableSpec) -> str:
        """Return the rule of a table's spec with the limits of here where they are lower."""
        rule = parse_rule(spec.evict or "none", where=f"table {spec.name!r}: evict")
        options = dict(rule.options)
        limits = {"rows": self._limits.table_rows_max, "bytes": self._limits.table_bytes_max}
        for name, limit in limits.items():
            if limit is not None and limit < float(options.get(name, "inf")):
                options[name] = str(limit)
        name = "lru" if rule.name == "none" else rule.name
        return f"{name}:{','.join(f'{option}={value}' for option, value in options.items())}"

    def guard(self, method: str, message: bytes, work: Callable[[], bytes]) -> bytes:
        """Do what a message asks unless it is over a quota.

        Raises:
            QuotaError: the table, the limit and what was asked for are named; nothing was done.
            NotYet: a trainer's push is over one, and has to wait for a cut that is not to have it.
        """
        assert method in METHODS
        if method == "CreateDense":
            self._check_dense(message)
            return work()
        made, number = self._new_rows(method, message)
        try:
            for table, part, rows in made:
                self._check(method, table, rows, self._together(method, table, part, rows))
        except QuotaError:
            if method in GRADIENTS:
                self._pushes.refuse(message, self._note)
            raise
        reply = work()
        for table, part, rows in made:
            self._lately.setdefault(table.spec.name, Lately()).add(self._now(), rows)
            if number:
                self._parked.setdefault(table.spec.name, []).append(part)
        return reply

    def _together(self, method: str, table: SparseTable, part: Parked, rows: int) -> int:
        """Return the new rows of a message and of the parts that wait for their round."""
        name, open_round = table.spec.name, self._rounds.open
        if name not in self._parked:
            return rows
        is_any = self._rounds.parked_bytes > 0
        waiting = [one for one in self._parked.pop(name) if is_any and one.round >= open_round]
        if not waiting:
            return rows
        self._parked[name] = waiting
        every = [*waiting, part]
        said = Occurrences.joined([(one.said, one.keys.size) for one in every])
        return _num_new(method, table, np.concatenate([one.keys for one in every]), said)

    def _new_rows(
        self, method: str, message: bytes
    ) -> tuple[list[tuple[SparseTable, Parked, int]], int]:
        """Return the tables that would get new rows, for which keys, and how many; and the message's round."""
        parts: list[tuple[str, Keys, Occurrences]] = []
        number = 0
        if method == "Pull":
            pull = parse_pull(message)
            parts = [(p.table, p.keys, NO_OCCURRENCES) for p in pull.tables if p.create]
        elif method in PUSHES:
            push = parse_push(message)
            number = push.stamp.round if push.stamp is not None else 0
            if not self._once.is_applied(push.push_id):
                parts = [(p.table, p.keys, p.said) for p in push.tables if not p.dense_part]
        made = []
        for name, keys, said in parts:
            table = self._registry.find(name)
            if isinstance(table, SparseTable):  # else the method itself says what is wrong
                rows = _num_new(method, table, keys, said)
                made.append((table, Parked(number, keys, said), rows))
        is_kept = [rows > 0 or (number > 0 and table.gate is not None) for table, _, rows in made]
        return [entry for entry, kept in zip(made, is_kept, strict=True) if kept], number

    def _check(self, method: str, table: SparseTable, rows: int, together: int) -> None:
        """Refuse a message.

        Args:
            method: that it is for.
            table: that it would make rows in.
            rows: how many.
            together: with those of parts that wait.
        """
        limits, keeping, name = self._limits, table.keeping, table.spec.name
        where = f"{method} on table {name!r}: {rows} new rows"
        if limits.new_rows_per_call is not None and rows > limits.new_rows_per_call:
            raise QuotaError(
                f"{where} in one call, at most {limits.new_rows_per_call} are allowed "
                "(--new-rows-per-call); send smaller batches"
            )
        if limits.new_rows_per_minute is not None:
            now_s, lately = self._now(), self._lately.setdefault(name, Lately())
            lately.forget(now_s)
            if lately.rows + rows > limits.new_rows_per_minute:
                raise QuotaError(
                    f"{where} after {lately.rows} in the last minute, at most "
                    f"{limits.new_rows_per_minute} a minute are allowed (--new-rows-per-minute); slow "
                    f"down: some are forgotten in {lately.wait_s(now_s):.0f} s"
                )
        rule = None if keeping.eviction is None else keeping.eviction.rule
        rows_max, bytes_max = limits.table_rows_max, limits.table_bytes_max
        if rows_max is not None and not (rule is not None and rule.rows_max <= rows_max):
            _refuse_over(where, table.num_rows, together, rows_max, "rows")
        if bytes_max is not None and not (rule is not None and rule.bytes_max <= bytes_max):
            more = together * keeping.row_bytes
            _refuse_over(where, keeping.live_bytes, more, bytes_max, "bytes")

    def _check_dense(self, message: bytes) -> None:
        """Refuse a dense table whose slice would be over the bytes of a table."""
        limit = self._limits.table_bytes_max
        spec = dense_spec_of(parse_small(pb.CreateDenseRequest, message).spec)
        if limit is None or self._registry.find(spec.name) is not None:
            return
        rule = make_optimizer(spec.optimizer, dim=1, where=f"table {spec.name!r}: optimizer")
        num_bytes = -(-spec.length // self._num_shards) * 4 * (1 + rule.state_dim)
        if num_bytes > limit:
            raise QuotaError(
                f"CreateDense {spec.name!r}: {num_bytes} bytes on each shard, at most {limit} a table are "
                "allowed (--table-bytes-max)"
            )


def quota_of(
    settings: ServeSettings, pushes: Pushes, note: Callable[[int, bytes], None]
) -> Quota | None:
    """Return the quotas that a server's settings name, or None if they name none.

    Args:
        settings: of the server.
        pushes: of its shard.
        note: records that a trainer's push was refused.
    """
    limits = Quotas(**{name: getattr(settings, name) for name in Quotas.__slots__})
    if limits == Quotas():  # evict is refused without a limit
        return None
    return Quota(limits, pushes, settings.shards, note=note)


def _num_new(method: str, table: SparseTable, keys: Keys, said: Occurrences) -> int:
    """Return how many rows a message makes for some keys."""
    if table.gate is not None and method in ("Pull", "Push"):
        if method == "Pull":
            return 0
        judged = table.gate.judge(read_only(keys), said, version=table.version)
        return 0 if judged is None else judged.new_keys.size
    return int(np.unique(keys[table.find(keys) < 0]).size)


def _refuse_over(where: str, there: int, more: int, limit: int, what: str) -> None:
    if there + more > limit:
        raise QuotaError(
            f"{where} would take it from {there} to {there + more} {what} on this shard, at most {limit} "
            f"are allowed (--table-{what}-max); remove rows, make the table with evict=lru:{what}=N, or start servers with --on-full evict"
        )
