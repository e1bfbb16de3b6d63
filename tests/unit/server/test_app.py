"""What ``pserver.server.app`` promises: a port that is ours alone, errors by name, and a drain."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pserver import errors
from pserver.client.channel import GrpcChannel
from pserver.config import MESSAGE_BYTES_MAX
from pserver.deadline import Deadline
from pserver.server.app import Listening, drain, listen
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.transport import SERVICE
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small, proto_of
from tests.unit.server.messages import pull_bytes, push_bytes

pytestmark = pytest.mark.integration
WAIT_S = 20.0


@dataclass
class Running:
    """A shard behind a real port, and a channel to it."""

    servicer: Servicer
    listening: Listening
    channel: GrpcChannel

    async def call(self, method: str, message: bytes = b"", timeout_s: float = WAIT_S) -> bytes:
        """Return the reply to one request."""
        return await self.channel.call(method, message, deadline=Deadline.after(timeout_s))

    async def hold(self, free: threading.Event) -> "asyncio.Task[bool]":
        """Keep the owner thread busy until an event is set."""
        began = threading.Event()

        def work() -> bool:
            began.set()
            return free.wait(WAIT_S)

        task = asyncio.create_task(self.servicer._executor.run(work))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        return task


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    """Serve a shard with a table ``ads`` on a free port."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=8)
    listening = await listen(servicer, bind="127.0.0.1:0")
    channel = GrpcChannel(f"127.0.0.1:{listening.port}")
    run = Running(servicer, listening, channel)
    spec = TableSpec(name="ads", dim=1, optimizer="sgd:lr=1", initializer="zeros")
    await run.call("CreateTable", pb.CreateTableRequest(spec=proto_of(spec)).SerializeToString())
    try:
        yield run
    finally:
        await channel.close()
        await listening.server.stop(None)
        servicer.close()


def test_port_is_taken_by_one_server_only() -> None:
    """A second server on the port is a ConfigError that names it, and the first goes on (B8)."""

    async def main() -> None:
        async with running() as run:
            bind = f"127.0.0.1:{run.listening.port}"
            other = Servicer(shard=0, num_shards=1, queue_max=8)
            with pytest.raises(errors.ConfigError) as caught:
                await listen(other, bind=bind)
            other.close()

            assert f"--bind {bind}: cannot listen there: the port is taken" in str(caught.value)
            assert await run.call("Describe")

    asyncio.run(main())


def test_port_is_refused_when_another_program_has_it() -> None:
    """A port on which some other program listens is refused by name."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        bind = f"127.0.0.1:{other.getsockname()[1]}"
        servicer = Servicer(shard=0, num_shards=1, queue_max=8)

        with pytest.raises(errors.ConfigError, match=f"--bind {bind}: cannot listen"):
            asyncio.run(listen(servicer, bind=bind))
        servicer.close()


@pytest.mark.parametrize("bind", ["6170", "host:", ":6170", "host:70000", "host:x"])
def test_bind_must_be_host_and_port(bind: str) -> None:
    """What is no HOST:PORT is refused before a port is opened."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=8)

    with pytest.raises(errors.ConfigError, match="--bind: must be HOST:PORT"):
        asyncio.run(listen(servicer, bind=bind))
    servicer.close()


ERRORS: dict[str, tuple[str, bytes, type[errors.PserverError], str]] = {
    "unknown table": ("Pull", pull_bytes({"x": [1]}), errors.UnknownTableError, "no table 'x'"),
    "garbage": ("Push", b"\xff", errors.ShapeError, "cut"),
    "restart": (
        "Pull",
        pull_bytes({"ads": [1]}, incarnation=4),
        errors.RestartedError,
        "restarted",
    ),
    "not finite": (
        "Push",
        push_bytes({"ads": ([7], [float("nan")])}, counter=9),
        errors.NotFiniteError,
        "key 7 is nan",
    ),
    "spec": (
        "CreateTable",
        pb.CreateTableRequest(spec=proto_of(TableSpec(name="ads", dim=2))).SerializeToString(),
        errors.SpecMismatchError,
        "dim: 1 against 2",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_cross_the_wire_by_class(case: str) -> None:
    """What the shard raises arrives as the same class, with method and endpoint in front."""
    method, message, kind, text = ERRORS[case]

    async def main() -> None:
        async with running() as run:
            with pytest.raises(errors.PserverError) as caught:
                await run.call(method, message)
            assert type(caught.value) is kind
            assert str(caught.value).startswith(f"{method} at {run.channel.endpoint}: ")
            assert text in str(caught.value)

    asyncio.run(main())


def test_our_own_mistake_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is none of our tree arrives as InternalError with its text, logged once."""
    logged = []
    monkeypatch.setattr(
        "pserver.server.app.log.exception", lambda *event, **fields: logged.append((event, fields))
    )

    async def main() -> None:
        async with running() as run:
            run.servicer._work["Describe"] = lambda _: b"" + None  # type: ignore[operator] # a bug
            with pytest.raises(errors.InternalError, match="TypeError: can't concat"):
                await run.call("Describe")

    asyncio.run(main())

    assert logged == [(("request failed by our own mistake",), {"method": "Describe"})]


def test_unknown_method_is_a_cluster_error() -> None:
    """A method that the server does not have means that the releases do not fit."""

    async def main() -> None:
        async with running() as run:
            with pytest.raises(errors.ClusterError, match=r"Nonsense at 127\.0\.0\.1"):
                await run.call("Nonsense")

    asyncio.run(main())


def test_message_is_refused_when_it_is_over_the_limit() -> None:
    """A message one byte over the limit is refused by size; one just under it is read."""

    async def main() -> None:
        async with running() as run:
            with pytest.raises(errors.ShapeError):
                await run.call("Push", b"\xff" * MESSAGE_BYTES_MAX)
            with pytest.raises(errors.OverloadedError, match="larger than max"):
                await run.call("Push", b"\xff" * (MESSAGE_BYTES_MAX + 1))

    asyncio.run(main())


def test_deadline_names_the_endpoint_when_the_shard_is_busy() -> None:
    """A call that is not answered in time is a DeadlineError with method, endpoint and seconds."""

    async def main() -> None:
        free = threading.Event()
        async with running() as run:
            held = await run.hold(free)
            with pytest.raises(errors.DeadlineError) as caught:
                await run.call("Pull", pull_bytes({"ads": [1]}), timeout_s=0.2)
            assert str(caught.value) == f"Pull: no answer from {run.channel.endpoint} within 0.2 s"
            free.set()
            await held

    asyncio.run(main())


def test_drain_finishes_what_is_in_flight() -> None:
    """A drain answers the pushes that are in, refuses what comes, and ends (I3)."""

    async def main() -> None:
        free = threading.Event()
        async with running() as run:
            held = await run.hold(free)
            pushes = [
                asyncio.create_task(
                    run.call("Push", push_bytes({"ads": ([1], [1])}, counter=counter))
                )
                for counter in range(4)
            ]
            await until(lambda: run.servicer._executor.queued == 4)

            draining = asyncio.create_task(drain(run.servicer, run.listening, drain_s=WAIT_S))
            await until(lambda: run.servicer.is_draining)
            with pytest.raises(errors.UnavailableError):
                await run.call("Pull", pull_bytes({"ads": [1]}))
            free.set()
            replies = [parse_small(pb.PushReply, await push) for push in pushes]
            await asyncio.gather(held, draining)

            assert [list(reply.versions) for reply in replies] == [[1], [2], [3], [4]]
            (table,) = run.servicer._registry
            assert table.version == 4

    asyncio.run(main())


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


async def health(run: Running, service: str) -> int:
    """Return what the health service says of a service."""
    async with grpc.aio.insecure_channel(run.channel.endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S)
        return int(reply.status)


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_follows_the_drain(service: str) -> None:
    """Health says SERVING from the start, and NOT_SERVING as soon as a drain begins."""

    async def main() -> None:
        async with running() as run:
            assert await health(run, service) == health_pb2.HealthCheckResponse.SERVING
            await run.listening.health.enter_graceful_shutdown()
            assert await health(run, service) == health_pb2.HealthCheckResponse.NOT_SERVING

    asyncio.run(main())
