"""J4: a dead server, a slow trainer, a full queue, growing staleness and NaN, each found from metrics alone.

A real Prometheus with the rules of ``deploy/``, their durations divided by six, scrapes two servers and two
trainers that train; one of the trainers has a link that gets long.
"""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pserver
from bench.link import Link, Links
from tests.deploy.test_prometheus import PAGE, Prometheus, prometheus_of
from tests.integration.servers import WAIT_S, endpoints, servers

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HURRY = 6
FAULTS = ("PserverDown", "TrainerBehind", "TrainerQueueFull", "StalenessGrows", "BadPushes")
SMALL_QUEUE = ("--send-queue-size=2", "--window=1")
LIMIT_S = 90.0  # for what takes 20 s on a quiet machine
LONG_STEPS = 20  # of the near trainer, which gets faster, in a round trip of the long link


@contextlib.contextmanager
def trainer(number: int, ps: str, *more: str) -> Iterator[str]:
    """Have one of two trainers train for as long as it is wanted; give the address of its page."""
    flags = f"--ps={ps} --trainers=2 --trainer-id={number} --mode=async --device=cpu --threads=1"
    rows = "--rows=1000000000 --scale=0.001 --batch-size=256"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "trainer", "run", *flags.split(), *rows.split(), *more),
            "--metrics-bind=127.0.0.1:0",
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"metrics at (\S+)/metrics", line):
                break
        else:
            raise AssertionError(f"trainer {number} told of no page: {''.join(said)}")
        yield found[1]
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def fires(prometheus: Prometheus, alert: str, **labels: str) -> None:
    """Return once an alert fires, or has fired: what grew and then stays no longer grows."""
    wanted = {"alertname": alert, "alertstate": "firing", **labels}
    inside = ",".join(f'{name}="{value}"' for name, value in wanted.items())
    fired = f"count_over_time(ALERTS{{{inside}}}[10m])"
    prometheus.wait(fired, lambda found: len(found) >= 1, limit_s=LIMIT_S)


@pytest.mark.timeout(300)
def test_j4_each_fault_is_found_from_metrics_alone(tmp_path: Path) -> None:
    """A healthy job fires none of the five; then each fault fires its own, and names the place."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus")
    with contextlib.ExitStack() as stack:
        start = stack.enter_context(servers())
        both = [
            start("--shard", str(shard), "--shards", "2", "--metrics-bind", "127.0.0.1:0")
            for shard in range(2)
        ]
        pages = [server.wait_line(PAGE.pattern)[1] for server in both]
        ps = endpoints([server.wait_ready() for server in both])
        links = stack.enter_context(Links(ps.split(","), Link()))
        near = stack.enter_context(trainer(0, ps))
        far = stack.enter_context(trainer(1, ",".join(links.endpoints), *SMALL_QUEUE))
        targets = {"pserver": pages, "trainer": [near, far]}
        prometheus = stack.enter_context(prometheus_of(tmp_path, targets, hurry=HURRY))

        trained = "count_over_time((trainer_steps_total > 0)[2m:1s]) >= 20"
        prometheus.wait(trained, lambda found: len(found) == 2, limit_s=LIMIT_S)
        healthy = prometheus.ask('ALERTS{alertstate="firing"}')
        assert not {alert["metric"]["alertname"] for alert in healthy} & set(FAULTS)

        # So long that a far push is old, and not so long that it is fewer than one push in a hundred.
        ((_, steps),) = (
            found["value"]
            for found in prometheus.ask(f'rate(trainer_steps_total{{instance="{near}"}}[15s])')
        )
        links.shape = Link(round_trip_s=LONG_STEPS / float(steps))
        fires(prometheus, "TrainerBehind", instance=far)
        fires(prometheus, "TrainerQueueFull", instance=far)
        fires(prometheus, "StalenessGrows")

        with pserver.connect(ps, connect_s=WAIT_S) as client:
            client.create_table(pserver.TableSpec(name="ads", dim=1, optimizer="sgd:lr=1"))
            with pytest.raises(pserver.NotFiniteError):
                client.push("ads", [1], [[np.nan]])
        fires(prometheus, "BadPushes", table="ads")

        both[1].send(signal.SIGKILL)
        fires(prometheus, "PserverDown", instance=pages[1])
