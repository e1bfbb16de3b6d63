"""Dense tables as a client sees them: whole vectors there, slices and parts on the wire.

Rooms before and after: ``Client`` lends its way to the shards; ``placement`` says which shard holds
what and where a slice is cut; ``server.dense`` answers.

What always holds:
    * The last part of a write leaves when all others are applied, so a version stands for whole
      pushes of this client. Parts of differences (geo mode) leave together and in any order.
    * Values that were handed out are read-only, as a later pull may hand them out again.

Cost: the generated classes copy a part a few times on each side, milliseconds for the few MB of a
model's dense part; an unchanged part is about 10 bytes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pserver.arrays import Floats
from pserver.client.compose import NOBODY, Asker
from pserver.client.inputs import as_block
from pserver.client.membership import ShardInfo
from pserver.client.pending import renewed
from pserver.client.specs import Ask
from pserver.errors import InternalError, NotFiniteError, ShapeError, UnknownTableError, nearest
from pserver.kernel import rows
from pserver.placement import parts_of_slice, slice_of_shard
from pserver.spec import DenseSpec
from pserver.table.dense import spelled_out_dense
from pserver.table.values import LIMIT_BITS, VALUE_MAX
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import PushId
from pserver.wire.small import dense_proto_of, dense_spec_of, parse_small


@dataclass(frozen=True, slots=True, eq=False)
class DensePulled:
    """A dense table as it was read.

    Attributes:
        table: its name.
        values: (length,) float32, read-only; the very array of ``known`` if nothing changed.
        versions: of each shard: pushes applied since the values were written.
        is_changed: whether anything changed since ``known``; True without one.
        marks: of each shard, the incarnation and the change that the next pull names.
    """

    table: str
    values: NDArray[np.float32]
    versions: tuple[int, ...]
    is_changed: bool
    marks: tuple[tuple[int, int], ...]


class Dense:
    """The dense tables of a cluster. Thread-safe, as what it was lent is."""

    def __init__(
        self, shards: Sequence[ShardInfo], ask: Ask, push_id: Callable[[int], PushId]
    ) -> None:
        """Take the way to the shards."""
        self._shards = shards
        self._ask = ask
        self._push_id = push_id
        self._specs: dict[str, DenseSpec] = {}
        self._latest: dict[str, Floats] = {}  # values that were written or read last

    def create(self, spec: DenseSpec) -> DenseSpec:
        """Make the table on every shard; fine if it is there with this very spec.

        Raises:
            ConfigError: the rule is unknown, or cannot step a dense table; nothing was sent.
            SpecMismatchError: the name stands for another table.
        """
        proto = dense_proto_of(spelled_out_dense(spec))
        requests = [(info.shard, _creating(proto, info)) for info in self._shards]
        replies = self._ask("CreateDense", requests, what=f"create dense {spec.name!r}")
        made = dense_spec_of(parse_small(pb.CreateDenseReply, replies[-1]).spec)
        self._specs[spec.name] = made
        return made

    def spec(self, table: str) -> DenseSpec:
        """Return the spec of a table that this client made or that the servers have.

        Raises:
            UnknownTableError: there is none of that name.
        """
        if table not in self._specs:
            (reply,) = self._ask("Describe", [(0, pb.DescribeRequest())], what="describe")
            for message in parse_small(pb.DescribeReply, reply).dense_tables:
                self._specs[message.name] = dense_spec_of(message)
        if table not in self._specs:
            known = nearest(table, self._specs) if self._specs else "the servers have none"
            raise UnknownTableError(f"no dense table {table!r}; {known}")
        return self._specs[table]

    def init(self, table: str, values: ArrayLike) -> None:
        """Write first values, once.

        Shards are asked one after the other: of several trainers that try, the one that shard 0
        takes writes all of them.

        Raises:
            DenseInitError: there are values, or another trainer is writing them: pull them.
            UnknownTableError, ShapeError, NotFiniteError: nothing was sent.
        """
        self._write("InitDense", table, values, force=False)

    def reset(self, table: str, values: ArrayLike) -> None:
        """Write values whatever is there; version and optimizer state begin anew."""
        self._write("InitDense", table, values, force=True)

    def push(self, table: str, grads: ArrayLike) -> int:
        """Send gradients, and return the lowest version that a shard has then.

        Raises:
            DenseInitError: there are no values yet.
            UnknownTableError, ShapeError, NotFiniteError: nothing was sent.
        """
        block = self._block("push", table, grads, what="grads")
        shards = [(info, self._writes(info, table, block, force=False)) for info in self._shards]
        what = f"push dense {table!r}"
        earlier = [(info.shard, write) for info, writes in shards for write in writes[:-1]]
        last = [(info.shard, writes[-1]) for info, writes in shards]
        with self._renewed(table):
            self._ask("PushDense", earlier, what=what)
            replies = self._ask("PushDense", last, what=what)
        return min(parse_small(pb.DenseWriteReply, reply).version for reply in replies)

    def delta(self, table: str, deltas: ArrayLike) -> list[tuple[int, pb.DenseWrite]]:
        """Return the messages that add differences, each with its shard, in any order.

        Raises:
            UnknownTableError, ShapeError, NotFiniteError: none was made.
        """
        block = self._block("delta", table, deltas, what="deltas")
        return [
            (info.shard, write)
            for info in self._shards
            for write in self._writes(info, table, block, force=False)
        ]

    def pull(
        self,
        table: str,
        *,
        known: DensePulled | None,
        asker: Asker = NOBODY,
        more_s: float = 0.0,
    ) -> DensePulled:
        """Read the table.

        Args:
            table: its name.
            known: what an earlier pull returned.
            asker: for whom; a group's trainer waits for first values, and for its round.
            more_s: seconds beyond the client's timeout that it may wait.

        Raises:
            DenseInitError: there are no values yet.
            ShapeError: ``known`` is of another table.
        """
        length = self.spec(table).length
        if known is not None and (
            known.table != table
            or known.values.shape != (length,)
            or len(known.marks) != len(self._shards)
        ):
            raise ShapeError(
                f"pull {table!r}: known must be of this table, with {length} values of "
                f"{len(self._shards)} shards; it is of {known.table!r}, with {known.values.size} "
                f"of {len(known.marks)}"
            )
        requests: list[tuple[int, pb.PullDenseRequest]] = []
        bounds: list[tuple[int, int]] = []
        shards = tuple(self._shards)  # as they are now: the marks are of these, whatever answers
        for info in shards:
            begin, end = slice_of_shard(length, info.shard, len(shards))
            incarnation, change = known.marks[info.shard] if known is not None else (0, 0)
            for part, (first, behind) in enumerate(parts_of_slice(end - begin)):
                request = pb.PullDenseRequest(
                    incarnation=info.incarnation,
                    table=table,
                    part=part,
                    known=change if incarnation == info.incarnation else 0,
                    trainer=asker.trainer,
                    round=asker.round,
                    wait=bool(asker.trainer),
                )
                requests.append((info.shard, request))
                bounds.append((begin + first, begin + behind))
        with self._renewed(table):
            what = f"pull dense {table!r}"
            answers = self._ask("PullDense", requests, what=what, more_s=more_s)
            replies = [parse_small(pb.PullDenseReply, answer) for answer in answers]
            asked = [shard for shard, _ in requests]
            parts = list(zip(asked, bounds, replies, strict=True))
            pulled = self._merged(table, length, shards, known, parts)
        self._latest[table] = pulled.values
        return pulled

    def _merged(
        self,
        table: str,
        length: int,
        shards: Sequence[ShardInfo],
        known: DensePulled | None,
        parts: Sequence[tuple[int, tuple[int, int], pb.PullDenseReply]],
    ) -> DensePulled:
        """Put parts together. Where those of a shard differ, the older mark and version count."""
        changed = [item for item in parts if not item[2].is_unchanged]
        if len(changed) == len(parts):
            values = np.empty(length, np.float32)
        elif known is None:
            raise InternalError(f"pull {table!r}: a shard says 'unchanged' of what was never read")
        else:
            values = known.values.copy() if changed else known.values
        if changed:
            for _, (begin, end), reply in changed:
                block = np.frombuffer(reply.values, np.float32)
                if block.size != end - begin:
                    raise ShapeError(
                        f"pull {table!r}: a shard answered with {block.size} floats, expected "
                        f"{end - begin}: it was dropped and made anew with another length; the next "
                        "call knows it"
                    )
                values[begin:end] = block
            values.flags.writeable = False
        oldest: dict[int, tuple[int, int]] = {}
        for shard, _, reply in parts:
            mark = (reply.change, reply.version)
            oldest[shard] = min(oldest.get(shard, mark), mark)
        return DensePulled(
            table=table,
            values=values,
            versions=tuple(oldest[info.shard][1] for info in shards),
            is_changed=bool(changed),
            marks=tuple((info.incarnation, oldest[info.shard][0]) for info in shards),
        )

    # --- for a shard that came back without its tables ------------------------------------------

    def known(self) -> list[str]:
        """Return the names of the tables that this client knows."""
        return list(self._specs)

    def creating(self, table: str, info: ShardInfo) -> pb.CreateDenseRequest:
        """Return what makes a table that is known on a shard."""
        return _creating(dense_proto_of(self._specs[table]), info)

    def initializing(self, table: str, info: ShardInfo) -> list[pb.DenseWrite]:
        """Return what gives a shard the values that this client knew last; nothing if it knew none."""
        values = self._latest.get(table)
        return [] if values is None else self._writes(info, table, values, force=False)

    def _write(self, method: str, table: str, values: ArrayLike, *, force: bool) -> None:
        """Write values, shard after shard."""
        block = self._block("init", table, values, what="values")
        what = f"init dense {table!r}"
        for info in self._shards:
            writes = [(info.shard, w) for w in self._writes(info, table, block, force=force)]
            with self._renewed(table):
                self._ask(method, writes[:-1], what=what)
                self._ask(method, writes[-1:], what=what)
        self._latest[table] = block

    def _renewed(self, table: str) -> AbstractContextManager[None]:
        """Forget a table's spec if the servers have another one, or none."""
        return renewed(lambda: self._specs.pop(table, None))

    def _block(self, verb: str, table: str, values: ArrayLike, *, what: str) -> Floats:
        """Return a caller's vector as contiguous float32.

        Raises:
            UnknownTableError: there is no such table.
            ShapeError: the vector has another shape, or holds no floats.
            NotFiniteError: the servers would refuse one of them.
        """
        length = self.spec(table).length
        array = np.asarray(values)
        if array.shape != (length,):
            raise ShapeError(
                f"{verb} {table!r}: {what} must be ({length},) float32, got {array.shape} "
                f"{array.dtype}"
            )
        block = as_block(array, num_keys=length, dim=1, where=f"{verb} {table!r}", what=what)
        bad = rows.first_beyond(block, LIMIT_BITS)
        if bad >= 0:
            raise NotFiniteError(
                f"{verb} {table!r}: value {bad} is {block[bad]}, must be a number of at most "
                f"{VALUE_MAX:g} in magnitude; nothing was sent"
            )
        return block

    def _writes(
        self, info: ShardInfo, table: str, block: Floats, *, force: bool
    ) -> list[pb.DenseWrite]:
        """Return the messages of a write to one shard, in order."""
        begin, end = slice_of_shard(block.size, info.shard, len(self._shards))
        parts = parts_of_slice(end - begin)
        writes = []
        for part, (first, behind) in enumerate(parts):
            push_id = self._push_id(info.shard)
            write = pb.DenseWrite(
                incarnation=info.incarnation,
                trainer=push_id.trainer,
                counter=push_id.counter,
                more=part < len(parts) - 1,
                table=table,
                part=part,
                force=force,
                values=block[begin + first : begin + behind].tobytes(),
            )
            writes.append(write)
        return writes


def _creating(proto: pb.DenseSpec, info: ShardInfo) -> pb.CreateDenseRequest:
    """Return what makes a table on a shard."""
    return pb.CreateDenseRequest(incarnation=info.incarnation, spec=proto)
