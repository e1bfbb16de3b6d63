"""What ``pserver.server.quota`` promises: a bad feeder cannot fill a server, and a replay asks no clock."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import pserver
from pserver.config import GroupSettings, ServeSettings
from pserver.server.quota import Lately, Quota, Quotas, quota_of
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.messages import Stamp
from pserver.wire.small import group_proto_of, proto_of
from tests.unit.server import replay
from tests.unit.server.messages import TRAINER, call, create, pull, push, push_bytes, stats
from tests.unit.server.test_replay import prepared

SPEC = TableSpec(name="ads", dim=1, optimizer="sgd:lr=1", initializer="zeros")
TEN = list(range(10))


class Clock:
    """Seconds that pass when told to."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def limited(spec: TableSpec = SPEC, **limits: Any) -> tuple[Servicer, Clock]:
    """Return a shard with a table and quotas, and their clock."""
    servicer, clock = Servicer(shard=0, num_shards=1, queue_max=8), Clock()
    create(servicer, spec)
    servicer.quota = Quota(
        Quotas(**limits), servicer.pushes, 1, note=servicer._recorder.note, now=clock
    )
    return servicer, clock


def rows(servicer: Servicer) -> int:
    """Return the rows of the table."""
    return int(stats(servicer).tables[0].rows)


def send(servicer: Servicer, method: str, keys: list[int], counter: int = 1) -> None:
    """Make rows for some keys by one of the methods that do."""
    if method == "Pull":
        pull(servicer, {"ads": keys})
    else:
        push(servicer, {"ads": (keys, [1.0] * len(keys))}, counter=counter, method=method)


MAKERS = ["Pull", "Push", "Assign", "PushDelta"]


@pytest.mark.parametrize("method", MAKERS)
@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("new_rows_per_call", "11 new rows in one call, at most 10 .*--new-rows-per-call"),
        ("new_rows_per_minute", "11 new rows after 0 in the last minute, at most 10 a minute"),
        ("table_rows_max", "11 new rows would take it from 0 to 11 rows .*--table-rows-max"),
    ],
)
def test_a_call_is_refused_whole_when_it_is_over_a_quota(
    method: str, limit: str, said: str
) -> None:
    """One row too many and none is made; without it all are."""
    servicer, _ = limited(SPEC, **{limit: 10})

    with pytest.raises(pserver.QuotaError, match=said) as caught:
        send(servicer, method, list(range(11)))
    assert f"{method} on table 'ads'" in str(caught.value)
    assert rows(servicer) == 0

    send(servicer, method, [*TEN, *TEN])  # repeats are one row
    assert rows(servicer) == 10
    servicer.close()


def test_what_has_rows_passes_when_the_table_is_at_its_quota() -> None:
    """Trainers go on with the rows that are there, and one more is refused."""
    servicer, _ = limited(table_rows_max=10)
    send(servicer, "Push", TEN)
    send(servicer, "Push", TEN, counter=2)
    pull(servicer, {"ads": [99]}, create=False)

    with pytest.raises(pserver.QuotaError, match="from 10 to 11 rows"):
        send(servicer, "Pull", [99])
    servicer.close()


def test_bytes_are_counted_with_the_index_when_rows_are_made() -> None:
    """The limit in bytes is that of rows, state and their share of the index."""
    servicer, _ = limited()
    table = servicer._registry.get("ads")
    limit = 10 * table.keeping.row_bytes
    servicer, _ = limited(table_bytes_max=limit)
    send(servicer, "Push", TEN)

    with pytest.raises(pserver.QuotaError, match=f"at most {limit} are allowed"):
        send(servicer, "Push", [99], counter=2)
    servicer.close()


@pytest.mark.parametrize(("evict", "falls_out"), [("lru:rows=10", True), ("lru:rows=11", False)])
def test_rows_fall_out_instead_when_the_table_evicts_within_the_quota(
    evict: str, falls_out: bool
) -> None:
    """A table that keeps within the quota by itself is not refused; one that would not is."""
    spec = TableSpec(name="ads", dim=1, optimizer="sgd:lr=1", evict=evict)
    servicer, _ = limited(spec, table_rows_max=10)
    send(servicer, "Push", TEN)

    if falls_out:
        send(servicer, "Push", [50, 51, 52], counter=2)
    else:
        with pytest.raises(pserver.QuotaError, match="from 10 to 13"):
            send(servicer, "Push", [50, 51, 52], counter=2)
    assert rows(servicer) <= 10
    servicer.close()


def test_new_rows_pass_again_when_a_minute_is_over() -> None:
    """At no moment did more than the quota come in the minute before."""
    servicer, clock = limited(new_rows_per_minute=10)
    send(servicer, "Push", TEN[:6])
    clock.now_s += 30
    send(servicer, "Push", TEN[6:], counter=2)

    with pytest.raises(pserver.QuotaError, match=r"after 10 in the last minute.* in 30 s"):
        send(servicer, "Push", [20], counter=3)
    clock.now_s += 30
    with pytest.raises(pserver.QuotaError, match="7 new rows after 4"):
        send(servicer, "Push", list(range(20, 27)), counter=3)
    send(servicer, "Push", list(range(20, 26)), counter=3)
    assert rows(servicer) == 16
    servicer.close()


def test_the_slots_of_a_minute_are_few_when_calls_are_many() -> None:
    """What is remembered of a minute is bounded, and sums up."""
    lately = Lately()
    for tick in range(10_000):
        lately.forget(tick / 100)
        lately.add(tick / 100, 1)

    assert len(lately._slots) <= 61
    assert lately.rows == sum(count for _, count in lately._slots)
    assert 5_900 <= lately.rows <= 6_100


def test_a_repeated_push_is_not_counted_when_it_was_applied() -> None:
    """A retry of what made the last rows is known as one, though rows are gone since."""
    servicer, _ = limited(new_rows_per_minute=10)
    send(servicer, "Push", TEN)
    request = pb.TableRequest(table="ads", request=1)
    call(servicer, "Clear", request.SerializeToString())

    reply = push(servicer, {"ads": (TEN, [1.0] * 10)}, counter=1)

    assert reply.duplicate
    servicer.close()


def test_keys_that_wait_for_admission_are_no_rows_when_they_are_pushed() -> None:
    """Only keys that get a row count."""
    spec = TableSpec(name="ads", dim=1, optimizer="sgd:lr=1", admission="count:n=2")
    servicer, _ = limited(spec, new_rows_per_call=3)
    send(servicer, "Push", TEN)
    send(servicer, "Push", [0, 1, 2], counter=2)

    with pytest.raises(pserver.QuotaError, match="4 new rows in one call"):
        send(servicer, "Push", [4, 5, 6, 7], counter=3)
    assert rows(servicer) == 3
    servicer.close()


def test_a_dense_table_is_refused_when_its_slice_is_over_the_bytes() -> None:
    """Weights and state count, before any memory is taken."""
    servicer, _ = limited(table_bytes_max=8_000)

    for name, length, fits in (("top", 1000, True), ("large", 1001, False)):
        spec = pb.DenseSpec(name=name, length=length, optimizer="adagrad")
        message = pb.CreateDenseRequest(spec=spec).SerializeToString()
        if fits:
            call(servicer, "CreateDense", message)
            call(servicer, "CreateDense", message)
        else:
            with pytest.raises(pserver.QuotaError, match="8008 bytes on each shard, at most 8000"):
                call(servicer, "CreateDense", message)
    servicer.close()


def test_a_refused_call_leaves_no_record_when_there_is_a_journal(tmp_path: Path) -> None:
    """A replay, which asks no quota and no clock, comes to the same state."""

    async def told() -> tuple[object, object]:
        servicer = replay.shard()
        await replay.begin(servicer, tmp_path / "journal")
        spec = pb.CreateTableRequest(spec=proto_of(SPEC)).SerializeToString()
        await servicer.call("CreateTable", spec)
        servicer.quota = quota_of(
            ServeSettings(new_rows_per_call=5), servicer.pushes, servicer._recorder.note
        )
        await servicer.call("Push", bytes(push_bytes({"ads": (TEN[:5], [1.0] * 5)}, counter=1)))
        for counter in (2, 3):
            message = push_bytes({"ads": ([*range(20, 26)], [1.0] * 6)}, counter=counter)
            with pytest.raises(pserver.QuotaError):
                await servicer.call("Push", bytes(message))
        before = await replay.image(servicer, tmp_path / "journal", tmp_path / "copy")
        servicer.close()

        again = replay.shard()
        await replay.begin(again, tmp_path / "copy")
        after = await replay.own(again, lambda: replay.state_of(again))
        again.close()
        return before, after

    before, after = asyncio.run(told())

    assert before == after


def test_a_refused_push_of_a_trainer_is_its_step_and_is_recorded(tmp_path: Path) -> None:
    """Refused twice under one push_id and then the next one: 2 steps, after a replay too."""

    async def told() -> tuple[list[int], object, object]:
        servicer = replay.shard()
        await replay.begin(servicer, tmp_path / "journal")
        spec = pb.CreateTableRequest(spec=proto_of(SPEC)).SerializeToString()
        await servicer.call("CreateTable", spec)
        group = group_proto_of(GroupSettings(mode="async", trainers=1))
        joining = pb.JoinRequest(trainer=TRAINER, group=group, lease_s=10.0)
        await servicer.call("Join", joining.SerializeToString())
        note = servicer._recorder.note
        servicer.quota = quota_of(ServeSettings(new_rows_per_call=5), servicer.pushes, note)
        steps = []
        for counter, keys in ((1, range(6)), (1, range(6)), (2, range(5))):
            message = push_bytes({"ads": ([*keys], [1.0] * len(keys))}, counter=counter)
            with contextlib.suppress(pserver.QuotaError):
                await servicer.call("Push", bytes(message))
            steps += [member.pushes for member in servicer._group.members]
        before = await replay.image(servicer, tmp_path / "journal", tmp_path / "copy")
        servicer.close()

        again = replay.shard()
        await replay.begin(again, tmp_path / "copy")
        after = await replay.own(again, lambda: replay.state_of(again))
        again.close()
        return steps, before, after

    steps, before, after = asyncio.run(told())

    assert steps == [1, 1, 2]
    assert before == after


@pytest.mark.parametrize("admission", ["always", "count:n=2"])
def test_parts_of_a_round_count_together_when_they_wait_for_it(admission: str) -> None:
    """One part fits and two do not: the second is refused, and the round ends without its rows."""

    async def check() -> None:
        servicer = replay.shard()
        sender = await prepared(servicer)
        spec = TableSpec(name="few", dim=1, optimizer="sgd:lr=1", admission=admission)
        await sender.do(("Drop", "few"))
        await sender.do(("CreateTable", spec))
        servicer.quota = Quota(
            Quotas(table_rows_max=10), servicer.pushes, 1, note=servicer._recorder.note
        )
        for who in (0, 1):
            await sender.do(("join", who))

        async def part(who: int, number: int, keys: list[int]) -> None:
            sender.counter += 1
            twice = keys if admission == "always" else [*keys, *keys]  # so they are let in
            message = sender.built(who, "few", twice, 1.0, Stamp(number, 1, 1))
            await servicer.call("Push", message)

        table = servicer._registry.get("few")
        await part(0, 1, list(range(8)))
        with pytest.raises(pserver.QuotaError, match="from 0 to 11 rows"):
            await part(1, 1, [7, 20, 21, 22])
        await part(1, 1, [7, 20])  # one of them is the other part's too
        assert table.num_rows == 9
        await part(0, 2, [30])
        await part(1, 2, list(range(8)))
        assert table.num_rows == 10
        with pytest.raises(pserver.QuotaError, match="from 10 to 11 rows"):
            await part(0, 3, [31])
        servicer.close()

    asyncio.run(check())


def test_rows_fall_out_when_a_full_table_evicts_by_the_server(tmp_path: Path) -> None:
    """With on_full evict a table is made with the limit in its spec; a lower one of its own stays."""

    async def made() -> tuple[list[str], object, object]:
        servicer = replay.shard()
        await replay.begin(servicer, tmp_path / "journal")
        settings = ServeSettings(table_rows_max=2000, on_full="evict")
        servicer.quota = quota_of(settings, servicer.pushes, servicer._recorder.note)
        rules = ["none", "lru:rows=500", "lfu:rows=1e6", "lru:bytes=5e6"]
        specs = [
            TableSpec(name=f"t{i}", dim=1, optimizer="sgd:lr=1", evict=rule)
            for i, rule in enumerate(rules)
        ]
        for spec in (*specs, specs[0]):  # again by the next trainer: the same table
            message = pb.CreateTableRequest(spec=proto_of(spec)).SerializeToString()
            await servicer.call("CreateTable", message)
        for counter in range(1, 6):
            keys = list(range(1000 * counter, 1000 * counter + 1000))
            await servicer.call(
                "Push", bytes(push_bytes({"t0": (keys, [1.0] * 1000)}, counter=counter))
            )
        assert 1000 <= servicer._registry.get("t0").num_rows <= 2000
        kept = [str(servicer._registry.get(spec.name).spec.evict) for spec in specs]
        before = await replay.image(servicer, tmp_path / "journal", tmp_path / "copy")
        servicer.close()
        again = replay.shard()  # without quotas
        await replay.begin(again, tmp_path / "copy")
        after = await replay.own(again, lambda: replay.state_of(again))
        again.close()
        return kept, before, after

    kept, before, after = asyncio.run(made())

    assert kept == [
        "lru:rows=2000",
        "lru:rows=500",
        "lfu:rows=2000,half_life=10000",
        "lru:rows=2000,bytes=5000000",
    ]
    assert before == after
