"""What a shard answers about dense tables: bytes in, bytes out, in the owner thread.

Rooms before and after: ``servicer`` hands requests on; ``table.dense`` holds the slices; ``once``
remembers which writes were applied, sparse and dense alike.

What always holds: a write is checked whole before it is applied, and applied once. A difference that a
trainer of a group adds is part of a step, which its next push ends.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pserver.arrays import Floats
from pserver.errors import ShapeError
from pserver.placement import slice_of_shard
from pserver.server.once import Once
from pserver.server.pushes import Pushes
from pserver.server.report import Tallies
from pserver.server.waiting import NotYet, Progress
from pserver.table.dense import DenseTable
from pserver.table.registry import Registry
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import TRAINER_BYTES, PushId
from pserver.wire.small import build_small, dense_proto_of, dense_spec_of, parse_small


@dataclass(frozen=True, slots=True)
class DenseMethods:
    """The methods of dense tables. Owner: the shard's owner thread.

    Attributes:
        shard: index of this shard.
        num_shards: of the cluster.
        registry: the shard's tables.
        once: which writes were applied.
        tallies: what is counted.
        check_incarnation: refuses a request for another process.
        pushes: which knows whose pulls have to wait.
        progress: is told when values came.
    """

    shard: int
    num_shards: int
    registry: Registry
    once: Once
    tallies: Tallies
    check_incarnation: Callable[[int], None]
    pushes: Pushes
    progress: Progress

    def methods(self) -> dict[str, Callable[[bytes], bytes]]:
        """Return what answers each method."""
        return {
            "CreateDense": self.create,
            "InitDense": self.init,
            "PushDense": self.push,
            "PushDenseDelta": self.add,
            "PullDense": self.pull,
        }

    def create(self, message: bytes) -> bytes:
        """Make a table."""
        request = parse_small(pb.CreateDenseRequest, message)
        self.check_incarnation(request.incarnation)
        spec = dense_spec_of(request.spec)
        begin, end = slice_of_shard(spec.length, self.shard, self.num_shards)
        table = self.registry.create_dense(spec, size=end - begin)
        return build_small(pb.CreateDenseReply(spec=dense_proto_of(table.spec)))

    def init(self, message: bytes) -> bytes:
        """Take first values."""

        def check(table: DenseTable, write: pb.DenseWrite, values: Floats) -> None:
            table.check_init(
                write.part,
                values,
                trainer=write.trainer,
                force=write.force,
                is_last=not write.more,
            )

        def apply(table: DenseTable, write: pb.DenseWrite, values: Floats) -> None:
            table.init(write.part, values, trainer=write.trainer)
            self.progress.bump()

        return self._write(message, check, apply)

    def push(self, message: bytes) -> bytes:
        """Apply gradients; the version rises with the last part."""

        def check(table: DenseTable, write: pb.DenseWrite, grads: Floats) -> None:
            self.pushes.refuse_in_sync()
            table.check_push(write.part, grads)

        def apply(table: DenseTable, write: pb.DenseWrite, grads: Floats) -> None:
            table.push(write.part, grads)
            table.version += not write.more

        return self._write(message, check, apply)

    def add(self, message: bytes) -> bytes:
        """Add differences; the version rises with the last part."""

        def check(table: DenseTable, write: pb.DenseWrite, deltas: Floats) -> None:
            self.pushes.refuse_in_sync()
            table.check_push(write.part, deltas)

        def apply(table: DenseTable, write: pb.DenseWrite, deltas: Floats) -> None:
            table.add(write.part, deltas)
            table.version += not write.more
            member = self.pushes.members.of(write.trainer)
            if member is not None:
                member.is_amid = True

        return self._write(message, check, apply, is_of_step=True)

    def pull(self, message: bytes) -> bytes:
        """Return a part's weights, unless the sender has them."""
        request = parse_small(pb.PullDenseRequest, message)
        self.check_incarnation(request.incarnation)
        self.pushes.check_pull(request.trainer, request.round)
        table = self.registry.get_dense(request.table)
        if request.wait and not table.epoch:
            raise NotYet(self.progress.count, f"table {request.table!r} has no first values yet")
        weights = table.pull(request.part)
        reply = pb.PullDenseReply(version=table.version, change=table.change)
        if request.known == table.change:
            reply.is_unchanged = True
        else:
            reply.values = weights.tobytes()
        return build_small(reply)

    def _write(
        self,
        message: bytes,
        check: Callable[[DenseTable, pb.DenseWrite, Floats], None],
        apply: Callable[[DenseTable, pb.DenseWrite, Floats], None],
        *,
        is_of_step: bool = False,
    ) -> bytes:
        """Check a write, then apply it, once."""
        write = parse_small(pb.DenseWrite, message)
        self.check_incarnation(write.incarnation)
        push_id = _push_id(write)
        if len(write.values) % 4:
            raise ShapeError(
                f"table {write.table!r}: {len(write.values)} bytes of values are no whole float32"
            )
        values = np.frombuffer(write.values, np.float32)
        table = self.registry.get_dense(write.table)
        is_duplicate = self.once.is_applied(push_id)
        if is_duplicate:
            self.tallies.pushes_duplicate += 1
        else:
            member = self.pushes.members.of(write.trainer) if is_of_step else None
            self.pushes.align.check(member)
            check(table, write, values)
            # Marked first, as the servicer does: a kernel that raises is not run a second time.
            self.once.mark(push_id)
            apply(table, write, values)
            self.tallies.pushes_applied += 1
        return build_small(pb.DenseWriteReply(duplicate=is_duplicate, version=table.version))


def _push_id(write: pb.DenseWrite) -> PushId:
    """Return the name of a write.

    Raises:
        ShapeError: the trainer's uuid has another length.
    """
    if len(write.trainer) != TRAINER_BYTES:
        raise ShapeError(
            f"table {write.table!r}: a trainer is {TRAINER_BYTES} bytes, got {len(write.trainer)}"
        )
    return PushId(write.trainer, write.counter)
