"""The methods of membership: what is refused before it becomes a command."""

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from pserver.config import GroupSettings
from pserver.errors import ConfigError, GroupError, RestartedError, ShapeError
from pserver.server.servicer import Servicer
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import group_of, group_proto_of, parse_small
from tests.unit.server.messages import call, stats

WAIT_S = 20.0
UUID = b"0123456789abcdef"


@pytest.fixture
def servicer() -> Iterator[Servicer]:
    """One shard without tables."""
    made = Servicer(shard=0, num_shards=1, queue_max=8)
    yield made
    made._executor.close()


def joining(**changes: object) -> pb.JoinRequest:
    """Return what trainer 0 of 2 sends."""
    request = pb.JoinRequest(
        trainer=UUID,
        group=group_proto_of(GroupSettings(mode="sync", trainers=2)),
        lease_s=10.0,
        host="here:1",
    )
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def test_a_trainer_joins_at_the_open_round(servicer: Servicer) -> None:
    """The reply says which round waits for it, and that it is the first process of its id."""
    reply = parse_small(pb.JoinReply, call(servicer, "Join", joining().SerializeToString()))

    assert (reply.open_round, reply.trainer_incarnation) == (1, 1)
    group = stats(servicer).group
    assert [trainer.state for trainer in group.trainers] == ["live", "absent"]


def test_a_first_round_may_be_put_off(servicer: Servicer) -> None:
    """Where other shards are ahead, the trainer begins there; nobody else is in round 1 to 3."""
    call(servicer, "Join", joining().SerializeToString())
    message = joining(first_round=4).SerializeToString()

    assert parse_small(pb.JoinReply, call(servicer, "Join", message)).open_round == 4
    assert servicer._group.rounds.open == 1  # trainer 1 has not come, and may be in round 1


def test_time_in_which_the_server_stood_is_no_sign_of_life(servicer: Servicer) -> None:
    """A process waits for the id of a silent one, whose lease is made longer meanwhile: it gets it."""

    async def come_back() -> pb.JoinReply:
        await servicer.call("Join", joining(lease_s=0.1).SerializeToString())
        heard = servicer._group._heard[UUID]
        message = joining(trainer=b"another process!").SerializeToString()
        coming = asyncio.ensure_future(servicer.call("Join", message))
        await asyncio.sleep(0)
        heard.at += 0.05  # as when the clock was looked at late
        return parse_small(pb.JoinReply, await coming)

    assert asyncio.run(come_back()).trainer_incarnation == 2


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"trainer": b"short"}, ShapeError, "a trainer is 16 bytes, got 5"),
        ({"trainer_id": 2}, ConfigError, r"trainer_id must be in \[0, 1\] with 2 trainers"),
        ({"lease_s": 0.0}, ConfigError, "lease_s: input should be greater than 0"),
        ({"incarnation": 1}, RestartedError, "shard 0 was restarted"),
    ],
)
def test_a_join_that_cannot_work_is_refused(
    servicer: Servicer, changes: dict[str, object], error: type[Exception], text: str
) -> None:
    """The error says what must hold; there is no group then."""
    with pytest.raises(error, match=text):
        call(servicer, "Join", joining(**changes).SerializeToString())
    assert stats(servicer).group.group.mode == ""


def test_an_unknown_mode_is_refused_with_the_nearest_one(servicer: Servicer) -> None:
    """A client of another release gets a hint."""
    request = joining()
    request.group.mode = "asynk"

    with pytest.raises(ConfigError, match="unknown value 'asynk'; did you mean 'async'"):
        call(servicer, "Join", request.SerializeToString())


def test_a_heartbeat_of_a_stranger_is_refused(servicer: Servicer) -> None:
    """It is told that it is in no group; to leave is fine whoever one is."""
    beat = pb.HeartbeatRequest(trainer=UUID).SerializeToString()

    with pytest.raises(GroupError, match="the sender is in no group"):
        call(servicer, "Heartbeat", beat)
    call(servicer, "Leave", pb.LeaveRequest(trainer=UUID).SerializeToString())


@pytest.mark.parametrize(
    "settings",
    [
        GroupSettings(),
        GroupSettings(mode="geo", trainers=7, trainer_id=6, max_staleness=0),
        GroupSettings(mode="sync", on_missing="drop", barrier_timeout=0.5, max_staleness=9),
    ],
)
def test_settings_come_as_they_were_sent(settings: GroupSettings) -> None:
    """A limit of 0 steps is not the same as none."""
    request = pb.JoinRequest(
        trainer_id=settings.trainer_id, group=group_proto_of(settings), lease_s=settings.lease_s
    )

    assert group_of(request) == settings


def test_trainers_that_come_and_go_are_told(servicer: Servicer) -> None:
    """A join, a leave and a lease that ended are events with the trainer; the last says what to do."""
    leaving = pb.LeaveRequest(trainer=UUID).SerializeToString()

    async def come_and_go() -> None:
        await servicer.call("Join", joining().SerializeToString())
        await servicer.call("Leave", leaving)
        await servicer.call("Join", joining(lease_s=0.01).SerializeToString())
        while len(told) < 4:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.001)

    with capture_logs() as told:
        asyncio.run(asyncio.wait_for(come_and_go(), WAIT_S))

    events = [(one["event"], one["trainer"]) for one in told]
    assert events == [
        ("trainer joined", 0),
        ("trainer left", 0),
        ("trainer joined", 0),
        ("trainer is not heard of; look at its log and its machine", 0),
    ]
