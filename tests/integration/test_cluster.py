"""A cluster of two processes: it trains, tells who and how it is, and is refused if it is none."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

import pserver
from pserver.server.methods import METHODS
from pserver.transport import SERVICE
from tests.integration.servers import WAIT_S, Server, Start, endpoints, start_cluster

MIB = 1 << 20


@pytest.fixture
def client(pair: list[Server]) -> Iterator[pserver.Client]:
    """Return a client of the two servers."""
    with pserver.connect(endpoints(pair), connect_s=WAIT_S) as client:
        yield client


def test_two_servers_train_as_embedded_shards_do(client: pserver.Client) -> None:
    """A run over two processes gives the weights of the same run in this process, to the bit."""
    with pserver.embedded(2) as embedded:
        for each in (client, embedded):
            rng = np.random.default_rng(5)
            each.create_table(pserver.TableSpec(name="same", dim=8, optimizer="adam", seed=3))
            for _ in range(20):
                keys = rng.zipf(1.2, 500)
                each.pull("same", keys)
                each.push("same", keys, rng.standard_normal((500, 8)))

        keys = np.arange(2000)
        assert np.array_equal(client.peek("same", keys), embedded.peek("same", keys))


@pytest.mark.parametrize("num_bytes", [4 * MIB - 64, 4 * MIB, 4 * MIB + 64, 64 * MIB])
def test_b1_large_requests_pass_on_a_real_network(client: pserver.Client, num_bytes: int) -> None:
    """Pulls and pushes of 4 MiB and one row less or more, and of 64 MiB, work as they are (B1)."""
    name = f"large-{num_bytes}"
    client.create_table(
        pserver.TableSpec(name=name, dim=16, optimizer="sgd:lr=1", initializer="zeros")
    )
    keys = np.arange(num_bytes // 64)
    grads = np.arange(keys.size, dtype=np.float32)[:, None] + np.zeros((1, 16), np.float32)

    client.push(name, keys, grads)

    assert np.array_equal(client.pull(name, keys), -grads)


def test_another_client_finds_tables_and_weights(
    client: pserver.Client, pair: list[Server]
) -> None:
    """What one client made and pushed, another one reads; the spec comes from the servers."""
    spec = client.create_table(pserver.TableSpec(name="shared", dim=2, optimizer="sgd:lr=1"))
    weights = client.pull("shared", [1, 2, 3])

    with pserver.connect(endpoints(pair)) as other:
        assert other.spec("shared") == spec
        assert np.array_equal(other.pull("shared", [1, 2, 3]), weights)
        with pytest.raises(pserver.UnknownTableError, match=r"no table 'sharde'; did you mean"):
            other.pull("sharde", [1])


def test_endpoints_in_the_wrong_order_are_refused(pair: list[Server]) -> None:
    """Two servers that changed places are refused with the right order to paste."""
    one, two = (server.endpoint for server in pair)

    with pytest.raises(pserver.ClusterError) as caught:
        pserver.connect(f"{two},{one}")

    assert f"{two} is listed in place 0, so it must be shard 0, but it is shard 1" in str(
        caught.value
    )
    assert str(caught.value).endswith(f"list them in shard order: {one},{two}")


def test_missing_shard_is_refused(pair: list[Server]) -> None:
    """One server of two is refused with the shard that has no endpoint."""
    with pytest.raises(pserver.ClusterError) as caught:
        pserver.connect(pair[0].endpoint)

    assert f"{pair[0].endpoint} is shard 0 of a cluster of 2, but 1 endpoints are listed" in str(
        caught.value
    )
    assert "no endpoint for shard 1" in str(caught.value)


def test_two_servers_of_one_shard_are_refused(pair: list[Server], start: Start) -> None:
    """Two processes that both say they are shard 0 are named."""
    twin = start("--shard", "0", "--shards", "2").wait_ready()

    with pytest.raises(pserver.ClusterError) as caught:
        pserver.connect(f"{pair[0].endpoint},{twin.endpoint}")

    assert f"{pair[0].endpoint} and {twin.endpoint} both say that they are shard 0 of 2" in str(
        caught.value
    )


def test_server_of_another_cluster_is_refused(pair: list[Server], start: Start) -> None:
    """A server that was started for three shards does not pass as the second of two."""
    other = start("--shard", "1", "--shards", "3").wait_ready()

    with pytest.raises(pserver.ClusterError) as caught:
        pserver.connect(f"{pair[0].endpoint},{other.endpoint}")

    assert f"{other.endpoint} is shard 1 of a cluster of 3, but 2 endpoints are listed" in str(
        caught.value
    )


def test_c1_clients_come_and_go_without_a_trace(pair: list[Server]) -> None:
    """Connecting and closing over and over leaves no open file and no thread behind (C1)."""

    def num_open() -> int:
        return len(os.listdir(f"/proc/{os.getpid()}/fd"))  # noqa: PTH208 - only how many

    for _ in range(3):
        pserver.connect(endpoints(pair)).close()
    before, threads = num_open(), threading.active_count()

    for _ in range(20):
        pserver.connect(endpoints(pair)).close()

    end_s = time.monotonic() + WAIT_S  # gRPC closes its sockets when it finds the time
    while num_open() > before + 4 or threading.active_count() > threads:
        assert time.monotonic() < end_s
        threading.Event().wait(0.01)


def test_health_says_serving(pair: list[Server]) -> None:
    """The standard health service answers SERVING for the server and for our service."""
    for service in ("", SERVICE):
        with grpc.insecure_channel(pair[0].endpoint) as channel:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S
            )

        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_service(pair: list[Server]) -> None:
    """A generic tool finds our service and its methods on a running server."""
    with grpc.insecure_channel(pair[0].endpoint) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)

        assert SERVICE in set(database.get_services())
        (file,) = [database.FindFileContainingSymbol(SERVICE)]
        assert tuple(method.name for method in file.service[0].method) == tuple(METHODS)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "pserver", *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_status_shows_every_shard(client: pserver.Client, pair: list[Server]) -> None:
    """``pserver status`` tells each shard's numbers, as JSON for programs and a table for people."""
    client.create_table(pserver.TableSpec(name="told", dim=4))
    client.push("told", np.arange(100), np.ones((100, 4)))
    stats = client.stats()

    done = run("status", "--ps", endpoints(pair), "--json")

    assert (done.returncode, done.stderr) == (0, "")
    shards = json.loads(done.stdout)["shards"]
    assert [shard["endpoint"] for shard in shards] == [server.endpoint for server in pair]
    assert [shard["shard"] for shard in shards] == [0, 1]
    for shard, told in zip(shards, stats, strict=True):
        assert shard["state"] == "ready"
        assert "told" in shard["tables"]
        assert shard["rows"] == sum(table.rows for table in told.tables)
        assert shard["pushes_applied"] == told.pushes_applied
        assert shard["package_version"] == pserver.__version__

    table = run("status", "--ps", endpoints(pair))
    assert table.returncode == 0
    assert all(server.endpoint in table.stdout for server in pair)


def test_status_exits_1_when_the_cluster_does_not_fit(pair: list[Server]) -> None:
    """A cluster that is listed wrongly is one line on standard error, exit 1."""
    done = run("status", "--ps", pair[1].endpoint)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"pserver status: {pair[1].endpoint} is shard 1 of a cluster")
    assert done.stderr.count("\n") == 1


def test_cluster_of_three_starts(start: Start) -> None:
    """Three servers that start at once make a cluster, whichever is ready first."""
    cluster = start_cluster(start, 3)

    with pserver.connect(endpoints(cluster)) as client:
        client.create_table(pserver.TableSpec(name="t", dim=1))
        assert client.pull("t", np.arange(100)).shape == (100, 1)
