"""What ``pserver.server.servicer`` promises, called with bytes: every method, and who is refused."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pserver import errors
from pserver._version import __version__
from pserver.placement import NUM_PARTITIONS, PLACEMENT_VERSION, shard_of
from pserver.server.methods import METHODS, SHORT
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import WIRE_VERSION
from pserver.wire.small import parse_small
from tests.unit.server.messages import call, create, pull, pull_bytes, push, push_bytes, stats

WAIT_S = 20.0
SPEC = TableSpec(name="ads", dim=2, optimizer="sgd:lr=1", initializer="zeros", capacity_max=4)


@pytest.fixture(params=[(), SHORT], ids=["in-thread", "on-loop"])
def servicer(request: pytest.FixtureRequest) -> Iterator[Servicer]:
    """Return a cluster of one shard with a table of two floats, sgd and room for four rows."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=8, on_loop=request.param)
    create(servicer, SPEC)
    yield servicer
    servicer.close()


@pytest.fixture
def second() -> Iterator[Servicer]:
    """Return shard 1 of 3, with a table of two floats."""
    servicer = Servicer(shard=1, num_shards=3, queue_max=8)
    create(servicer, SPEC)
    yield servicer
    servicer.close()


@pytest.mark.parametrize(("shard", "num_shards"), [(-1, 1), (1, 1), (4, 3)])
def test_shard_outside_its_cluster_is_refused(shard: int, num_shards: int) -> None:
    """A shard index must be below the number of shards; the message has both."""
    with pytest.raises(errors.ConfigError, match=rf"\[0, {num_shards - 1}\].*got {shard}"):
        Servicer(shard=shard, num_shards=num_shards, queue_max=8)


def test_describe_says_who_the_shard_is(second: Servicer) -> None:
    """Describe gives versions, place in the cluster, incarnation, state and every table's spec."""
    reply = parse_small(pb.DescribeReply, call(second, "Describe"))

    assert (reply.wire_version, reply.package_version) == (WIRE_VERSION, __version__)
    assert (reply.num_partitions, reply.placement_version) == (NUM_PARTITIONS, PLACEMENT_VERSION)
    assert (reply.shard_index, reply.num_shards, reply.state) == (1, 3, "ready")
    assert reply.incarnation == second.incarnation != 0
    assert [(table.name, table.optimizer) for table in reply.tables] == [("ads", "sgd:lr=1.0")]


def test_incarnations_differ() -> None:
    """Two processes of one shard have different incarnations."""
    servicers = [Servicer(shard=0, num_shards=1, queue_max=1) for _ in range(20)]

    assert len({servicer.incarnation for servicer in servicers}) == 20
    for servicer in servicers:
        servicer.close()


def test_table_is_made_once(servicer: Servicer) -> None:
    """The same spec again is fine and changes nothing; another one is refused."""
    push(servicer, {"ads": ([1], [1, 1])}, counter=0)

    assert create(servicer, SPEC).optimizer == "sgd:lr=1.0"
    with pytest.raises(errors.SpecMismatchError, match="dim: 2 against 3"):
        create(servicer, TableSpec(name="ads", dim=3))

    assert stats(servicer).tables[0].rows == 1


def test_pull_creates_rows_and_peek_does_not(servicer: Servicer) -> None:
    """A pull makes rows and a peek none; both answer weights and version, table by table."""
    push(servicer, {"ads": ([1], [1, 2])}, counter=0)

    (peeked,) = pull(servicer, {"ads": [1, 2]}, create=False)
    assert (peeked.version, peeked.weights.tolist()) == (1, [-1, -2, 0, 0])
    assert stats(servicer).tables[0].rows == 1

    (pulled,) = pull(servicer, {"ads": [2, 1, 2]})
    assert pulled.weights.tolist() == [0, 0, -1, -2, 0, 0]
    assert stats(servicer).tables[0].rows == 2


def test_foreign_key_is_refused(second: Servicer) -> None:
    """A key of another shard is a ClusterError with key and shard; nothing is applied or made."""
    keys = np.arange(100, dtype=np.uint64)
    mine = keys[shard_of(keys, 3) == 1][:2].tolist()
    foreign = keys[shard_of(keys, 3) == 2][0].item()

    for request in (
        lambda: push(second, {"ads": ([mine[0], foreign], [1, 1, 1, 1])}, counter=0),
        lambda: push(second, {"ads": ([foreign], [1, 1])}, counter=0, method="Assign"),
        lambda: pull(second, {"ads": [mine[0], foreign]}),
        lambda: pull(second, {"ads": [foreign]}, create=False),
    ):
        with pytest.raises(errors.ClusterError) as caught:
            request()
        assert f"key {foreign} does not belong to shard 1 of 3" in str(caught.value)
    assert stats(second).tables[0].rows == 0
    assert not push(second, {"ads": (mine, [1, 1, 1, 1])}, counter=0).duplicate


def requests(incarnation: int) -> dict[str, bytes]:
    """Return one request of each method that is meant for one incarnation."""
    return {
        "CreateTable": pb.CreateTableRequest(incarnation=incarnation).SerializeToString(),
        "Pull": pull_bytes({"ads": [1]}, incarnation=incarnation),
        "Push": push_bytes({"ads": ([1], [1, 1])}, counter=0, incarnation=incarnation),
        "Assign": push_bytes({"ads": ([1], [1, 1])}, counter=1, incarnation=incarnation),
        "Inspect": pb.InspectRequest(incarnation=incarnation, table="ads").SerializeToString(),
    }


@pytest.mark.parametrize("method", requests(0))
def test_request_for_another_incarnation_is_refused(servicer: Servicer, method: str) -> None:
    """What was meant for the process before a restart is a RestartedError, and changes nothing."""
    with pytest.raises(errors.RestartedError, match="shard 0 was restarted"):
        call(servicer, method, requests(servicer.incarnation ^ 2)[method])

    assert stats(servicer).tables[0].rows == 0


@pytest.mark.parametrize("method", ["Pull", "Push", "Assign", "Inspect"])
def test_request_for_this_incarnation_is_answered(servicer: Servicer, method: str) -> None:
    """The right incarnation, and 0 for any, are accepted."""
    call(servicer, method, requests(servicer.incarnation)[method])
    call(servicer, method, requests(0)[method])


@pytest.mark.parametrize("method", ["CreateTable", "Pull", "Push", "Assign", "Inspect"])
def test_bytes_that_are_no_request_are_refused(servicer: Servicer, method: str) -> None:
    """Garbage and cut requests are ShapeErrors, and the shard goes on."""
    whole = requests(0)[method] or b"\x12\x04\x0a\x02ab"

    for message in (b"\xff" * 40, whole[:-1]):
        with pytest.raises(errors.ShapeError):
            call(servicer, method, message)
    assert pull(servicer, {"ads": [1]})


def test_unknown_table_is_named(servicer: Servicer) -> None:
    """A table that the shard does not have is refused with the nearest name."""
    with pytest.raises(errors.UnknownTableError, match="no table 'adds'; did you mean 'ads'"):
        pull(servicer, {"ads": [1], "adds": [1]})
    with pytest.raises(errors.UnknownTableError, match="no table 'x'"):
        push(servicer, {"x": ([1], [1])}, counter=0)

    assert stats(servicer).tables[0].rows == 0


def test_pull_is_refused_when_its_reply_would_be_too_large(servicer: Servicer) -> None:
    """A small request for more bytes than a message may have is refused before any work."""
    create(servicer, TableSpec(name="wide", dim=4096))

    with pytest.raises(errors.ShapeError, match="pull: 8192000 bytes of weights were asked for"):
        pull(servicer, {"wide": [0] * 500})

    assert stats(servicer).tables[1].rows == 0


def test_b9_stats_are_answered_while_the_owner_thread_is_busy(servicer: Servicer) -> None:
    """Stats do not wait for the owner thread, and tell what waits for it (B9)."""
    began, free = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert free.wait(WAIT_S)

    async def main() -> None:
        held = asyncio.create_task(servicer._executor.run(hold))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        waiting = asyncio.create_task(servicer.call("Pull", pull_bytes({"ads": [1]})))
        await asyncio.sleep(0)

        reply = parse_small(pb.StatsReply, await servicer.call("Stats", b""))

        assert reply.queued == 1
        free.set()
        await asyncio.gather(held, waiting)

    asyncio.run(main())


def test_draining_shard_takes_no_requests(servicer: Servicer) -> None:
    """A draining shard refuses work as unavailable, but still says who and how it is."""
    servicer.is_draining = True

    for method, message in requests(0).items():
        with pytest.raises(errors.UnavailableError, match="shard 0 is draining"):
            call(servicer, method, message)
    assert parse_small(pb.DescribeReply, call(servicer, "Describe")).state == "draining"
    assert stats(servicer).server.state == "draining"


def test_overload_is_told_when_the_queue_is_full() -> None:
    """A request over ``queue_max`` is refused as overloaded, and counted with that code."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=1)
    began, free = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert free.wait(WAIT_S)

    async def main() -> None:
        held = asyncio.create_task(servicer._executor.run(hold))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        waiting = asyncio.create_task(servicer.call("Describe", b""))
        await asyncio.sleep(0)
        with pytest.raises(errors.OverloadedError):
            await servicer.call("Describe", b"")
        free.set()
        await asyncio.gather(held, waiting)

    asyncio.run(main())
    assert count(servicer, "Describe", "RESOURCE_EXHAUSTED") == 1
    assert count(servicer, "Describe", "OK") == 1
    servicer.close()


def count(servicer: Servicer, method: str, code: str) -> float:
    """Return how many calls of a method ended with a code, as the metrics page says."""
    labels = {"method": method, "code": code}
    value = servicer.metrics.registry.get_sample_value("pserver_request_seconds_count", labels)
    return value or 0.0


FAILURES: dict[str, tuple[Callable[[Servicer], object], str, str]] = {
    "unknown": (lambda s: pull(s, {"x": [1]}), "Pull", "NOT_FOUND"),
    "full": (lambda s: pull(s, {"ads": range(5)}), "Pull", "FAILED_PRECONDITION"),
    "garbage": (lambda s: call(s, "Push", b"\xff"), "Push", "INVALID_ARGUMENT"),
    "spec": (lambda s: create(s, TableSpec(name="ads", dim=9)), "CreateTable", "ALREADY_EXISTS"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_calls_are_counted_by_their_code(servicer: Servicer, failure: str) -> None:
    """A call that fails is counted once under its gRPC code, and as an error in Stats."""
    request, method, code = FAILURES[failure]
    before = count(servicer, method, code)

    with pytest.raises(errors.PserverError):
        request(servicer)

    assert count(servicer, method, code) == before + 1
    methods = {entry.method: entry for entry in stats(servicer).methods}
    assert methods[method].errors == 1


def test_cancelled_call_is_not_counted_as_fine(servicer: Servicer) -> None:
    """A call whose caller went away is counted as cancelled, and not applied."""
    began, free = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert free.wait(WAIT_S)

    async def main() -> None:
        held = asyncio.create_task(servicer._executor.run(hold))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        message = push_bytes({"ads": ([1], [1, 1])}, counter=0)
        gone = asyncio.create_task(servicer.call("Push", message))
        await asyncio.sleep(0)
        gone.cancel()
        free.set()
        await asyncio.gather(held, gone, return_exceptions=True)

    asyncio.run(main())

    assert count(servicer, "Push", "CANCELLED") == 1
    assert count(servicer, "Push", "OK") == 0
    assert stats(servicer).pushes_applied == 0


def test_every_method_of_the_schema_is_served() -> None:
    """The methods that are served are those of the .proto, in its order."""
    service = pb.DESCRIPTOR.services_by_name["PServer"]

    assert tuple(method.name for method in service.methods) == tuple(METHODS)
