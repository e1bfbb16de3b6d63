"""Rounds: what is refused, what a failure leaves, and parts as plain data."""

from collections.abc import Iterator

import numpy as np
import pytest

from pserver.config import GroupSettings
from pserver.errors import BarrierError, CheckpointError, GroupError, ShapeError
from pserver.server.group import Group
from pserver.server.pushes import Pushes
from pserver.server.servicer import Servicer
from pserver.server.waiting import NotYet
from pserver.spec import DenseSpec
from pserver.table.registry import Registry
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import PushId, Stamp, TableSize, build_push
from pserver.wire.small import group_proto_of, parse_small
from tests.unit.server.messages import create
from tests.unit.trainers import unit_table

UUIDS = [bytes([number]) * 16 for number in range(3)]


@pytest.fixture
def servicer() -> Iterator[Servicer]:
    """One shard with a table of dim 1 and room for 4 rows, and a sync group of two."""
    made = Servicer(shard=0, num_shards=1, queue_max=8)
    create(made, unit_table())
    for trainer_id in range(2):
        join(made._group, trainer_id)
    yield made
    made.close()


def join(
    group: Group,
    trainer_id: int,
    *,
    uuid: bytes = b"",
    trainers: int = 2,
    mode: str = "sync",
    first_round: int = 0,
) -> pb.JoinReply:
    """Let a trainer in."""
    settings = GroupSettings.model_validate(
        {"mode": mode, "trainers": trainers, "trainer_id": trainer_id}
    )
    request = pb.JoinRequest(
        trainer=uuid or UUIDS[trainer_id],
        trainer_id=trainer_id,
        group=group_proto_of(settings),
        first_round=first_round,
    )
    return parse_small(pb.JoinReply, group._on_join(request, settings))


def part(
    trainer_id: int,
    number: int,
    counter: int,
    *,
    value: float = 1.0,
    samples: int = 1,
    messages: int = 1,
    table: str = "t",
) -> bytes:
    """Return one message of a part: a gradient of key 7."""
    message, (block,) = build_push(
        0,
        PushId(UUIDS[trainer_id], counter),
        [TableSize(table, 1, 1, 0)],
        stamp=Stamp(number, samples, messages),
    )
    block.keys[:], block.values[:] = 7, value
    return message


def weight(servicer: Servicer) -> float:
    """Return what key 7 has."""
    out = np.empty(1, np.float32)
    servicer._registry.get("t").peek(np.array([7], np.uint64), out)
    return float(out[0])


def pushes(servicer: Servicer) -> Pushes:
    """Return what answers Push, without a turn or a wait."""
    return servicer.pushes


@pytest.mark.parametrize(
    ("samples", "messages", "error"),
    [
        (2, 2, "says 2 samples in 2 messages, an earlier one 1 in 2"),
        (1, 3, "says 1 samples in 3 messages, an earlier one 1 in 2"),
    ],
)
def test_a_message_that_says_otherwise_is_refused(
    servicer: Servicer, samples: int, messages: int, error: str
) -> None:
    """All messages of a part say the same of it."""
    pushes(servicer).push(part(0, 1, 0, messages=2))

    for _ in range(2):  # a retry is refused as well, and not taken for one that was parked
        with pytest.raises(ShapeError, match=error):
            pushes(servicer).push(part(0, 1, 1, samples=samples, messages=messages))
    assert servicer._group.rounds.export()["parts"][0][:4] == [1, 0, 1, 2]


def test_a_part_is_sent_once(servicer: Servicer) -> None:
    """A message more than the part has is refused; the round is what was whole."""
    pushes(servicer).push(part(0, 1, 0))

    with pytest.raises(ShapeError, match="all 1 messages of its part of round 1 are here"):
        pushes(servicer).push(part(0, 1, 1))
    pushes(servicer).push(part(1, 1, 0, value=3.0))
    assert weight(servicer) == -2.0


def test_a_round_that_is_over_takes_no_part(servicer: Servicer) -> None:
    """A late part of round 1 is refused by name, whatever its push_id."""
    for trainer_id in range(2):
        pushes(servicer).push(part(trainer_id, 1, 0))

    with pytest.raises(GroupError, match=r"trainer 0 .* round 1 is over"):
        pushes(servicer).push(part(0, 1, 1))


def test_a_part_two_rounds_ahead_waits(servicer: Servicer) -> None:
    """Round 2 is parked while round 1 is open; round 3 is not taken yet."""
    pushes(servicer).push(part(0, 2, 0))

    with pytest.raises(NotYet, match=r"round 1 is open, .* not for 3"):
        pushes(servicer).push(part(0, 3, 1))


def test_a_part_of_nobody_is_refused(servicer: Servicer) -> None:
    """Who has not joined, or has left, is in no round."""
    with pytest.raises(GroupError, match="it must join first"):
        pushes(servicer).push(part(2, 1, 0))
    servicer._group._on_leave(UUIDS[0])
    with pytest.raises(GroupError, match="it must join first"):
        pushes(servicer).push(part(0, 1, 0))


def test_a_user_s_rule_that_raises_ends_the_group(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round may be applied in part, and says so; every later call says why."""
    table = servicer._registry.get("t")
    monkeypatch.setattr(type(table), "push", lambda *_: 1 / 0)
    pushes(servicer).push(part(0, 1, 0))

    with pytest.raises(BarrierError, match="perhaps a part of it was: division by zero"):
        pushes(servicer).push(part(1, 1, 0))
    with pytest.raises(BarrierError, match="division by zero"):
        pushes(servicer).check_pull(UUIDS[0], 2)
    assert servicer._group.rounds.parked_bytes == 0


def test_a_limit_that_came_too_late_does_nothing(servicer: Servicer) -> None:
    """The loop saw round 1 wait; it was closed before the command came."""
    for trainer_id in range(2):
        pushes(servicer).push(part(trainer_id, 1, 0))
    pushes(servicer).push(part(0, 2, 1))

    servicer._group.rounds.limit(1, {})

    assert servicer._group.rounds.failure == ""


def test_parts_that_wait_go_out_and_come_back_as_bytes(servicer: Servicer) -> None:
    """In another shard with the same tables the round goes on with them."""
    pushes(servicer).push(part(0, 1, 0, value=5.0))
    other = Servicer(shard=0, num_shards=1, queue_max=8)
    create(other, unit_table())

    other._group.members.load(servicer._group.members.export())
    other._group.rounds.load(servicer._group.rounds.export(), other.pushes.mended)
    pushes(other).push(part(1, 1, 0, value=1.0))

    assert weight(other) == -3.0
    assert other._group.rounds.export()["parts"] == []
    other.close()


def test_a_dense_table_takes_no_keys(servicer: Servicer) -> None:
    """A part that names a dense table with keys is refused before anything is parked."""
    message, (block,) = build_push(0, PushId(UUIDS[0], 0), [TableSize("d", 1, 1, 0, dense_part=1)])
    block.keys[:], block.values[:] = 7, 1.0
    servicer._group._on_leave(UUIDS[0])
    servicer._group._on_leave(UUIDS[1])
    servicer._registry.create_dense(DenseSpec(name="d", length=1), size=1)
    servicer._registry.get_dense("d").init(0, np.zeros(1, np.float32), trainer=UUIDS[0])

    with pytest.raises(ShapeError, match="push 'd': a dense table has no keys"):
        pushes(servicer).push(message)
    with pytest.raises(ShapeError, match="only gradients of dense tables come in a push"):
        pushes(servicer).assign(message)


def test_a_part_is_applied_when_nobody_is_left_for_the_rounds_before_it(
    servicer: Servicer,
) -> None:
    """A part of the next round was acknowledged: it is applied though both trainers leave."""
    servicer._group._on_leave(UUIDS[0])
    join(servicer._group, 0, first_round=2)
    pushes(servicer).push(part(0, 2, 0))

    servicer._group._on_leave(UUIDS[0])
    servicer._group._on_leave(UUIDS[1])

    assert weight(servicer) == -1.0
    assert servicer._group.rounds.parked_bytes == 0


def test_parts_of_a_group_that_is_over_are_in_no_round_of_the_next(servicer: Servicer) -> None:
    """Trainer 0 sends a part and both are lost; others begin with three, from the same weights."""
    pushes(servicer).push(part(0, 1, 0, value=100.0))
    for uuid in UUIDS[:2]:
        servicer._group._on_expire(uuid)

    for trainer_id in range(3):
        join(servicer._group, trainer_id, uuid=bytes([9 + trainer_id]) * 16, trainers=3)

    assert servicer._group.rounds.export()["parts"] == []
    assert servicer._group.rounds.parked_bytes == 0


def test_no_part_from_before_a_load_is_applied_after_it(servicer: Servicer) -> None:
    """Trainer 0 waits in round 1 while a version is loaded: its gradient was of other weights."""
    pushes(servicer).push(part(0, 1, 0, value=100.0))
    servicer._adopt(Registry(), {}, 7)
    for trainer_id in range(2):
        join(servicer._group, trainer_id, uuid=bytes([9 + trainer_id]) * 16)

    assert servicer._group.rounds.export()["parts"] == []


def test_a_process_that_took_another_s_place_has_pushed_nothing(servicer: Servicer) -> None:
    """The one before it died between two shards; a checkpoint waits for no push of it."""
    for trainer_id in range(2):
        servicer._group._on_leave(UUIDS[trainer_id])
    join(servicer._group, 0, mode="async")
    message, (block,) = build_push(0, PushId(UUIDS[0], 0), [TableSize("t", 1, 1, 0)], more=True)
    block.keys[:], block.values[:] = 7, 1.0
    pushes(servicer).push(message)
    servicer._group._on_expire(UUIDS[0])

    join(servicer._group, 0, mode="async", uuid=UUIDS[2])

    assert servicer._align.marks().pushes == {UUIDS[2]: 0}


def test_a_cut_with_a_round_more_than_other_shards_is_refused(servicer: Servicer) -> None:
    """Round 1 waits for trainer 1, which leaves after all shards said that round 1 is open."""
    pushes(servicer).push(part(0, 1, 0))
    said = servicer._align.marks().round
    servicer._align.check_cut(said)

    servicer._group._on_leave(UUIDS[1])

    with pytest.raises(CheckpointError, match=r"round 1 was to be .* round 2 is open"):
        servicer._align.check_cut(said)
