"""A port belongs to one server, and a proxy in the environment is nobody's business."""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import pserver
from pserver.transport import split_endpoint
from tests.integration.servers import WAIT_S, Start, endpoints, start_cluster


@contextmanager
def taken_port() -> Iterator[str]:
    """Return HOST:PORT on which some other program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def test_b8_second_server_on_a_port_exits_2(start: Start) -> None:
    """The same server twice on one port: the second exits 2 and names it, the first serves (B8)."""
    first = start().wait_ready()

    second = start("--bind", first.endpoint)
    status, text = second.wait_exit()

    assert status == 2
    assert f"pserver serve: --bind {first.endpoint}: cannot listen there: the port is taken" in text
    assert "Traceback" not in text
    with pserver.connect(first.endpoint) as client:
        assert client.num_shards == 1


@pytest.mark.parametrize("flag", ["--bind", "--metrics-bind"])
def test_b8_port_of_another_program_exits_2(start: Start, flag: str) -> None:
    """A port that another program has, for requests or for metrics, is named; exit 2 (B8)."""
    with taken_port() as taken:
        status, text = start("--bind", "127.0.0.1:0", flag, taken).wait_exit()

    assert status == 2
    assert f"pserver serve: {flag} {taken}: cannot listen there" in text
    assert "Traceback" not in text
    assert "ready on" not in text


def test_b8_metrics_port_of_another_server_exits_2(start: Start) -> None:
    """A second server with the first one's metrics port exits 2 and names it (B8)."""
    first = start("--metrics-bind", "127.0.0.1:0")
    address = first.wait_line(r"metrics page ready.*address='(\S+)'")[1]
    first.wait_ready()

    status, text = start("--metrics-bind", address).wait_exit()

    assert status == 2
    assert f"--metrics-bind {address}: cannot listen there" in text


PROXIES = {
    name: "http://127.0.0.1:1"
    for lower in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    for name in (lower, lower.upper())
}


def test_b12_proxy_variables_do_not_matter(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every proxy variable set to a dead address on both sides, all works (B12)."""
    for name, value in PROXIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    cluster = start_cluster(start, 2)

    with pserver.connect(endpoints(cluster), connect_s=WAIT_S) as client:
        client.create_table(pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1"))
        client.push("t", np.arange(10), np.ones((10, 1)))
        assert client.pull("t", np.arange(10)).shape == (10, 1)


def has_ipv6() -> bool:
    """Return whether this machine has an IPv6 loopback."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_i4_the_default_bind_needs_no_ipv6() -> None:
    """It is a loopback address of IPv4, so that a machine without IPv6 starts servers."""
    host, _ = split_endpoint(pserver.ServeSettings().bind, where="--bind")

    assert ipaddress.ip_address(host) == ipaddress.ip_address("127.0.0.1")


def test_i4_a_server_listens_on_ipv6_when_told(start: Start) -> None:
    """With brackets, on both sides; where there is no IPv6 it exits 2 and names the address."""
    server = start("--bind", "[::1]:0")
    if not has_ipv6():
        status, text = server.wait_exit()
        assert status == 2
        assert "--bind [::1]:0: cannot listen there" in text
        return
    server.wait_ready()

    with pserver.connect(server.endpoint, connect_s=WAIT_S) as client:
        assert client.num_shards == 1


def test_i5_clients_of_ipv4_get_through_when_a_server_binds_the_ipv6_wildcard(
    start: Start,
) -> None:
    """Both families reach it, so a probe of one is no proof less than a client of the other."""
    if not has_ipv6():
        pytest.skip("needs IPv6")
    server = start("--bind", "[::]:0", "--insecure-bind").wait_ready()
    port = server.endpoint.rpartition(":")[2]

    for host in ("127.0.0.1", "[::1]"):
        with pserver.connect(f"{host}:{port}", connect_s=WAIT_S) as client:
            assert client.num_shards == 1
