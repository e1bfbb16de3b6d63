"""A server that may have been replaced takes nothing; what it knows of that outlives it."""

import asyncio
import math
from pathlib import Path

import pytest

from pserver.errors import JournalError, RequestError, SupersededError, UnavailableError
from pserver.journal.place import read_place
from pserver.server.fence import PROMISE_S
from pserver.server.servicer import Servicer
from pserver.server.standby import Standby
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small
from tests.unit.server.replay import begin, own, run, shard, state_of
from tests.unit.server.test_replay import Commands, prepared
from tests.unit.server.test_standby import WAIT_S, follower, promoted


async def primary_in(folder: Path) -> tuple[Servicer, Commands]:
    """Return a shard with tables, whose fence is kept in its journal's folder."""
    primary = shard()
    primary.role.fence.open(folder)
    await begin(primary, folder)
    return primary, await prepared(primary)


async def ask(standby: Standby) -> None:
    """Ask for records once, without waiting for new ones."""
    await standby._follow(wait_s=0.0, timeout_s=WAIT_S, hand_over=False)


def let_promise_end(servicer: Servicer) -> None:
    """Let the promise of its standby be over, as if time had gone by."""
    servicer.role.fence._until_s = -math.inf


def push(sender: Commands, key: int) -> bytes:
    """Return the message of a push."""
    return sender.push(0, "plain", [key], 1.0, 0.0)


def test_server_takes_nothing_while_its_standby_is_silent(tmp_path: Path) -> None:
    """Cut off it refuses reads and writes and says what to do; the next questions let it go on."""

    async def check() -> None:
        primary, sender = await primary_in(tmp_path / "one")
        servicer, standby, _ = await follower(primary, tmp_path / "two")
        await ask(standby)
        assert primary.role.state == "ready"
        await primary.call("Push", push(sender, 1))
        let_promise_end(primary)
        before = await own(primary, lambda: state_of(primary))

        for method, message in (("Push", push(sender, 2)), ("Describe", b"")):
            with pytest.raises(UnavailableError, match="does not hear of its standby"):
                await primary.call(method, message)
        assert primary.role.state == "cut off"
        assert await own(primary, lambda: state_of(primary)) == before
        await ask(standby)
        await ask(standby)
        await primary.call("Push", push(sender, 3))
        servicer.close()
        primary.close()

    run(check)


def test_old_question_renews_nothing(tmp_path: Path) -> None:
    """A question that lay in a socket while the process stood still is no promise of now."""

    async def check() -> None:
        primary, _ = await primary_in(tmp_path / "one")
        servicer, standby, way = await follower(primary, tmp_path / "two")
        asked: list[bytes] = []
        straight = way.call

        async def noted(method: str, message: bytes, *, deadline: object) -> bytes:
            asked.append(message)
            return await straight(method, message, deadline=deadline)  # type: ignore[arg-type]

        way.call = noted  # type: ignore[method-assign]
        for _ in range(3):
            await ask(standby)
        let_promise_end(primary)
        for message in asked:
            await primary.call("Feed", message)
        assert primary.role.fence.is_cut_off
        servicer.close()
        primary.close()

    run(check)


def test_change_is_not_acknowledged_when_the_promise_ends_before_the_reply(tmp_path: Path) -> None:
    """It is applied and refused; sent again with a promise it is known, so it counts once."""

    async def check() -> None:
        primary, sender = await primary_in(tmp_path / "one")
        servicer, standby, _ = await follower(primary, tmp_path / "two")
        await ask(standby)

        async def over(_: int) -> None:
            let_promise_end(primary)

        primary._recorder.until_taken = over
        message = push(sender, 1)
        with pytest.raises(UnavailableError, match="does not hear of its standby"):
            await primary.call("Push", message)
        primary._recorder.until_taken = None
        await ask(standby)
        await ask(standby)
        reply = parse_small(pb.PushReply, await primary.call("Push", message))
        assert reply.duplicate
        servicer.close()
        primary.close()

    run(check)


def test_server_waits_for_its_standby_after_a_restart(tmp_path: Path) -> None:
    """It may have been replaced while it was down, so it asks for a promise before it takes anything."""

    async def check() -> None:
        first, _ = await primary_in(tmp_path / "one")
        servicer, standby, way = await follower(first, tmp_path / "two")
        await ask(standby)
        first.close()
        again = shard()
        again.role.fence.open(tmp_path / "one")
        await begin(again, tmp_path / "one")
        with pytest.raises(UnavailableError, match="does not hear of its standby"):
            await again.call("Describe", b"")
        way.servicer = again
        await ask(standby)
        await ask(standby)
        await again.call("Describe", b"")
        servicer.close()
        again.close()

    run(check)


def test_replaced_server_takes_nothing_whatever_it_missed(tmp_path: Path) -> None:
    """Its standby was promoted unseen: it is refused before it hears of that, and after, and restarted."""

    async def check() -> None:
        primary, sender = await primary_in(tmp_path / "one")
        servicer, standby, way = await follower(primary, tmp_path / "two")
        await ask(standby)
        way.is_cut = True
        standby.heard_s -= PROMISE_S  # long ago for the standby, and for its server too
        let_promise_end(primary)
        assert (await promoted(servicer)).term == 2
        assert read_place(tmp_path / "two").role == "promoted"
        with pytest.raises(UnavailableError, match="does not hear of its standby"):
            await primary.call("Push", push(sender, 1))
        with pytest.raises(SupersededError, match="has term 1, and the client met one with term 2"):
            primary.role.fence.meet((("pserver-term", "2"),))
        primary.role.fence.meet((("pserver-term", "1"), ("other", "9")))

        way.is_cut = False
        async with asyncio.timeout(WAIT_S):
            await standby.run()  # which tells it, and ends
        with pytest.raises(SupersededError, match="one with term 2 took its place"):
            await primary.call("Push", push(sender, 1))
        assert primary.role.state == "handed over"
        primary.close()
        again = shard()
        again.role.fence.open(tmp_path / "one")
        await begin(again, tmp_path / "one")
        with pytest.raises(SupersededError, match="one with term 2 took its place"):
            await again.call("Push", push(sender, 1))
        again.close()
        servicer.close()

    run(check)


def test_server_goes_on_alone_when_it_is_promoted_itself(tmp_path: Path) -> None:
    """With a later term, if its standby is silent; while that one asks, and without one, it is refused."""

    async def check() -> None:
        primary, sender = await primary_in(tmp_path / "one")
        servicer, standby, _ = await follower(primary, tmp_path / "two")
        await ask(standby)
        with pytest.raises(RequestError, match="the one that follows it is there"):
            await promoted(primary)
        let_promise_end(primary)
        reply = await promoted(primary)
        assert reply.is_alone
        assert reply.term == primary.role.fence.place.term == 3  # later than its standby's would be
        await primary.call("Push", push(sender, 1))
        await ask(standby)  # it was no more than silent: it follows again, and knows the term
        assert servicer.role.fence.place.term == 3
        servicer.close()
        primary.close()

    run(check)


def test_standby_that_never_heard_is_not_promoted(tmp_path: Path) -> None:
    """It has nothing of its server."""

    async def check() -> None:
        primary, _ = await primary_in(tmp_path / "one")
        servicer, _, way = await follower(primary, tmp_path / "two")
        way.is_cut = True
        with pytest.raises(JournalError, match="did not hear from primary:1 since it was started"):
            await promoted(servicer)
        servicer.close()
        primary.close()

    run(check)


def test_second_standby_is_refused_while_the_first_may_be_promoted(tmp_path: Path) -> None:
    """Silent or not, also after a restart; and a term that is no later one takes no place."""

    async def check() -> None:
        primary, _ = await primary_in(tmp_path / "one")
        first, standby, _ = await follower(primary, tmp_path / "two")
        await ask(standby)
        second, other, _ = await follower(primary, tmp_path / "three")
        with pytest.raises(UnavailableError, match="has another standby"):
            await ask(other)
        let_promise_end(primary)
        with pytest.raises(UnavailableError, match="has another standby"):
            await ask(other)
        with pytest.raises(SupersededError, match="another standby follows this server"):
            await promoted(second)  # although it may ask the server to hand over
        stale = pb.FeedRequest(journal=standby.journal.number, hand_over=True, term=1)
        with pytest.raises(UnavailableError, match="knows of term 0 only"):
            await primary.call("Feed", stale.SerializeToString())
        for servicer in (first, second, primary):
            servicer.close()

        again = shard()
        again.role.fence.open(tmp_path / "one")
        await begin(again, tmp_path / "one")
        second, other, _ = await follower(again, tmp_path / "three")
        with pytest.raises(UnavailableError, match="has another standby"):
            await ask(other)
        second.close()
        again.close()

    run(check)


def test_standby_that_was_said_to_be_gone_takes_no_place(tmp_path: Path) -> None:
    """Its server went on alone, with another standby: it is not promoted, or stops once it hears of that."""

    async def check() -> None:
        primary, sender = await primary_in(tmp_path / "one")
        servicer, standby, way = await follower(primary, tmp_path / "two")
        await ask(standby)
        let_promise_end(primary)
        assert (await promoted(primary)).term == 3
        second, other, _ = await follower(primary, tmp_path / "three")
        await ask(other)
        await primary.call("Push", push(sender, 1))
        with pytest.raises(SupersededError, match="this server has term 3"):
            await promoted(servicer)
        assert servicer.role.state == "standby"

        way.is_cut = True
        standby.heard_s -= PROMISE_S
        assert (await promoted(servicer)).term == 2  # as nobody there can know better
        with pytest.raises(SupersededError, match="the client met one with term 3"):
            servicer.role.fence.meet((("pserver-term", "3"),))
        way.is_cut = False
        async with asyncio.timeout(WAIT_S):
            await standby.run()  # which tells its server, and ends
        with pytest.raises(SupersededError, match="has term 2, and one with term 3 took its place"):
            await servicer.call("Push", push(sender, 2))
        await primary.call("Push", push(sender, 2))
        for each in (servicer, second, primary):
            each.close()

    run(check)


def test_standby_that_fails_lets_its_server_go_on(tmp_path: Path) -> None:
    """It is not promoted before it heard from it again, and another one may follow."""

    async def check() -> None:
        primary, sender = await primary_in(tmp_path / "one")
        servicer, standby, _ = await follower(primary, tmp_path / "two")
        await ask(standby)
        standby._checksum ^= 1  # as if its last record were another one
        async with asyncio.timeout(WAIT_S):
            await standby.run()
        assert servicer.role.state == "failed"
        assert read_place(tmp_path / "two").has_left
        let_promise_end(primary)
        await primary.call("Push", push(sender, 1))
        second, other, _ = await follower(primary, tmp_path / "three")
        await ask(other)
        assert primary.role.fence.place.followed_by == read_place(tmp_path / "three").name
        for each in (servicer, second, primary):
            each.close()

    run(check)


def test_server_goes_on_without_a_standby_that_said_that_it_ends(tmp_path: Path) -> None:
    """It needs no promise of that one, which is not promoted before it heard from the server again."""

    async def check() -> None:
        primary, sender = await primary_in(tmp_path / "one")
        first, standby, _ = await follower(primary, tmp_path / "two")
        await ask(standby)
        await standby.leave()
        first.close()
        assert not read_place(tmp_path / "one").is_followed
        let_promise_end(primary)
        await primary.call("Push", push(sender, 1))

        again, standby, way = await follower(primary, tmp_path / "two")
        way.is_cut = True
        with pytest.raises(JournalError, match="that one may have gone on without it"):
            await promoted(again)
        way.is_cut = False
        await ask(standby)
        assert read_place(tmp_path / "one").is_followed
        standby.heard_s -= PROMISE_S
        way.is_cut = True
        assert not (await promoted(again)).handed_over
        again.close()
        primary.close()

    run(check)


def test_leave_of_another_standby_changes_nothing(tmp_path: Path) -> None:
    """The one that follows may still be promoted."""

    async def check() -> None:
        primary, _ = await primary_in(tmp_path / "one")
        servicer, standby, _ = await follower(primary, tmp_path / "two")
        await ask(standby)
        other = pb.FeedRequest(journal=standby.journal.number, standby=7, leave=True)
        other.only_promise = True
        await primary.call("Feed", other.SerializeToString())
        assert primary.role.fence.place.is_followed
        servicer.close()
        primary.close()

    run(check)
