"""A journal's promise: whatever commands came, a replay ends in the very state that they left."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pserver.errors import BusyError, GroupError, NotFiniteError, PserverError
from pserver.server.methods import METHODS, Effect, Own, kind_name
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.table import shrink
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import PushId, Stamp, TableSize, build_push
from pserver.wire.small import proto_of
from tests.unit.server.messages import pull_bytes
from tests.unit.server.replay import begin, image, own, run, shard, state_of

TRAINERS = [bytes([i + 1]) * 16 for i in range(3)]
ROOM = 700_000  # rows that eviction wants above its limit
SPECS = [
    TableSpec(name="plain", dim=2, optimizer="adam", ttl_days=1, capacity_max=1000),
    TableSpec(name="few", dim=1, evict="lru:rows=12", capacity_max=ROOM),
    TableSpec(name="half", dim=4, row_dtype="bfloat16", capacity_max=1000),
    TableSpec(name="counted", dim=1, admission="count:n=2", capacity_max=1000),
    TableSpec(name="strict", dim=1, optimizer="ftrl", on_nan="fail", capacity_max=1000),
]
NAMES = [spec.name for spec in SPECS]

trainers = st.integers(0, len(TRAINERS) - 1)
names = st.sampled_from(NAMES)
keys = st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True)
values = st.sampled_from([0.5, -1.0, 0.25, 3.0])
bad = st.sampled_from([0.0] * 9 + [np.nan])
commands = st.one_of(
    st.tuples(st.sampled_from(["Push", "Assign", "PushDelta"]), trainers, names, keys, values, bad),
    st.tuples(st.just("again"), st.integers(0, 30)),
    st.tuples(st.just("Pull"), names, keys, st.booleans()),
    st.tuples(st.just("part"), trainers, st.integers(0, 1), names, keys, values),
    st.tuples(st.sampled_from(["InitDense", "PushDense", "PushDenseDelta"]), trainers, values),
    st.tuples(st.just("PullChanged"), trainers, names),
    st.tuples(st.sampled_from(["Clear", "Drop"]), names),
    st.tuples(st.just("CreateTable"), st.sampled_from(SPECS)),
    st.tuples(st.just("Shrink"), st.integers(1, 6), st.booleans()),
    st.tuples(st.sampled_from(["join", "leave", "expire", "heartbeat", "lease"]), trainers),
    st.tuples(st.just("limit")),
    st.tuples(st.just("epoch")),
)
GROUP = pb.GroupSpec(
    mode="sync",
    trainers=2,
    sync_divisor="samples",
    on_missing="drop",
    barrier_timeout=300.0,
    staleness_lr="none",
)


class Commands:
    """Makes requests of commands and sends them; what is refused is a result like any other."""

    def __init__(self, servicer: Servicer) -> None:
        self.servicer = servicer
        self.counter = 0
        self.sent: list[tuple[str, bytes]] = []

    async def send(self, method: str, message: bytes) -> None:
        self.sent.append((method, message))
        try:
            async with asyncio.timeout(0.5):
                await self.servicer.call(method, message)
        except (PserverError, TimeoutError):
            pass

    async def do(self, command: tuple[Any, ...]) -> None:
        verb, *rest = command
        self.counter += 1
        if verb in ("Push", "Assign", "PushDelta"):
            await self.send(verb, self.push(*rest))
        elif verb == "again":
            if self.sent:
                await self.send(*self.sent[rest[0] % len(self.sent)])
        elif verb == "Pull":
            name, wanted, create = rest
            await self.send(verb, pull_bytes({name: wanted}, create=create))
        elif verb == "part":
            await self.part(*rest)
        elif verb in ("expire", "limit", "epoch"):
            await own(self.servicer, lambda: self.by_itself(verb, *rest))
        else:
            method, request = self.small(verb, *rest)
            await self.send(method, request.SerializeToString())

    def push(self, who: int, name: str, wanted: list[int], value: float, nan: float) -> bytes:
        return self.built(who, name, wanted, value + nan, None)

    async def part(self, who: int, ahead: int, name: str, wanted: list[int], value: float) -> None:
        stamp = Stamp(self.servicer._group.rounds.open + ahead, who + 1, 1)
        await self.send("Push", self.built(who, name, wanted, value, stamp))

    def built(
        self, who: int, name: str, wanted: list[int], value: float, stamp: Stamp | None
    ) -> bytes:
        dim = next(spec.dim for spec in SPECS if spec.name == name)
        sizes = [TableSize(name, len(wanted), dim * len(wanted), 0)]
        message, (block,) = build_push(0, PushId(TRAINERS[who], self.counter), sizes, stamp=stamp)
        block.keys[:] = wanted
        block.values[:] = value * np.arange(1, 1 + block.values.size)
        return message

    def by_itself(self, verb: str, *rest: int) -> None:
        group, recorder = self.servicer._group, self.servicer._recorder
        if verb == "expire":
            group._on_expire(TRAINERS[rest[0]])
        elif verb == "limit":
            group._on_limit(group.rounds.open, {0: 1.5})
        else:
            epoch = self.servicer._registry.epoch + 1
            recorder.note(Own.EPOCH, epoch.to_bytes(8, "little"))
            self.servicer._registry.raise_epoch(epoch)

    def small(self, verb: str, *rest: Any) -> tuple[str, Any]:
        if verb in ("InitDense", "PushDense", "PushDenseDelta"):
            who, value = rest
            floats = np.full(3, value, np.float32).tobytes()
            return verb, pb.DenseWrite(
                trainer=TRAINERS[who],
                counter=self.counter,
                table="dense",
                values=floats,
                force=True,
            )
        if verb == "PullChanged":
            return verb, pb.PullChangedRequest(table=rest[1], trainer=TRAINERS[rest[0]])
        if verb in ("Clear", "Drop"):
            return verb, pb.TableRequest(table=rest[0], request=self.counter)
        if verb == "CreateTable":
            return verb, pb.CreateTableRequest(spec=proto_of(rest[0]))
        if verb == "Shrink":
            return verb, pb.ShrinkRequest(
                table="plain", day=rest[0], dry=rest[1], walk=self.counter
            )
        uuid = TRAINERS[rest[0]]
        if verb == "join":
            request = pb.JoinRequest(trainer=uuid, trainer_id=rest[0] % 2, group=GROUP, lease_s=60)
            return "Join", request
        if verb == "lease":
            return "Lease", pb.LeaseRequest(
                trainer=uuid, rows=100, range_rows=10, question=self.counter
            )
        kinds: dict[str, Any] = {"leave": pb.LeaveRequest, "heartbeat": pb.HeartbeatRequest}
        return verb.capitalize(), kinds[verb](trainer=uuid)


async def prepared(servicer: Servicer) -> Commands:
    """Make the tables, and return what sends commands."""
    sender = Commands(servicer)
    for spec in SPECS:
        await sender.do(("CreateTable", spec))
    dense = pb.CreateDenseRequest(spec=pb.DenseSpec(name="dense", length=3, optimizer="adam"))
    await servicer.call("CreateDense", dense.SerializeToString())
    return sender


@settings(max_examples=40, deadline=None)
@given(st.lists(commands, max_size=40))
def test_state_after_a_replay_is_the_state_before(sequence: list[tuple[Any, ...]]) -> None:
    """After any commands, walks under way included, an image of the journal replays to the same state."""

    async def check(folder: Path) -> None:
        first = shard()
        await begin(first, folder / "journal")
        sender = await prepared(first)
        for command in sequence:
            await sender.do(command)
        before = await image(first, folder / "journal", folder / "copy")
        first.close()
        second = shard()
        lines = await begin(second, folder / "copy", walks_go_on=False)
        after = await own(second, lambda: state_of(second))
        second.close()

        assert after == before
        assert "records" in lines[0]

    old, shrink.SLICE_ROWS = shrink.SLICE_ROWS, 3  # so that walks have many slices
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(lambda: check(Path(folder)))
    finally:
        shrink.SLICE_ROWS = old


def test_restarted_shard_goes_on_as_if_nothing_was(tmp_path: Path) -> None:
    """Commands, a kill, a restart and more commands give the bits of the same commands without one."""

    async def check(*, kills: bool) -> dict[str, Any]:
        servicer = shard()
        folder = tmp_path / f"journal-{kills}"
        await begin(servicer, folder)
        sender = await prepared(servicer)
        for turn in range(6):
            for who in (0, 1):
                await sender.do(("Push", who, "plain", [turn, turn + 1, 7], 0.5, 0.0))
                await sender.do(("Pull", "half", [turn * 3, turn * 3 + 1], True))
            if kills:
                copy = tmp_path / f"image-{turn}"
                await image(servicer, folder, copy)
                servicer.close()
                servicer, folder = shard(), copy
                await begin(servicer, folder)
                sender.servicer = servicer
        state = state_of(servicer)
        servicer.close()
        return state

    undisturbed, killed = run(lambda: check(kills=False)), run(lambda: check(kills=True))

    assert killed.pop("incarnation") != undisturbed.pop("incarnation")  # two journals, drawn apart
    assert killed == undisturbed


def samples() -> dict[str, list[Any]]:
    """Return for each method requests that it answers, of which the last one changes what it can."""
    uuid, keys = TRAINERS[0], [1, 2]
    new = TableSpec(name="new", dim=1, capacity_max=10)
    dense = pb.DenseSpec(name="new", length=3, optimizer="adam")
    sender = Commands(None)  # type: ignore[arg-type]  # it only builds here
    values = np.ones(3, np.float32).tobytes()
    write = pb.DenseWrite(
        trainer=uuid, counter=900, table="dense", values=values, force=True
    ).SerializeToString()
    sender.counter = 901
    push = sender.push(0, "plain", keys, 1.0, 0.0)
    group = sender.small("join", 0)[1]
    group.trainer, group.trainer_id = TRAINERS[1], 1
    gone = pb.TableRequest(table="few", request=1)
    return {
        "Describe": [b""],
        "Stats": [b""],
        "CreateTable": [pb.CreateTableRequest(spec=proto_of(new))],
        "Pull": [pull_bytes({"plain": [77]}, create=False), pull_bytes({"plain": [77]})],
        "Push": [push],
        "Assign": [push],
        "PushDelta": [push],
        "CreateDense": [pb.CreateDenseRequest(spec=dense)],
        "InitDense": [write],
        "PushDense": [write],
        "PushDenseDelta": [write],
        "PullDense": [pb.PullDenseRequest(table="dense")],
        "PullChanged": [pb.PullChangedRequest(table="few", trainer=uuid)],
        "Clear": [gone],
        "Drop": [gone],
        "Shrink": [pb.ShrinkRequest(table="plain", day=3, walk=5)],
        "TopKeys": [pb.TopKeysRequest(table="plain", count=3, by="pushes", walk=6)],
        "Join": [group],
        "Heartbeat": [pb.HeartbeatRequest(trainer=uuid)],
        "Leave": [pb.LeaveRequest(trainer=uuid)],
        "Lease": [pb.LeaseRequest(trainer=uuid, rows=9, range_rows=3, question=1)],
        "Inspect": [pb.InspectRequest(table="plain", key=7)],
    }


EXPECTED = {"Pull": ["rows"], "Shrink": ["Shrink", "slice"], "Heartbeat": ["Heartbeat"]}
"""What methods record that say themselves what they change. Save and Load: see ``test_recovery``; Feed and Promote: ``test_standby``."""


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"Save", "Load", "Feed", "Promote"}))
def test_method_leaves_records_as_declared(method: str, tmp_path: Path) -> None:
    """What reads leaves no record and no change; what writes leaves its message; the rest what it did."""

    async def check() -> None:
        servicer = shard()
        await begin(servicer, tmp_path)
        sender = await prepared(servicer)
        await sender.do(("InitDense", 2, 1.0))
        await sender.do(("Assign", 2, "plain", [7], 1.0, 0.0))
        if method in ("Heartbeat", "Leave", "Lease"):
            await sender.do(("join", 0))
            await sender.do(("expire", 0))
        before, position = await own(servicer, lambda: state_of(servicer)), position_of(servicer)
        messages = [m if isinstance(m, bytes) else m.SerializeToString() for m in samples()[method]]
        for message in messages[:-1]:
            await servicer.call(method, message)
        assert await own(servicer, lambda: records_of(servicer, position)) == []
        await servicer.call(method, messages[-1])
        await servicer.call("Describe", b"")  # a walk goes on between two requests
        after = await own(servicer, lambda: state_of(servicer))
        records = await own(servicer, lambda: records_of(servicer, position))
        servicer.close()

        if METHODS[method].effect is Effect.READS:
            assert (records, after) == ([], before)
        elif METHODS[method].effect is Effect.WRITES:
            assert records == [(method, messages[-1])]
            assert after != before
        else:
            assert [kind for kind, _ in records][: len(EXPECTED[method])] == EXPECTED[method]
            assert after != before

    run(check)


def test_refused_requests_leave_a_record_only_if_the_state_refused_them(tmp_path: Path) -> None:
    """What time or a disk refused leaves none; what is refused again in a replay may stay."""

    async def check() -> None:
        servicer = shard()
        await begin(servicer, tmp_path / "journal")
        sender = await prepared(servicer)
        position = position_of(servicer)
        with pytest.raises(NotFiniteError):  # it stops the table
            await servicer.call("Push", sender.push(0, "strict", [1], np.nan, 0.0))
        await sender.do(("join", 0))
        await sender.do(("part", 0, 0, "plain", [1], 1.0))
        late = Stamp(9, 1, 1)
        sender.counter += 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):  # two rounds ahead: it waits, and leaves nothing
                await servicer.call("Push", sender.built(0, "plain", [1], 1.0, late))
        with pytest.raises(GroupError):
            await servicer.call("Push", sender.built(2, "plain", [1], 1.0, late))
        with pytest.raises(BusyError):
            await servicer.call(
                "Drop", pb.TableRequest(table="half", request=1).SerializeToString()
            )

        kinds = [kind for kind, _ in await own(servicer, lambda: records_of(servicer, position))]
        assert kinds == ["Push", "Join", "Push", "Push"]
        servicer.close()

    run(check)


def position_of(servicer: Servicer) -> int:
    """Return the sequence of the last record."""
    assert servicer._recorder.journal is not None
    return servicer._recorder.journal.position


def records_of(servicer: Servicer, after: int) -> list[tuple[str, bytes]]:
    """Return the name and body of the records behind a position."""
    journal = servicer._recorder.journal
    assert journal is not None
    return [(kind_name(record.kind), record.body) for record in journal.read(after=after)]
