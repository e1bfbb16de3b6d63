"""The steps of a save on one shard, by messages: repeated, out of order, left alone."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pserver.checkpoint.local import LocalStore
from pserver.errors import CheckpointError, RequestError, RestartedError
from pserver.server import ending
from pserver.server import save as save_room
from pserver.server.save import Save
from pserver.server.servicer import Servicer
from pserver.v1 import pserver_pb2 as pb
from tests.unit.server.messages import create, push, push_bytes
from tests.unit.server.saves import SPEC, step, until_done, until_published


@pytest.fixture
def shard(tmp_path: Path):
    servicer = Servicer(shard=0, num_shards=1, queue_max=16, store=LocalStore(tmp_path))
    create(servicer, SPEC)
    yield servicer
    servicer.close()


def bytes_in(folder: Path) -> int:
    files = (folder / "v00000001").iterdir()
    return sum(path.stat().st_size for path in files if path.name != "MANIFEST.json")


def test_a_step_may_be_repeated_when_its_reply_was_lost(shard: Servicer, tmp_path: Path) -> None:
    """Every step twice makes the version once."""
    push(shard, {"t": ([1, 2], [1.0, 1.0])}, counter=0)

    async def save() -> None:
        begun = await step(shard, "begin", mode="full")
        assert await step(shard, "begin", mode="full") == begun
        for _ in range(2):
            await step(shard, "hold")
        for _ in range(2):
            await step(shard, "cut", epoch=begun.epoch)
        assert (await until_done(shard)).state == "done"
        for _ in range(2):
            for begin in (0, 3):
                data = b"abcdef"[begin : begin + 3]
                await step(shard, "put", name="x.bin", data=data, offset=begin, more=not begin)
        for _ in range(2):
            await step(shard, "commit", trainers='{"a": {"step": 3}}')
        done = await until_published(shard)
        assert (done.version, done.rows, done.bytes) == ("v00000001", 2, bytes_in(tmp_path))
        assert await step(shard, "look", "") == done  # as somebody else asks
        for _ in range(2):
            await step(shard, "end")
        assert await step(shard, "look") == done

    asyncio.run(save())

    assert [path.name for path in tmp_path.glob("v*")] == ["v00000001"]
    assert (tmp_path / "v00000001" / "x.bin").read_bytes() == b"abcdef"
    assert not list(tmp_path.glob("*/part-*"))


def test_a_second_save_is_refused_until_the_client_of_the_first_is_silent(
    shard: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One save at a time; one that was left alone gives way, and its cut with it."""

    async def saves() -> None:
        begun = await step(shard, "begin", mode="full")
        with pytest.raises(CheckpointError, match="v00000001 is being saved now"):
            await step(shard, "begin", "two", mode="full")
        await step(shard, "cut", epoch=begun.epoch)
        await until_done(shard)

        monkeypatch.setattr(ending, "IDLE_S", 0.0)
        begun = await step(shard, "begin", "two", mode="full")

        with pytest.raises(CheckpointError, match="knows no save 'one'"):
            await step(shard, "commit")
        await step(shard, "cut", "two", epoch=begun.epoch)
        assert (await until_done(shard, "two")).state == "done"
        await step(shard, "end", "two")

    asyncio.run(saves())


def test_writes_wait_and_reads_do_not_when_a_save_holds_the_gate(shard: Servicer) -> None:
    """Between hold and cut no push is applied; after the cut it is, and is not in the version."""
    applied = threading.Event()

    async def save() -> None:
        begun = await step(shard, "begin", mode="full")
        await step(shard, "hold")
        message = push_bytes({"t": ([1], [1.0])}, counter=0)
        pushing = asyncio.ensure_future(shard.call("Push", message))
        pushing.add_done_callback(lambda _: applied.set())
        for _ in range(5):  # a read goes all the way to the owner thread and back
            request = pb.InspectRequest(table="t", key=1)
            reply = pb.InspectReply.FromString(
                await shard.call("Inspect", request.SerializeToString())
            )
            assert not reply.has_row
        assert not applied.is_set()

        await step(shard, "cut", epoch=begun.epoch)
        await pushing
        done = await until_done(shard)
        assert (done.state, done.rows) == ("done", 0)
        assert done.longest_pause_s > 0.0
        await step(shard, "end")

    asyncio.run(save())


def test_the_gate_opens_by_itself_when_the_client_that_shut_it_is_gone(
    shard: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push is held back for the limit and no longer, and the late cut is refused."""
    monkeypatch.setattr("pserver.server.gate.HOLD_S_MAX", 0.01)

    async def save() -> None:
        begun = await step(shard, "begin", mode="full")
        await step(shard, "hold")
        await shard.call("Push", push_bytes({"t": ([1], [1.0])}, counter=0))

        with pytest.raises(CheckpointError, match="held back for too long"):
            await step(shard, "cut", epoch=begun.epoch)

    asyncio.run(save())


def test_writes_go_on_when_the_client_that_let_some_through_is_gone(
    shard: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cut is not to have waits for the limit and no longer, and the late cut is refused."""
    monkeypatch.setattr("pserver.server.align.HOLD_S_MAX", 0.01)

    async def save() -> None:
        begun = await step(shard, "begin", mode="full")
        await step(shard, "hold")
        await step(shard, "align", marks=pb.GroupMarks())
        await shard.call("Push", push_bytes({"t": ([1], [1.0])}, counter=0))

        with pytest.raises(CheckpointError, match="held back for too long"):
            await step(shard, "cut", epoch=begun.epoch)

    asyncio.run(asyncio.wait_for(save(), 20.0))


def test_a_cut_is_made_once_when_its_caller_goes_away(
    shard: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is cancelled while the owner thread marks the cut; the step asked again finds it made."""
    marking, may_go_on = threading.Event(), threading.Event()
    mark = Save._mark

    def slow_mark(save: Save, epoch: int) -> None:
        marking.set()
        assert may_go_on.wait(20.0)
        mark(save, epoch)

    monkeypatch.setattr(Save, "_mark", slow_mark)
    push(shard, {"t": ([1], [1.0])}, counter=0)

    async def save() -> None:
        begun = await step(shard, "begin", mode="full")
        await step(shard, "hold")
        call = asyncio.ensure_future(step(shard, "cut", epoch=begun.epoch))
        await asyncio.to_thread(marking.wait, 20.0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        may_go_on.set()

        await step(shard, "cut", epoch=begun.epoch)
        assert (await until_done(shard)).state == "done"
        await step(shard, "end")
        begun = await step(shard, "begin", "two", mode="full")
        await step(shard, "cut", "two", epoch=begun.epoch)
        assert (await until_done(shard, "two")).rows == 1
        await step(shard, "end", "two")

    asyncio.run(save())


def test_a_cut_ends_when_its_caller_went_away_for_good(
    shard: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is cancelled while the cut is marked, and the save ended: the next one finds no cut."""
    marking, may_go_on = threading.Event(), threading.Event()
    mark = Save._mark

    def slow_mark(save: Save, epoch: int) -> None:
        marking.set()
        assert may_go_on.wait(20.0)
        mark(save, epoch)

    monkeypatch.setattr(Save, "_mark", slow_mark)

    async def save() -> None:
        begun = await step(shard, "begin", mode="full")
        call = asyncio.ensure_future(step(shard, "cut", epoch=begun.epoch))
        await asyncio.to_thread(marking.wait, 20.0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        may_go_on.set()
        await step(shard, "end")

        begun = await step(shard, "begin", "two", mode="full")
        await step(shard, "cut", "two", epoch=begun.epoch)
        assert (await until_done(shard, "two")).state == "done"
        await step(shard, "end", "two")

    asyncio.run(save())


@pytest.mark.parametrize(
    ("fields", "kind", "problem"),
    [
        ({"step": "comit"}, RequestError, "did you mean 'commit'"),
        ({"step": "begin", "mode": "ful"}, RequestError, "did you mean 'full'"),
        (
            {"step": "begin", "mode": "full", "incarnation": 7},
            RestartedError,
            "another incarnation",
        ),
        ({"step": "look"}, CheckpointError, "knows no save"),
        ({"step": "commit"}, CheckpointError, "knows no save"),
    ],
)
def test_a_step_is_refused_when_it_makes_no_sense(
    shard: Servicer, fields: dict[str, Any], kind: type[Exception], problem: str
) -> None:
    """Each with what must hold."""
    with pytest.raises(kind, match=problem):
        asyncio.run(step(shard, **fields))


def test_saves_are_refused_when_the_shard_has_no_folder() -> None:
    """The message says which flag gives it one."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=16)
    try:
        with pytest.raises(CheckpointError, match="--checkpoint-dir"):
            asyncio.run(step(servicer, "begin", mode="full"))
    finally:
        servicer.close()


def test_a_repeated_push_is_known_when_the_shard_restored_it(tmp_path: Path) -> None:
    """Windows of push_ids come back with as many shards; another shard forgets them."""
    store = LocalStore(tmp_path)
    servicer = Servicer(shard=0, num_shards=1, queue_max=16, store=store)
    create(servicer, SPEC)
    for counter in (0, 1, 7):
        push(servicer, {"t": ([1], [1.0])}, counter=counter)

    async def save() -> None:
        begun = await step(servicer, "begin", mode="full")
        await step(servicer, "cut", epoch=begun.epoch)
        await step(servicer, "commit")
        await until_published(servicer)

    asyncio.run(save())
    servicer.close()
    restored = Servicer(shard=0, num_shards=1, queue_max=16, store=store)
    try:
        asyncio.run(restored.loads.restore("latest"))

        replies = [
            push(restored, {"t": ([1], [1.0])}, counter=counter) for counter in (0, 1, 5, 7, 8)
        ]
        assert [reply.duplicate for reply in replies] == [True, True, False, True, False]
    finally:
        restored.close()


def test_threads_of_saves_give_way_to_those_that_answer_requests() -> None:
    """Sorting and writing have a lower priority than the server's own, whatever that is."""
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    for pool in (save_room._THREAD, save_room._DISK):
        thread = pool.submit(threading.get_native_id).result()
        assert os.getpriority(os.PRIO_PROCESS, thread) == min(own + 10, 19)
