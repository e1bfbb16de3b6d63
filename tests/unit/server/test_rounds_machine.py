"""Any order of joins, parts, repeats, leaves and ends of leases gives what the oracle says, to the bit."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from pserver.config import GroupSettings
from pserver.errors import GroupError
from pserver.server.members import TakenError
from pserver.server.servicer import Servicer
from pserver.server.waiting import NotYet
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import PushId, Stamp, TableSize, build_push
from pserver.wire.small import group_proto_of, parse_small
from tests.reference_rounds import OraclePart, RoundsOracle
from tests.unit.server.messages import create
from tests.unit.trainers import unit_table

TRAINERS = 3
KEYS = 4
ids = st.integers(0, TRAINERS - 1)
grads = st.floats(-100.0, 100.0, width=32)
blocks = st.dictionaries(st.integers(0, KEYS - 1), grads, max_size=KEYS)


class RoundsMachine(RuleBasedStateMachine):
    """One shard, commanded directly: no threads, no clock."""

    @initialize(divisor=st.sampled_from(["contributors", "registered", "samples"]))
    def begin(self, divisor: str) -> None:
        knobs = {
            "mode": "sync",
            "trainers": TRAINERS,
            "sync_divisor": divisor,
            "on_missing": "drop",
        }
        self.settings = GroupSettings.make(knobs, origins={})
        self.servicer = Servicer(shard=0, num_shards=1, queue_max=8)
        create(self.servicer, unit_table())
        self.group, self.pushes = self.servicer._group, self.servicer.pushes
        self.oracle = RoundsOracle(TRAINERS, divisor)
        self.uuids: dict[int, bytes] = {}
        self.counter = 0
        self.sent: list[bytes] = []  # acknowledged messages
        self.unsent: list[tuple[bytes, int, int, int, OraclePart]] = []  # rest of parts in pieces
        for trainer in range(TRAINERS):
            self.join(trainer, comes_back=False)

    @override
    def teardown(self) -> None:
        if hasattr(self, "servicer"):
            self.servicer.close()

    # --- commands -----------------------------------------------------------------------------

    @rule(trainer=ids, comes_back=st.booleans())
    def join(self, trainer: int, comes_back: bool) -> None:
        """A new process comes, or the one that is there asks again."""
        is_new = not (comes_back and trainer in self.uuids)
        uuid = self._uuid() if is_new else self.uuids[trainer]
        if is_new and self.oracle.began and self.oracle.seats[trainer].state == "live":
            with pytest.raises(TakenError):
                self._join(uuid, trainer)
            return
        if not is_new and self.oracle.seats[trainer].state == "dropped":
            is_new = True  # it was forgotten when it was dropped
        reply = self._join(uuid, trainer)
        self.uuids[trainer] = uuid
        assert reply.open_round == self.oracle.join(trainer, is_new=is_new)

    @rule(
        trainer=ids,
        ahead=st.sampled_from([0, 0, 0, 1, 1, 2, 3]),
        samples=st.integers(0, 3),
        blocks=st.lists(blocks, min_size=1, max_size=2),
        last_first=st.booleans(),
    )
    def push(
        self,
        trainer: int,
        ahead: int,
        samples: int,
        blocks: list[dict[int, float]],
        last_first: bool,
    ) -> None:
        """A trainer sends its part of the open round or a later one, in one or two messages."""
        if trainer not in self.uuids:
            return
        number = self.oracle.open + ahead
        if (number, trainer) in self.oracle.parts:
            return  # its part is there, or under way
        part = OraclePart(samples, len(blocks))
        base, self.counter = self.counter, self.counter + len(blocks)
        for place, block in enumerate(blocks):
            part.messages[base + place] = list(block.items())
        counters = sorted(part.messages, reverse=last_first)
        messages = [(self._message(trainer, number, c, part), trainer, number, c) for c in counters]
        first, *rest = messages
        if self._send(*first, part):
            self.unsent += [(*message, part) for message in rest]

    @rule(order=st.permutations(range(TRAINERS)), data=st.data())
    def push_of_all(self, order: list[int], data: st.DataObject) -> None:
        """All that are there send a part of the open round, in any order."""
        for trainer in order:
            self.push(
                trainer,
                ahead=0,
                samples=data.draw(st.integers(0, 3)),
                blocks=[data.draw(blocks)],
                last_first=False,
            )

    @rule(data=st.data())
    @precondition(lambda self: self.unsent)
    def push_the_rest(self, data: st.DataObject) -> None:
        """The second message of a part comes, whatever has happened since the first."""
        place = data.draw(st.integers(0, len(self.unsent) - 1))
        message, trainer, number, counter, part = self.unsent.pop(place)
        self._send(message, trainer, number, counter, part)

    @rule(data=st.data())
    @precondition(lambda self: self.sent)
    def repeat(self, data: st.DataObject) -> None:
        """A message that was acknowledged comes again: a duplicate, or refused by name."""
        message = data.draw(st.sampled_from(self.sent))
        try:
            reply = parse_small(pb.PushReply, self.pushes.push(message))
        except GroupError:
            return  # its process is no longer of the group
        assert reply.duplicate

    @rule(trainer=ids)
    def leave(self, trainer: int) -> None:
        """A trainer is done."""
        if trainer in self.uuids:
            self.group._on_leave(self.uuids[trainer])
            if self.oracle.began and self.oracle.seats[trainer].state in ("live", "expired"):
                self.oracle.go(trainer, "left")
            self._end()

    @rule(trainer=ids)
    def expire(self, trainer: int) -> None:
        """A lease ends: rounds go on waiting."""
        if trainer in self.uuids:
            self.group._on_expire(self.uuids[trainer])
            if self.oracle.began and self.oracle.seats[trainer].state == "live":
                self.oracle.go(trainer, "expired")

    @rule(trainer=ids)
    def heartbeat(self, trainer: int) -> None:
        """A trainer is heard from again."""
        if self.oracle.began and self.oracle.seats[trainer].state in ("live", "expired"):
            self.group._on_heartbeat(self.uuids[trainer], b"")
            self.oracle.go(trainer, "live")

    @rule()
    def limit(self) -> None:
        """The open round has waited long enough: those that are missing are dropped."""
        waiting = [i for i in range(TRAINERS) if self.oracle.is_whole(i, self.oracle.open)]
        missing = [i for i in self.oracle.waits_for(self.oracle.open) if i not in waiting]
        self.group.rounds.limit(self.oracle.open, {})
        if self.oracle.began and waiting:
            for trainer in missing:
                self.oracle.seats[trainer].state = "dropped"
                self.oracle._forget_unfinished(trainer)
            self.oracle.settle()
            self._end()

    @rule()
    def restore(self) -> None:
        """The state goes out as plain data and comes back into the same shard."""
        members, rounds = self.group.members.export(), self.group.rounds.export()
        self.group.members.load(members)
        self.group.rounds.load(rounds, self.pushes.mended)
        assert self.group.members.export() == members
        assert self.group.rounds.export() == rounds

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def everything_is_as_the_oracle_says(self) -> None:
        if not hasattr(self, "servicer"):
            return
        assert self.group.rounds.applied == self.oracle.applied
        table = self.servicer._registry.get("t")
        weights = np.empty(KEYS, np.float32)
        table.peek(np.arange(KEYS, dtype=np.uint64), weights)
        expected = [self.oracle.weights.get(key, np.float32(0.0)) for key in range(KEYS)]
        assert weights.tobytes() == np.array(expected, np.float32).tobytes()
        assert table.version == self.oracle.version
        states = [member.state for member in self.group.members]
        assert states == ([seat.state for seat in self.oracle.seats] if self.oracle.began else [])
        parked = sum(
            len(message)
            for came in self.group.rounds._coming.values()
            for coming in came.values()
            for _, message in coming.messages.values()
        )
        assert self.group.rounds.parked_bytes == parked

    # --- helpers ------------------------------------------------------------------------------

    def _uuid(self) -> bytes:
        self.counter += 1
        return self.counter.to_bytes(16, "big")

    def _join(self, uuid: bytes, trainer: int) -> pb.JoinReply:
        wanted = self.settings.model_copy(update={"trainer_id": trainer})
        request = pb.JoinRequest(
            trainer=uuid, trainer_id=trainer, group=group_proto_of(wanted), host="here"
        )
        return parse_small(pb.JoinReply, self.group._on_join(request, wanted))

    def _message(self, trainer: int, number: int, counter: int, part: OraclePart) -> bytes:
        entries = part.messages[counter]
        message, (block,) = build_push(
            0,
            PushId(self.uuids[trainer], counter),
            [TableSize("t", len(entries), len(entries), 0)],
            more=counter < max(part.messages),
            stamp=Stamp(number, part.samples, part.size),
        )
        block.keys[:] = [key for key, _ in entries]
        block.values[:] = [grad for _, grad in entries]
        return message

    def _send(
        self, message: bytes, trainer: int, number: int, counter: int, part: OraclePart
    ) -> bool:
        """Send a message, and return whether it had to be acknowledged, and was."""
        oracle = self.oracle
        seat = oracle.seats[trainer]
        is_own = message_uuid(message) == self.uuids[trainer]
        is_member = is_own and oracle.began and seat.state in ("live", "expired")
        if not is_member or number <= oracle.applied or number < seat.first:
            with pytest.raises(GroupError):
                self.pushes.push(message)
            return False
        if number > oracle.open + 1:
            with pytest.raises(NotYet):
                self.pushes.push(message)
            return False
        reply = parse_small(pb.PushReply, self.pushes.push(message))
        assert not reply.duplicate
        self.sent.append(message)
        oracle.take(trainer, number, counter, part)
        return True

    def _end(self) -> None:
        self.oracle.end_if_empty()
        if not self.oracle.began:
            self.unsent = []


def message_uuid(message: bytes) -> bytes:
    """Return who sent a push."""
    return bytes(pb.PushRequest.FromString(message).trainer)


TestRounds = RoundsMachine.TestCase
TestRounds.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_the_machine_is_told_apart_from_a_wrong_sum() -> None:
    """The oracle is no copy: parts 1 and 2 of two trainers are 1.5, by hand."""
    oracle = RoundsOracle(2, "contributors")
    for trainer in (0, 1):
        oracle.join(trainer, is_new=True)
    oracle.take(0, 1, 0, OraclePart(1, 1, {0: [(7, 1.0)]}))
    oracle.take(1, 1, 0, OraclePart(1, 1, {0: [(7, 2.0)]}))

    assert oracle.weights == {7: np.float32(-1.5)}
