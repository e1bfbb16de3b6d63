"""What a shard does with a push: applied when it arrives, or parked for its round.

Rooms before and after: ``servicer`` hands on the bytes, in the owner thread; ``once`` remembers which
pushes came before, ``members`` who sends, ``rounds`` parks; the tables are stepped.

What always holds:
    * A message is checked whole, every table of it, before any of it is applied or parked.
    * A push_id is marked in the same turn in which its message is applied or parked, so what was
      acknowledged counts once, however often it is sent.
    * While a sync group is there, gradients outside of a round are refused.
Owner: the shard's owner thread.
"""

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pserver.arrays import Keys
from pserver.errors import GroupError, PserverError, ShapeError
from pserver.server.align import Align
from pserver.server.bad_values import BadValues
from pserver.server.geo import GeoMethods
from pserver.server.members import REFUSED_MAX, Member, Members
from pserver.server.methods import Own
from pserver.server.once import Once
from pserver.server.report import Tallies
from pserver.server.rounds import Rounds
from pserver.server.waiting import NotYet, Progress
from pserver.table.dense import DenseTable
from pserver.table.registry import Registry
from pserver.table.sparse import SparseTable
from pserver.trace import span
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import PushId, PushRequest, TablePush, parse_push
from pserver.wire.small import build_small

_REFUSAL = struct.Struct("<16sQQ?")
"""Trainer, counter and position of a push, and whether more messages of it come."""

Target = tuple[SparseTable | DenseTable, TablePush]


@dataclass(frozen=True, slots=True)
class Pushes:
    """The writing methods of one shard. Owner: the shard's owner thread.

    Attributes:
        registry: the shard's tables.
        once: which pushes came before.
        tallies: what is counted.
        bad_values: which numbers no row can hold.
        geo: is told what was written.
        members: the trainers.
        rounds: where parts wait for each other.
        progress: is told when the slowest trainer moved on.
        align: has writes wait that a cut is not to have.
        check_incarnation: refuses a request for another process.
        check_keys: refuses keys of another shard.
    """

    registry: Registry
    once: Once
    tallies: Tallies
    bad_values: BadValues
    geo: GeoMethods
    members: Members
    rounds: Rounds
    progress: Progress
    align: Align
    check_incarnation: Callable[[int], None]
    check_keys: Callable[[str, Keys], None]

    def push(self, message: bytes) -> bytes:
        """Apply or park gradients."""
        request = self._read(message)
        member = self.members.of(request.push_id.trainer)
        if request.stamp is not None:
            return self._part(request, message, member)
        self.refuse_in_sync()
        if self.once.is_applied(request.push_id):
            return self._duplicate(request)
        self.align.check(member)
        with self._counting(member, request):
            targets = self._checked(request)
        # Marked first: should a user's kernel raise, no retry applies the rest a second time.
        self.once.mark(request.push_id)
        staleness = max([_staleness(table, part) for table, part in targets], default=0)
        for table, part in targets:
            self._step(table, part, scale=self._scale(member, _staleness(table, part)))
            self._note(part, request.push_id)
            if isinstance(table, SparseTable):
                table.version += not request.more
        self.tallies.pushes_applied += 1
        self._count(member, request, staleness)
        versions = [] if request.more else [table.version for table, _ in targets]
        return build_small(pb.PushReply(versions=versions, staleness=staleness))

    def assign(self, message: bytes) -> bytes:
        """Write weights as they are, at once, whatever round is open."""

        def checked(table: SparseTable, part: TablePush, _: PushId) -> TablePush:
            table.check_assign(part.keys, part.values)
            return part

        return self._write(
            self._read(message), checked, lambda table, part: table.assign(part.keys, part.values)
        )

    def add(self, message: bytes) -> bytes:
        """Add differences to weights, at once."""
        request = self._read(message)
        self.refuse_in_sync()
        member = self.members.of(request.push_id.trainer)
        return self._write(
            request,
            self.bad_values.checked,
            lambda table, part: table.add(part.keys, part.values),
            member=member,
        )

    def refuse_in_sync(self) -> None:
        """Refuse gradients outside of a round while there are rounds.

        Raises:
            GroupError: a sync group is there.
        """
        if self.members.is_sync:
            raise GroupError(
                "a sync group of trainers works on these servers: gradients are taken in its "
                "rounds only; join the group, or wait until it has ended"
            )

    def check_pull(self, trainer: bytes, round_number: int) -> None:
        """Let a trainer's pull pass once its round is reached, or the slowest is near enough.

        Raises:
            NotYet: it has to wait.
            GroupError: the sender is not, or no longer, of the group.
        """
        if not trainer:
            return
        member = self.members.of(trainer)
        spec = self.members.spec
        if member is None or spec is None:
            raise GroupError("pull: the sender is in no group of trainers here; it must join again")
        if round_number:
            self.rounds.check_pull(round_number)
        elif spec.max_staleness is not None:
            ahead = member.steps - self.members.slowest_step()
            if ahead > spec.max_staleness:
                raise NotYet(
                    self.progress.count,
                    f"{member.name} is {ahead} steps ahead of the slowest trainer, at most "
                    f"{spec.max_staleness} are allowed (--max-staleness)",
                )

    def refuse(self, message: bytes, note: Callable[[int, bytes], None]) -> None:
        """Count gradients that are refused for what is no state, and so leave no record of their own.

        Args:
            message: of the push.
            note: records that it was refused.

        Raises:
            NotYet: it has to wait for a cut that is not to have it.
        """
        request = self._read(message)
        member = self.members.of(request.push_id.trainer)
        if member is None or request.stamp is not None:
            return
        self.refuse_in_sync()
        self.align.check(member)
        if request.push_id.counter in member.refused:
            return
        note(Own.REFUSED, _refusal_body(request))
        self._count_refused(member, request)

    def replays(self) -> dict[int, Callable[[bytes], object]]:
        """Return what applies the records of ``refuse`` again, in the owner thread."""

        def refused(body: bytes) -> None:
            request = _refusal_of(body)
            member = self.members.of(request.push_id.trainer)
            assert member is not None, "only a trainer's refusal is recorded"
            self._count_refused(member, request)

        return {Own.REFUSED: refused}

    # --- inside -------------------------------------------------------------------------------

    def _part(self, request: PushRequest, message: bytes, member: Member | None) -> bytes:
        """Park a message of a round."""
        assert request.stamp is not None
        if member is None or not member.is_expected or not self.members.is_sync:
            raise GroupError(
                f"a part of round {request.stamp.round} came from a trainer that is in no sync "
                "group here; it must join first. Nothing was applied"
            )
        if self.once.is_applied(request.push_id):
            self.tallies.pushes_duplicate += 1
            return build_small(pb.PushReply(duplicate=True))
        self.align.check(member, request.stamp.round)
        self.rounds.check_part(member, request.stamp)
        mended = self.mended(request)
        self.once.mark(request.push_id)
        self.tallies.pushes_applied += 1
        member.pushes += not request.more
        self.rounds.take(member, mended, message)
        return build_small(pb.PushReply())

    def _read(self, message: bytes) -> PushRequest:
        """Return a push that is for this process and names each table once."""
        request = parse_push(message)
        self.check_incarnation(request.incarnation)
        names = [(part.table, part.dense_part) for part in request.tables]
        if len(set(names)) < len(names):
            raise ShapeError(f"a push names each table once, got {[name for name, _ in names]}")
        return request

    def mended(self, request: PushRequest) -> PushRequest:
        """Return a checked push, its bad numbers mended where a table does that."""
        return dataclasses.replace(request, tables=[part for _, part in self._checked(request)])

    def _target(self, part: TablePush) -> SparseTable | DenseTable:
        """Return the table of a part."""
        if part.dense_part:
            return self.registry.get_dense(part.table)
        return self.registry.get(part.table)

    def _checked(self, request: PushRequest) -> list[Target]:
        """Return what a message does to which table, or refuse it whole."""
        targets: list[Target] = []
        for part in request.tables:
            table = self._target(part)
            if isinstance(table, SparseTable):
                self.check_keys(part.table, part.keys)
                targets.append((table, self.bad_values.checked(table, part, request.push_id)))
                continue
            if part.keys.size:
                raise ShapeError(f"push {part.table!r}: a dense table has no keys")
            table.check_push(part.dense_part - 1, part.values)
            targets.append((table, part))
        return targets

    def _write(
        self,
        request: PushRequest,
        checked: Callable[[SparseTable, TablePush, PushId], TablePush],
        apply: Callable[[SparseTable, TablePush], None],
        *,
        member: Member | None = None,
    ) -> bytes:
        """Check every table's part of what is no gradient, then apply them all, once."""
        if any(part.dense_part for part in request.tables):
            raise ShapeError("only gradients of dense tables come in a push")
        if self.once.is_applied(request.push_id):
            return self._duplicate(request)
        self.align.check(member)
        targets = []
        with self._counting(member, request):
            for part in request.tables:
                table = self.registry.get(part.table)
                self.check_keys(part.table, part.keys)
                targets.append((table, checked(table, part, request.push_id)))
        self.once.mark(request.push_id)
        for table, part in targets:
            apply(table, part)
            self._note(part, request.push_id)
            table.version += not request.more
        self.tallies.pushes_applied += 1
        self._count(member, request, 0)
        versions = [] if request.more else [table.version for table, _ in targets]
        return build_small(pb.PushReply(versions=versions))

    def _step(self, table: SparseTable | DenseTable, part: TablePush, *, scale: float) -> None:
        """Apply the gradients that came for one table; a dense one's version rises at its end."""
        values = part.values if scale == 1.0 else part.values * np.float32(scale)
        with span("kernel", table=part.table):
            if isinstance(table, SparseTable):
                table.push(part.keys, values, part.said)
            else:
                table.push(part.dense_part - 1, values)
                table.version += part.dense_part == table.num_parts

    def _note(self, part: TablePush, push_id: PushId) -> None:
        """Count what was written, and tell geo mode of it."""
        if part.keys.size:
            self.geo.note(part.table, part.keys, push_id.trainer)
            self.tallies.keys_pushed[part.table] += part.keys.size
        if part.counts.size:
            self.tallies.occurrences_pushed[part.table] += int(part.counts.sum())

    def _scale(self, member: Member | None, staleness: int) -> float:
        """Return what gradients are multiplied by: 1 / (1 + s) where the group says so."""
        spec = self.members.spec
        if member is None or spec is None or spec.staleness_lr == "none":
            return 1.0
        return 1.0 / (1 + staleness)

    def _count(self, member: Member | None, request: PushRequest, staleness: int) -> None:
        """Count a finished push of a trainer, and wake those that wait for the slowest."""
        if member is None:
            return
        member.is_amid = request.more
        if request.more:
            return
        slowest = self.members.slowest_step()
        member.pushes += 1
        member.steps += 1
        member.position = request.position or member.position
        member.staleness.add(staleness)
        if self.members.slowest_step() != slowest:
            self.progress.bump()

    @contextlib.contextmanager
    def _counting(self, member: Member | None, request: PushRequest) -> Iterator[None]:
        """Count a push that is refused: other shards may have their part, so its step is over here too."""
        try:
            yield
        except PserverError:
            if member is not None and request.push_id.counter not in member.refused:
                self._count_refused(member, request)
            raise

    def _count_refused(self, member: Member, request: PushRequest) -> None:
        """Count a push of a trainer that was refused, and remember that it was."""
        member.refused = [*member.refused[1 - REFUSED_MAX :], request.push_id.counter]
        self._count(member, request, 0)

    def _duplicate(self, request: PushRequest) -> bytes:
        self.tallies.pushes_duplicate += 1
        versions = [] if request.more else [self._target(part).version for part in request.tables]
        return build_small(pb.PushReply(duplicate=True, versions=versions))


def _refusal_body(request: PushRequest) -> bytes:
    """Return the body of a record of a push that was refused: what a count of it needs."""
    trainer, counter = request.push_id.trainer, request.push_id.counter
    return _REFUSAL.pack(trainer, counter, request.position, request.more)


def _refusal_of(body: bytes) -> PushRequest:
    """Return such a push, without its tables."""
    trainer, counter, position, more = _REFUSAL.unpack(body)
    return PushRequest(0, PushId(trainer, counter), more, (), position=position)


def _staleness(table: SparseTable | DenseTable, part: TablePush) -> int:
    """Return the versions that other pushes came to since the gradients' weights were pulled."""
    return max(0, table.version - (part.pulled - 1)) if part.pulled else 0
