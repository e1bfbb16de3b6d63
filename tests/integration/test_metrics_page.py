"""The metrics page of a running server: its names are a promise, its labels are few."""

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import pserver
from pserver.server.methods import METHODS
from pserver.server.role import STATES
from tests.integration.servers import WAIT_S, Server, endpoints, servers

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "metrics.txt"
REGENERATE = "PSERVER_WRITE_GOLDEN"
TABLES = ("ads", "users", "clicks")
DENSE = "top"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server that answered all kinds of calls, some of them with errors."""
    with servers() as start:
        server = start("--metrics-bind", "127.0.0.1:0").wait_ready()
        with pserver.connect(endpoints([server]), connect_s=WAIT_S) as client:
            train(client)
        yield server


def train(client: pserver.Client) -> None:
    """Use every method, fail in some ways, and use many keys and two trainers."""
    for name in ("ads", "users"):
        client.create_table(pserver.TableSpec(name=name, dim=2, optimizer="sgd:lr=1"))
        client.push(name, np.arange(500) * 7919, np.ones((500, 2)))
    rules = {"accessor": "ctr:embedx_threshold=0.3", "admission": "count:n=3"}
    client.create_table(pserver.TableSpec(name="clicks", dim=2, **rules))  # type: ignore[arg-type]
    client.push("clicks", [7, 7, 7, 8, 9], np.ones((5, 2)))
    client.push("clicks", [7, 8], np.ones((2, 2)))
    client.create_dense(pserver.DenseSpec(name=DENSE, length=7))
    client.assign("ads", [1], [[1.0, 1.0]])
    client.pull("ads", np.arange(300))
    client.stats()
    for bad in (np.full((1, 2), np.nan), np.full((1, 2), np.inf)):
        with pytest.raises(pserver.NotFiniteError):
            client.push("users", [123456789], bad)
    with pytest.raises(pserver.SpecMismatchError):
        client.create_table(pserver.TableSpec(name="ads", dim=3))


@pytest.fixture(scope="module")
def families(server: Server) -> list[Metric]:
    """Return what the page says."""
    address = next(line for line in server.log if "metrics page ready" in line)
    url = "http://{}/metrics".format(address.split("address=")[1].strip().strip("'"))
    with urllib.request.urlopen(url, timeout=WAIT_S) as reply:
        return list(text_string_to_metric_families(reply.read().decode()))


def value(families: list[Metric], name: str, **labels: str) -> float:
    """Return one sample of the page."""
    return next(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    )


def test_no_metric_comes_or_goes_unseen(families: list[Metric]) -> None:
    """Every name with its type and labels stands in the golden file, and nothing else does."""
    lines = {
        f"{sample.name} {family.type} {','.join(sorted(sample.labels))}".rstrip()
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    text = "\n".join(sorted(lines)) + "\n"
    if os.environ.get(REGENERATE) == "1":
        GOLDEN.write_text(text, encoding="utf-8")

    assert text == GOLDEN.read_text(encoding="utf-8"), f"set {REGENERATE}=1 to rewrite it"


def test_every_metric_says_what_it_is(families: list[Metric]) -> None:
    """Each name begins with ``pserver_`` and has a sentence of help."""
    for family in families:
        assert family.name.startswith("pserver_")
        assert family.documentation.endswith(".")


def test_j2_label_values_are_bounded(families: list[Metric]) -> None:
    """Labels are methods, codes, tables, states and edges: never a key, a trainer or a text."""
    allowed = {
        "method": set(METHODS),
        "code": {code.name for code in grpc.StatusCode},
        "table": {*TABLES, DENSE},
        "state": {"absent", "live", "expired", "left", "dropped", *STATES},
    }

    for family in families:
        for sample in family.samples:
            for label, given in sample.labels.items():
                if label == "le":
                    assert float(given) >= 0.0
                else:
                    assert given in allowed[label], sample


def test_numbers_are_those_of_the_calls(families: list[Metric]) -> None:
    """Rows, keys, versions and pushes are what was done."""
    assert value(families, "pserver_rows", table="users") == 500
    assert value(families, "pserver_pushed_keys_total", table="users") == 500
    assert value(families, "pserver_pulled_keys_total", table="ads") == 300
    assert value(families, "pserver_table_version", table="ads") == 2  # a push and an assign
    assert value(families, "pserver_applied_pushes_total") == 5
    assert value(families, "pserver_rows", table="clicks") == 1
    assert value(families, "pserver_embedx_rows", table="clicks") == 1
    assert value(families, "pserver_waiting_keys", table="clicks") == 2
    assert value(families, "pserver_unadmitted_keys_total", table="clicks") == 3
    assert value(families, "pserver_filter_bytes", table="clicks") > 0
    assert value(families, "pserver_evicted_rows_total", table="clicks") == 0
    assert value(families, "pserver_duplicate_pushes_total") == 0
    assert value(families, "pserver_queue_depth") == 0
    name = "pserver_request_seconds_count"
    assert value(families, name, method="Push", code="OK") == 4
    assert value(families, name, method="Push", code="INVALID_ARGUMENT") == 2
    assert value(families, name, method="CreateTable", code="ALREADY_EXISTS") == 1
    assert value(families, "pserver_received_bytes_total", method="Push") > 2 * 500 * 16
