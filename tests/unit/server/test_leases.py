"""What ``pserver.server.leases`` promises: each range with one trainer at a time, each done once."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from pserver.config import GroupSettings
from pserver.errors import GroupError, ShapeError
from pserver.server.leases import RANGES_MAX, Leases
from pserver.server.members import Members
from pserver.server.waiting import NotYet, Progress
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

TRAINERS = 3


def uuid(trainer_id: int, process: int = 1) -> bytes:
    """Return the name of a trainer's process."""
    return bytes([trainer_id, process]) * 8


class Shard:
    """A group of three trainers and its leases, called as the owner thread does."""

    def __init__(self) -> None:
        self.members = Members()
        self.progress = Progress()
        self.leases = Leases(self.members, self.progress, check_incarnation=lambda _: None)
        for trainer_id in range(TRAINERS):
            self.join(trainer_id)

    def join(self, trainer_id: int, process: int = 1) -> None:
        """Let a process be a trainer."""
        settings = GroupSettings(trainer_id=trainer_id, trainers=TRAINERS)
        self.members.join(settings, uuid(trainer_id, process), "host", open_round=1, first_round=0)

    def send(self, who: bytes, **fields: Any) -> pb.LeaseReply:
        """Send a question or a report; ten rows in ranges of three unless told otherwise."""
        request = pb.LeaseRequest(trainer=who, **{"rows": 10, "range_rows": 3, **fields})
        return parse_small(pb.LeaseReply, self.leases.lease(build_small(request)))

    def ask(self, who: bytes, question: int, *, epoch: int = 0) -> int | str:
        """Return the range that a process gets, or why it gets none."""
        reply = self.send(who, epoch=epoch, question=question)
        return reply.range if reply.state == "range" else reply.state

    def report(self, who: bytes, *numbers: int, epoch: int = 0) -> list[int]:
        """Report ranges, and return those that were lost."""
        return list(self.send(who, epoch=epoch, done=numbers).lost)


@pytest.fixture
def shard() -> Shard:
    """Return a shard on which three trainers are."""
    return Shard()


def test_a_question_that_waits_leaves_an_expired_trainer_as_it_was() -> None:
    """What waits is not recorded, so it may change nothing: a replay would not know of it."""
    shard = Shard()
    for question in range(1, 5):
        assert shard.ask(uuid(0), question) == question - 1
    shard.members.expire(uuid(1))
    before = shard.members.export(), shard.leases.export()

    with pytest.raises(NotYet):
        shard.send(uuid(1), question=1, may_wait=True)

    assert (shard.members.export(), shard.leases.export()) == before


def test_ranges_go_to_whoever_asks_until_all_are_done(shard: Shard) -> None:
    """Four ranges of ten rows are handed out in order; then all wait, and then it is over."""
    one, other = uuid(0), uuid(1)

    got = [shard.ask(one, 1), shard.ask(other, 1), shard.ask(one, 2), shard.ask(other, 2)]

    assert got == [0, 1, 2, 3]
    assert shard.ask(one, 3) == "wait"
    assert shard.report(one, 0, 2) == shard.report(other, 1) == []
    assert shard.ask(one, 3) == "wait"
    assert shard.report(other, 3) == []
    assert shard.ask(one, 3) == shard.ask(other, 3) == shard.ask(uuid(2), 1) == "over"


def test_same_question_gets_the_same_range(shard: Shard) -> None:
    """A reply that was lost loses no range; the next question gets another one."""
    assert [shard.ask(uuid(0), number) for number in (1, 1, 2, 2, 3)] == [0, 0, 1, 1, 2]


def test_report_twice_counts_once(shard: Shard) -> None:
    """A repeated report changes nothing."""
    shard.ask(uuid(0), 1)

    replies = [shard.send(uuid(0), done=[0]) for _ in range(2)]

    assert [(r.state, r.num_done, r.num_ranges) for r in replies] == [("noted", 1, 4)] * 2


@pytest.mark.parametrize("end", ["expire", "leave", "drop", "replace"])
def test_range_of_a_trainer_that_goes_goes_back(shard: Shard, end: str) -> None:
    """Whatever became of its holder, a range that was not reported is handed out again."""
    assert [shard.ask(uuid(0), number) for number in (1, 2)] == [0, 1]
    shard.report(uuid(0), 0)
    if end == "drop":
        shard.members.drop(0, "it is slow")
    elif end == "replace":
        shard.members.expire(uuid(0))
        shard.join(0, process=2)
    else:
        getattr(shard.members, end)(uuid(0))

    assert [shard.ask(uuid(1), number) for number in (1, 2, 3)] == [1, 2, 3]


def test_trainer_that_comes_back_late_is_told_what_it_lost(shard: Shard) -> None:
    """Its range was given to another one, which trains on it again: both are told the truth."""
    assert shard.ask(uuid(0), 1) == 0
    shard.members.expire(uuid(0))
    assert shard.ask(uuid(1), 1) == 0

    assert shard.report(uuid(0), 0) == [0]
    assert shard.report(uuid(1), 0) == []
    assert shard.report(uuid(0), 0) == []


def test_range_that_nobody_took_meanwhile_is_still_done(shard: Shard) -> None:
    """A trainer that was not heard from for a while and reports in time has lost nothing."""
    assert [shard.ask(uuid(0), number) for number in (1, 2)] == [0, 1]
    shard.members.expire(uuid(0))
    assert shard.ask(uuid(1), 1) == 0

    assert shard.report(uuid(0), 1) == []
    assert [shard.ask(uuid(1), number) for number in (2, 3)] == [2, 3]


def test_question_waits_where_it_may_and_names_the_others(shard: Shard) -> None:
    """With all ranges held, a question is put off with the names of their trainers."""
    for number in range(1, 5):
        shard.ask(uuid(0), number)
    before = shard.progress.count

    with pytest.raises(NotYet, match=r"epoch 0: 0 of 4 ranges are done; .* with trainer 0") as wait:
        shard.send(uuid(1), question=1, may_wait=True)

    assert wait.value.seen == before
    shard.report(uuid(0), 0)
    assert shard.progress.count > before


def test_next_epoch_begins_when_the_last_is_over(shard: Shard) -> None:
    """Nobody runs ahead; who is late hears that its epoch is over."""
    numbers = [shard.ask(uuid(0), number) for number in range(1, 5)]
    with pytest.raises(GroupError, match=r"trainer 1 .* asks for epoch 1, and epoch 0 is not over"):
        shard.ask(uuid(1), 1, epoch=1)
    shard.report(uuid(0), *map(int, numbers))

    assert shard.ask(uuid(1), 1, epoch=1) == 0
    assert shard.ask(uuid(0), 5, epoch=0) == "over"
    with pytest.raises(GroupError, match="asks for epoch 3, and epoch 1 is not over"):
        shard.ask(uuid(1), 1, epoch=3)


def test_new_group_begins_anew(shard: Shard) -> None:
    """When all have left, the next group's epochs begin with the first."""
    for number in range(1, 5):
        shard.ask(uuid(0), number)
    shard.report(uuid(0), 0, 1, 2, 3)
    assert shard.ask(uuid(0), 1, epoch=1) == 0
    for trainer_id in range(TRAINERS):
        shard.members.leave(uuid(trainer_id))
    shard.members.end_if_empty()
    shard.join(0, process=2)

    assert shard.ask(uuid(0, 2), 1) == 0


@pytest.mark.parametrize(
    ("fields", "kind", "fact"),
    [
        ({"rows": 11}, GroupError, "10 in ranges of 3, and trainer 1 .* with 11 in ranges of 3"),
        ({"range_rows": 4}, GroupError, "give all the same files and batch size"),
        ({"rows": 0}, ShapeError, r"range_rows must be in \[1, rows\], got 3 of 0"),
        ({"range_rows": 0}, ShapeError, "got 0 of 10 rows"),
        ({"rows": RANGES_MAX + 1, "range_rows": 1}, ShapeError, "at most 1048576 ranges"),
        ({"done": [1]}, ShapeError, "range 1 of epoch 0 was never handed out"),
    ],
)
def test_what_cannot_be_is_refused(
    shard: Shard, fields: dict[str, object], kind: type[Exception], fact: str
) -> None:
    """Trainers that disagree on the rows and numbers out of range are errors; nothing changes."""
    assert shard.ask(uuid(0), 1) == 0

    with pytest.raises(kind, match=fact):
        shard.send(uuid(1), question=1, **fields)

    assert shard.ask(uuid(1), 1) == 1


def test_stranger_is_refused(shard: Shard) -> None:
    """Only a trainer of the group gets rows; one that left does not."""
    shard.members.leave(uuid(2))

    for who in (uuid(2), b"x" * 16):
        with pytest.raises(GroupError, match="the sender is in no group of trainers here"):
            shard.ask(who, 1)


class Machine(RuleBasedStateMachine):
    """Trainers that ask, report, die and come back, against a count of what each was given."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard()
        self.process = [1] * TRAINERS
        self.question = [0] * TRAINERS
        self.holds: list[set[int]] = [set() for _ in range(TRAINERS)]
        self.done: Counter[int] = Counter()
        self.epoch = 0

    @initialize()
    def begin(self) -> None:
        """Begin with nothing given."""
        assert self.ask(0) == 0

    def ask(self, trainer_id: int) -> int | str:
        """Let a trainer ask for its next range."""
        self.question[trainer_id] += 1
        who = uuid(trainer_id, self.process[trainer_id])
        got = self.shard.ask(who, self.question[trainer_id], epoch=self.epoch)
        if isinstance(got, int):
            assert got not in self.done
            assert not any(got in held for held in self.holds)
            self.holds[trainer_id].add(got)
        else:
            self.question[trainer_id] -= 1
        return got

    @rule(trainer_id=st.integers(0, TRAINERS - 1))
    def asks(self, trainer_id: int) -> None:
        """A trainer asks."""
        got = self.ask(trainer_id)
        if got == "over":
            assert sorted(self.done) == list(range(4))

    @rule(trainer_id=st.integers(0, TRAINERS - 1), data=st.data())
    def reports(self, trainer_id: int, data: st.DataObject) -> None:
        """A trainer reports a range that it holds."""
        if self.holds[trainer_id]:
            number = data.draw(st.sampled_from(sorted(self.holds[trainer_id])))
            who = uuid(trainer_id, self.process[trainer_id])
            assert self.shard.report(who, number, epoch=self.epoch) == []
            self.holds[trainer_id].discard(number)
            self.done[number] += 1

    @rule(trainer_id=st.integers(0, TRAINERS - 1))
    def dies_and_is_replaced(self, trainer_id: int) -> None:
        """A trainer's process goes, and another one comes under its id."""
        self.shard.members.expire(uuid(trainer_id, self.process[trainer_id]))
        self.process[trainer_id] = self.process[trainer_id] % 250 + 1
        self.shard.join(trainer_id, self.process[trainer_id])
        self.question[trainer_id] = 0
        self.holds[trainer_id] = set()

    @precondition(lambda self: len(self.done) == 4)
    @rule()
    def next_epoch(self) -> None:
        """The next pass begins."""
        self.epoch += 1
        self.done.clear()
        self.question = [0] * TRAINERS

    @invariant()
    def every_range_is_done_at_most_once(self) -> None:
        """No range is done twice in an epoch."""
        assert all(count == 1 for count in self.done.values())

    @override
    def teardown(self) -> None:
        """However it went, the epoch can be finished by whoever is left, each range once."""
        for held in self.holds[1:]:
            held.clear()
        for trainer_id in range(1, TRAINERS):
            self.shard.members.expire(uuid(trainer_id, self.process[trainer_id]))
        while self.ask(0) != "over":
            for number in list(self.holds[0]):
                self.shard.report(uuid(0, self.process[0]), number, epoch=self.epoch)
                self.holds[0].discard(number)
                self.done[number] += 1
        assert self.done == Counter(range(4))


TestMachine = Machine.TestCase
