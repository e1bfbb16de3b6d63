"""Who is in a group: commands in, states out, and the same again from plain data."""

import json

import pytest

from pserver.config import GroupSettings
from pserver.errors import GroupError
from pserver.server.members import GONE_MAX, Member, Members, TakenError

OF_TWO = GroupSettings(mode="sync", trainers=2)


def uuid(number: int) -> bytes:
    """Return a process's name."""
    return number.to_bytes(16, "big")


def join(members: Members, trainer_id: int, process: int, **changes: object) -> Member:
    """Let a process in while round 5 is open."""
    settings = OF_TWO.model_copy(update={"trainer_id": trainer_id, **changes})
    return members.join(settings, uuid(process), f"host-{process}", open_round=5, first_round=0)


def test_all_ids_are_expected_when_one_has_come() -> None:
    """A round waits for those that have not come yet too."""
    members = Members()
    join(members, 1, 11)

    assert [member.state for member in members] == ["absent", "live"]
    assert [member.trainer_id for member in members.expected(5)] == [0, 1]
    assert members.num_live == 1


def test_a_trainer_is_expected_from_its_first_round_on() -> None:
    """One that comes when round 5 is open is in no earlier one."""
    members = Members()
    join(members, 0, 10)
    join(members, 1, 11)

    assert members.expected(4) == []
    assert len(members.expected(5)) == 2


def test_a_live_id_is_taken_and_a_silent_one_is_not() -> None:
    """The second process is told who has the id; when the lease is over it replaces the first."""
    members = Members()
    join(members, 0, 10)

    with pytest.raises(TakenError, match=r"host-10.* is live, and host-20 came under") as taken:
        join(members, 0, 20)
    assert taken.value.uuid == uuid(10)
    members.expire(uuid(10))
    member = join(members, 0, 20)

    assert (member.incarnation, member.state, members.of(uuid(20))) == (2, "live", member)
    with pytest.raises(GroupError, match=r"process 1 .* replaced by process 2 on host-20"):
        members.of(uuid(10))


def test_an_unknown_process_is_no_member() -> None:
    """A bare client pushes as ever: it is nobody here, and refused nothing."""
    assert Members().of(uuid(1)) is None


def test_a_trainer_that_was_silent_is_live_again_when_it_is_heard_from() -> None:
    """Only one whose lease is over is taken back, none that left."""
    members = Members()
    join(members, 0, 10)
    join(members, 1, 11)
    members.expire(uuid(10))
    members.leave(uuid(11))

    members.revive(uuid(10))
    members.revive(uuid(11))

    assert [member.state for member in members] == ["live", "left"]


def test_the_group_is_over_when_all_have_gone() -> None:
    """Then another one may agree on something else, and its processes may be the same."""
    members = Members()
    join(members, 0, 10)
    join(members, 1, 11)
    members.leave(uuid(10))
    members.end_if_empty()
    assert members.num_live == 1

    members.leave(uuid(11))
    members.end_if_empty()

    assert members.spec is None
    join(members, 0, 10, mode="async")
    assert not members.is_sync


def test_settings_that_only_sync_reads_may_differ_in_async() -> None:
    """Barriers are nothing to an async group; what it reads must be the same."""
    members = Members()
    join(members, 0, 10, mode="async")
    join(members, 1, 11, mode="async", barrier_timeout=1.0, sync_divisor="samples")

    members.leave(uuid(11))
    with pytest.raises(GroupError, match=r"max_staleness None.*max_staleness 3"):
        join(members, 1, 11, mode="async", max_staleness=3)


def test_another_group_may_begin_when_nobody_is_live() -> None:
    """A job that died without leaving does not block the next one, which may differ."""
    members = Members()
    join(members, 0, 10)
    members.expire(uuid(10))

    join(members, 2, 20, trainers=3)

    assert [member.state for member in members] == ["absent", "absent", "live"]
    with pytest.raises(GroupError, match="another group began"):
        members.of(uuid(10))


def test_a_newcomer_has_the_steps_of_the_slowest() -> None:
    """Else all others would wait until it has caught up."""
    members = Members()
    join(members, 0, 10, mode="async").steps = 7

    assert join(members, 1, 11, mode="async").steps == 7
    members.expire(uuid(10))
    assert members.slowest_step() == 7


def test_processes_that_are_gone_are_forgotten_at_last() -> None:
    """The memory of replaced processes is bounded: the oldest is nobody again."""
    members = Members()
    for process in range(GONE_MAX + 2):
        join(members, 0, process)
        members.expire(uuid(process))

    assert members.of(uuid(0)) is None
    with pytest.raises(GroupError, match="replaced"):
        members.of(uuid(1))


def test_the_state_is_plain_data() -> None:
    """Numbers, text, lists, dicts and bytes: what goes out makes the same group elsewhere."""
    members, other = Members(), Members()
    join(members, 0, 10).staleness.add(3)
    join(members, 1, 11)
    members.expire(uuid(11))
    join(members, 1, 21)

    state = members.export()
    other.load(json.loads(json.dumps(state, default=bytes.hex), object_hook=_with_bytes))

    assert other.export() == state
    assert other.of(uuid(21)) is not None
    with pytest.raises(GroupError, match="replaced"):
        other.of(uuid(11))


def _with_bytes(item: dict[str, object]) -> dict[str, object]:
    """Return what JSON had to write as text, as bytes again."""
    if "uuid" in item:
        item["uuid"] = bytes.fromhex(str(item["uuid"]))
    gone = item.get("gone")
    if isinstance(gone, list):
        item["gone"] = [[bytes.fromhex(uuid_text), why] for uuid_text, why in gone]
    return item
