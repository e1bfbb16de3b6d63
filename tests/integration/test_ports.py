"""A port belongs to one server, and a proxy in the environment is nobody's business."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import pserver
from tests.integration.servers import WAIT_S, Start, endpoints, start_cluster


@contextmanager
def taken_port() -> Iterator[str]:
    """Return HOST:PORT on which some other program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def test_second_server_on_a_port_exits_2(start: Start) -> None:
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
def test_port_of_another_program_exits_2(start: Start, flag: str) -> None:
    """A port that another program has, for requests or for metrics, is named; exit 2 (B8)."""
    with taken_port() as taken:
        status, text = start("--bind", "127.0.0.1:0", flag, taken).wait_exit()

    assert status == 2
    assert f"pserver serve: {flag} {taken}: cannot listen there" in text
    assert "Traceback" not in text
    assert "ready on" not in text


def test_metrics_port_of_another_server_exits_2(start: Start) -> None:
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


def test_proxy_variables_do_not_matter(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
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
