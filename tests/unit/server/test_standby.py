"""A standby follows a shard's journal, and takes its place without losing what was acknowledged."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pserver.checkpoint.local import LocalStore
from pserver.deadline import Deadline
from pserver.errors import (
    CheckpointError,
    JournalError,
    RequestError,
    StandbyError,
    StorageError,
    SupersededError,
    UnavailableError,
)
from pserver.journal import writer
from pserver.journal.folder import segments
from pserver.journal.writer import Begun, Journal
from pserver.server import copies, feed
from pserver.server.copies import BASE, Copies
from pserver.server.durable_series import durable_series
from pserver.server.fence import PROMISE_S
from pserver.server.servicer import Servicer
from pserver.server.standby import Standby, stand_by
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small
from tests.unit.server.replay import begin, own, run, shard, state_of
from tests.unit.server.test_recovery import fill, running, without_counters
from tests.unit.server.test_replay import Commands, prepared

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def questions_that_wait_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby that asks gets its answer soon when there is nothing, so that whoever waits for that waits briefly."""
    monkeypatch.setattr("pserver.server.standby._WAIT_S", 0.1)


class Way:
    """The way to a server of this process; cut, it cannot be reached."""

    endpoint = "primary:1"

    def __init__(self, servicer: Servicer) -> None:
        self.servicer, self.is_cut = servicer, False

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        if self.is_cut:
            raise UnavailableError("cut")
        async with asyncio.timeout(deadline.remaining_s):
            return await self.servicer.call(method, message)

    async def close(self) -> None:
        """Nothing was opened."""


async def follower(
    primary: Servicer, folder: Path, store: Path | None = None
) -> tuple[Servicer, Standby, Way]:
    """Return a standby that has begun."""
    servicer, way = shard(store), Way(primary)
    servicer.role.fence.open(folder)
    if (folder / BASE).is_dir():
        servicer.recovery.bases.append(LocalStore(folder / BASE))
    primary.role.feed.copies = Copies(primary.recovery)

    def opened(begun: Begun) -> Journal:
        return Journal(folder, begun=begun, fsync="off")

    standby, _ = await stand_by(
        way,
        opened,
        servicer.recovery,
        servicer.role.fence,
        new_base=None if segments(folder) else folder / BASE,
    )
    servicer.role.standby = standby
    return servicer, standby, way


async def caught_up(primary: Servicer) -> None:
    """Wait until a standby has every record."""
    journal = primary._recorder.journal
    assert journal is not None
    await primary.role.feed.until_taken(journal.position)


async def train(sender: Commands, turns: int) -> None:
    """Send commands of many kinds."""
    for turn in range(turns):
        await sender.do(("Push", turn % 2, "plain", [turn, turn + 1, 7], 0.5, 0.0))
        await sender.do(("Pull", "half", [turn * 3, turn * 3 + 1], True))
        await sender.do(("PushDelta", 1, "few", [turn], 1.0, 0.0))
        await sender.do(("InitDense", 2, 1.0))


async def promoted(servicer: Servicer) -> pb.PromoteReply:
    """Promote a standby."""
    request = pb.PromoteRequest(timeout_s=1.0).SerializeToString()
    return parse_small(pb.PromoteReply, await servicer.call("Promote", request))


@pytest.mark.parametrize("is_dead", [False, True], ids=["answers", "dead"])
def test_standby_becomes_the_shard(tmp_path: Path, is_dead: bool) -> None:
    """Promoted, it is the shard to the bit, the same incarnation, and the other one answers no more."""

    async def check() -> None:
        primary = shard()
        await begin(primary, tmp_path / "one")
        sender = await prepared(primary)
        await train(sender, 3)
        servicer, standby, way = await follower(primary, tmp_path / "two")
        following = asyncio.create_task(standby.run())
        await sender.do(("join", 0))
        await train(sender, 3)
        if is_dead:
            await caught_up(primary)
            way.is_cut = True
            async with standby._asking:  # what was under way is answered
                standby.heard_s -= PROMISE_S  # long ago: its promise is over
        with pytest.raises(StandbyError, match="standby of primary:1"):
            await servicer.call("Describe", b"")
        reply = await promoted(servicer)
        before = await own(primary, lambda: state_of(primary))
        after = await own(servicer, lambda: state_of(servicer))
        following.cancel()

        assert reply.handed_over != is_dead
        assert after == before
        sender.servicer = servicer
        await servicer.call(*sender.sent[-1])  # a retry: known as a duplicate
        assert await own(servicer, lambda: state_of(servicer)) == after
        assert await promoted(servicer) == reply  # once
        if not is_dead:
            with pytest.raises(SupersededError, match="one with term 2 took its place"):
                await primary.call(*sender.sent[-1])
        await train(sender, 1)
        primary.close()
        servicer.close()

    run(check)


def test_replies_wait_for_the_standby_where_that_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With acknowledge standby no write is answered before the standby has it; reads are."""
    monkeypatch.setattr(feed, "TAKEN_S_MAX", 0.05)

    async def check() -> None:
        primary = shard()
        await begin(primary, tmp_path / "one")
        sender = await prepared(primary)
        primary.wait_for_standby()
        message = sender.push(0, "plain", [1], 1.0, 0.0)
        with pytest.raises(StorageError, match=r"no standby has record \d+ yet"):
            await primary.call("Push", message)
        await primary.call("Describe", b"")
        servicer, standby, _ = await follower(primary, tmp_path / "two")
        following = asyncio.create_task(standby.run())
        monkeypatch.setattr(feed, "TAKEN_S_MAX", WAIT_S)
        await caught_up(primary)
        reply = parse_small(pb.PushReply, await primary.call("Push", message))

        assert reply.duplicate  # it was applied the first time
        await train(sender, 2)
        assert primary.role.feed.taken == primary._recorder.covered()["position"]  # type: ignore[index]
        await promoted(servicer)
        await following
        primary.close()
        servicer.close()

    run(check)


@pytest.mark.parametrize("mode", ["full", "delta"])
@pytest.mark.parametrize("place", ["shared", "copied"])
def test_standby_begins_with_a_checkpoint_where_the_journal_does_not_reach_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, mode: str
) -> None:
    """Dropped records are in a version, which it loads: from a shared folder, or copied over the wire."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(copies, "PART_BYTES_MAX", 1000)
    store = tmp_path / "store" if place == "shared" else None
    with running(tmp_path / "one", tmp_path / "store") as primary:
        fill(primary)
        primary.client.checkpoints.save()
        primary.push(0.5)
        if mode == "delta":
            primary.client.checkpoints.save(mode="delta")
            primary.push(0.25)
        assert segments(tmp_path / "one")[0][0] > 1

        async def check() -> list[Any]:
            first, standby, _ = await follower(primary.servicer, tmp_path / "two", store)
            while await standby._follow(wait_s=0.0, timeout_s=WAIT_S, hand_over=False):
                pass
            states = [await own(first, lambda: state_of(first))]
            first.close()
            again, _, _ = await follower(primary.servicer, tmp_path / "two", store)
            await promoted(again)
            states.append(await own(again, lambda: state_of(again)))
            again.close()
            return states

        before = primary.state()
        states = primary.runtime.submit(check()).result()

    assert [without_counters(after) for after in states] == [without_counters(before)] * 2
    assert (tmp_path / "two" / BASE).is_dir() == (place == "copied")


def test_copy_is_refused_when_there_is_no_whole_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a version, with a damaged one, and for other files than a standby's, it says what to do."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 500)
    with running(tmp_path / "one", tmp_path / "store") as primary:
        fill(primary)
        primary.client.checkpoints.save()
        primary.push(0.5)
        folder = next((tmp_path / "store").glob("v*"))
        journal = primary.servicer._recorder.journal
        assert journal is not None
        other = pb.FeedRequest(
            journal=journal.number, copy=True, version=folder.name, file="LATEST"
        )

        async def check() -> None:
            primary.servicer.role.feed.copies = Copies(primary.servicer.recovery)
            with pytest.raises(CheckpointError, match="has no file 'LATEST' for a standby"):
                await primary.servicer.call("Feed", other.SerializeToString())
            damaged = next(folder.glob("rows-*"))
            damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
            with pytest.raises(CheckpointError, match="came damaged"):
                await follower(primary.servicer, tmp_path / "two")
            (folder / "MANIFEST.json").unlink()
            with pytest.raises(CheckpointError, match="save one"):
                await follower(primary.servicer, tmp_path / "two")
            assert not segments(tmp_path / "two")

        primary.runtime.submit(check()).result()


def test_standby_goes_on_after_a_restart_and_refuses_another_history(tmp_path: Path) -> None:
    """Its own journal brings it back to where it was; one that went another way is refused by name."""

    async def check() -> None:
        primary = shard()
        await begin(primary, tmp_path / "one")
        sender = await prepared(primary)
        first, standby, _ = await follower(primary, tmp_path / "two")
        while await standby._follow(wait_s=0.0, timeout_s=WAIT_S, hand_over=False):
            pass
        first.close()
        await train(sender, 2)
        second, standby, _ = await follower(primary, tmp_path / "two")
        await standby._follow(wait_s=0.0, timeout_s=WAIT_S, hand_over=False)
        assert await own(second, lambda: state_of(second)) == state_of(primary)
        await standby._follow(wait_s=0.0, timeout_s=WAIT_S, hand_over=False)  # which acknowledges
        page = {
            s.name: dict(s.read()) for s in durable_series(primary.role, lambda: primary._saves)
        }
        assert page["standby_lag_records"] == {(): 0.0}
        assert page["journal_records_total"] == {(): float(standby.journal.position)}
        assert page["journal_unsynced_records"] == page["journal_records_total"]  # fsync is off

        standby.journal.append(4, b"never sent")
        standby.journal.settle()
        await standby.run()
        assert "the standby has record" in standby.failure
        with pytest.raises(JournalError, match="did not follow to the end"):
            await promoted(second)
        await train(sender, 1)
        standby.failure, standby._checksum, standby._is_leaving = "", 77, False
        await standby.run()
        assert "is not the one that the standby has" in standby.failure
        second.close()
        primary.close()

    run(check)


def test_segments_stay_until_the_standby_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a checkpoint covers goes only as far as the standby came; once it is gone, all of it goes."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 500)

    async def check() -> None:
        primary = shard()
        await begin(primary, tmp_path / "one")
        sender = await prepared(primary)
        servicer, standby, _ = await follower(primary, tmp_path / "two")
        await standby._follow(wait_s=0.0, timeout_s=WAIT_S, hand_over=False)
        await standby._follow(wait_s=0.0, timeout_s=WAIT_S, hand_over=False)
        await train(sender, 4)
        assert primary._recorder.journal is not None
        position = primary._recorder.journal.position
        primary.role.feed.drop_covered(position)
        assert primary._recorder.journal.first <= standby.journal.position + 1
        monkeypatch.setattr(feed, "FOLLOWED_S", 0.0)
        primary.role.feed.drop_covered(position)
        assert primary._recorder.journal.first > standby.journal.position + 1
        await standby.run()
        assert "has dropped the records behind" in standby.failure
        servicer.close()
        primary.close()

    run(check)


def test_what_has_no_standby_says_so(tmp_path: Path) -> None:
    """Promote needs a standby, Feed a journal and one of the same number."""

    async def check() -> None:
        servicer = shard()
        with pytest.raises(RequestError, match="is no standby"):
            await servicer.call("Promote", b"")
        with pytest.raises(RequestError, match="has no journal"):
            await servicer.call("Feed", b"")
        await begin(servicer, tmp_path)
        other = pb.FeedRequest(journal=7).SerializeToString()
        with pytest.raises(JournalError, match="follows another journal"):
            await servicer.call("Feed", other)
        servicer.close()

    run(check)
