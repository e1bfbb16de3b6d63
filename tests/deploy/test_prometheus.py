"""A real Prometheus with the files of ``deploy/`` sees real servers, and what goes wrong with them (J4)."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import pserver
from tests.deploy.manifests import DEPLOY, load, metric_names
from tests.integration.servers import WAIT_S, Server, endpoints, servers

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = re.compile(r"metrics page ready.*address='([^']+)'")
POLL_S = 0.2


class Prometheus:
    """A process that scrapes every second; asked over HTTP."""

    def __init__(self, folder: Path, targets: dict[str, list[str]], *, hurry: int = 1) -> None:
        """Start it with our rules and our configuration, but for targets, the interval and durations.

        Args:
            folder: of its own.
            targets: HOST:PORT of the pages of each job.
            hurry: what every duration of our rules is divided by.
        """
        config = load("prometheus/prometheus.yaml")
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": targets.get(job["job_name"], [])}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
        (folder / "alerts.yaml").write_text(hurried(rules, hurry), encoding="utf-8")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.process = subprocess.Popen(
            [
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address={self.address}",
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression; none while it does not listen yet."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(
                f"http://{self.address}/api/v1/query?{query}", timeout=WAIT_S
            ) as reply:
                result: list[dict[str, Any]] = json.load(reply)["data"]["result"]
        except urllib.error.URLError:
            return []
        return result

    def wait(
        self,
        expression: str,
        is_so: Callable[[list[dict[str, Any]]], bool],
        *,
        limit_s: float = WAIT_S,
    ) -> None:
        """Return once what an expression gives is as wanted."""
        until = time.monotonic() + limit_s
        while not is_so(found := self.ask(expression)):
            assert time.monotonic() < until, f"{expression} gives {found}"
            assert self.process.poll() is None, "prometheus has ended"
            threading.Event().wait(POLL_S)


def hurried(rules: str, hurry: int) -> str:
    """Return rules whose durations are shorter, at least 3 s: four scrapes."""

    def shorter(match: re.Match[str]) -> str:
        seconds = int(match[1]) * (60 if match[2] == "m" else 1)
        return f"{max(3, seconds // hurry)}s"

    return rules if hurry == 1 else re.sub(r"\b(\d+)([ms])\b", shorter, rules)


@contextlib.contextmanager
def prometheus_of(
    folder: Path, targets: dict[str, list[str]], *, hurry: int = 1
) -> Iterator[Prometheus]:
    """Have a Prometheus that scrapes pages; skip where there is none."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus")
    running = Prometheus(folder, targets, hurry=hurry)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(WAIT_S)


@pytest.fixture
def cluster() -> Iterator[tuple[list[Server], list[str]]]:
    """Return two servers, and where their metrics pages are."""
    with servers() as start:
        both = [
            start("--shard", str(shard), "--shards", "2", "--metrics-bind", "127.0.0.1:0")
            for shard in range(2)
        ]
        pages = [server.wait_line(PAGE.pattern)[1] for server in both]
        yield [server.wait_ready() for server in both], pages


@pytest.fixture
def prometheus(cluster: tuple[list[Server], list[str]], tmp_path: Path) -> Iterator[Prometheus]:
    """Return a Prometheus that scrapes both servers; it is ended with the test."""
    with prometheus_of(tmp_path, {"pserver": cluster[1]}) as running:
        yield running


def test_a_real_prometheus_finds_nan_and_a_dead_server(
    cluster: tuple[list[Server], list[str]], prometheus: Prometheus
) -> None:
    """Both pages are scraped, all their names are promised; NaN fires, and a killed server is seen."""
    both, pages = cluster
    prometheus.wait('up{job="pserver"} == 1', lambda found: len(found) == len(pages))
    assert prometheus.ask("ALERTS") == []
    with pserver.connect(endpoints(both), connect_s=WAIT_S) as client:
        client.create_table(pserver.TableSpec(name="ads", dim=1, optimizer="sgd:lr=1"))
        client.push("ads", np.arange(100), np.ones((100, 1)))
        prometheus.wait("sum(pserver_rows)", lambda found: _values(found) == [100.0])
        with pytest.raises(pserver.NotFiniteError):
            client.push("ads", [1], [[np.nan]])

        prometheus.wait(
            'ALERTS{alertname="BadPushes",alertstate="firing",table="ads"}',
            lambda found: len(found) == 1,
        )
        names = {item["metric"]["__name__"] for item in prometheus.ask('{__name__=~"pserver_.*"}')}
        assert {"pserver_request_seconds_bucket", "pserver_rows"} <= names
        both[1].send(signal.SIGKILL)
        prometheus.wait(
            f'ALERTS{{alertname="PserverDown",instance="{pages[1]}"}}',
            lambda found: len(found) == 1,
        )
        client.close(flush=False)

    assert not {name for name in names if not name.endswith("_created")} - metric_names()


def _values(found: list[dict[str, Any]]) -> list[float]:
    return [float(sample["value"][1]) for sample in found]
