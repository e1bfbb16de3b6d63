"""``trainer launch --on ray`` on a real Ray cluster of three nodes, each a loopback address of this machine."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.trainer.models import criteo_line

# What Ray itself warns of while it starts and ends is not ours.
pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore"),
]
WAIT_S = 400.0
END_S = 30.0  # 9 s were seen; Ray alone waits for a head that is gone for 60 s
ROWS = 300
EPOCHS = 60
JOURNAL_BYTES = 1 << 16  # about 20 pushes
JOB = """\
[run]
data = "train.txt"
eval_last = 50
model = "fm"
dim = 4
batch_size = 25
device = "cpu"
threads = 1
"""
SIZE = {"object_store_memory": 80 << 20, "include_dashboard": False}


class Nodes:
    """The cluster, and its nodes by address."""

    def __init__(self) -> None:
        """Start three nodes: on the first there is room for what another one loses."""
        from ray.cluster_utils import Cluster

        # Ray takes 127.0.0.1 for the address that others know this machine by.
        head = {"num_cpus": 4, "num_gpus": 1, "node_ip_address": "127.0.0.2", **SIZE}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self.cluster.address)
        self.others: dict[str, Any] = {}
        self.add("127.0.0.3", num_cpus=1, num_gpus=0)
        self.add("127.0.0.4", num_cpus=1, num_gpus=0)

    def add(self, address: str, **room: int) -> None:
        """Start a node."""
        self.others[address] = self.cluster.add_node(node_ip_address=address, **room, **SIZE)

    def remove(self, address: str) -> None:
        """Kill a node, with all that runs there."""
        self.cluster.remove_node(self.others.pop(address), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Return a cluster; all of its processes end."""
    before = set(psutil.Process().children(recursive=True))
    made = Nodes()
    yield made
    made.cluster.shutdown()
    left = set(psutil.Process().children(recursive=True)) - before
    assert psutil.wait_procs(list(left), timeout=WAIT_S)[1] == []


class Launched:
    """A launch that runs. Owner: the test's thread."""

    def __init__(self, nodes: Nodes | None, *words: str) -> None:
        """Begin it.

        Args:
            nodes: where; None: on a cluster of its own, in a process group of its own.
            words: of ``trainer launch --on ray`` behind the address.
        """
        command = [sys.executable, "-m", "trainer", "launch", "--on", "ray"]
        where = ["--ray-address", nodes.address] if nodes else []
        self.process = subprocess.Popen(
            [*command, *where, *words],
            start_new_session=nodes is None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def wait_said(self, text: str) -> str:
        """Return the next line of standard error with a text."""
        while (line := self._lines.get(timeout=WAIT_S)) is not None:
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in {''.join(self.said)}")

    def end(self) -> tuple[int, str]:
        """Return the exit status and the last line of standard output; what it said is in ``said``."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines()
        status = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        self.said += iter(lambda: self._lines.get_nowait() or "", "")
        return status, lines[-1] if lines else ""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small job in a folder that all nodes see."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    text = "".join(map(criteo_line, range(ROWS)))
    Path("train.txt").write_text(text, encoding="utf-8")
    Path("job.toml").write_text(JOB, encoding="utf-8")
    return Path("job.toml")


def wait_until(holds: Callable[[], bool]) -> None:
    """Return once something holds."""
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until
        threading.Event().wait(0.02)


def has_pushes(shard: int) -> bool:
    """Return whether a server has recorded some pushes, which are in the middle of training then."""
    files = Path("journal", f"shard-{shard}").glob("*.journal")
    return sum(file.stat().st_size for file in files) > JOURNAL_BYTES


@contextlib.contextmanager
def held(number: int) -> Iterator[None]:
    """Let a trainer of the job in this folder stand still, wherever in the cluster it is, unless it is killed."""
    here = str(Path.cwd())
    (process,) = [
        one
        for one in psutil.process_iter(["cmdline", "cwd"])
        if one.info["cwd"] == here and f"--trainer-id={number}" in (one.info["cmdline"] or [])
    ]
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def places(shard: int) -> list[str]:
    """Return the addresses that a shard was ready on, one after the other."""
    log = Path("logs", f"server-{shard}.log").read_text(encoding="utf-8")
    return re.findall(r"ready on ([\d.]+):\d+", log)


def test_a_node_that_is_removed_takes_nothing_with_it(nodes: Nodes, job: Path) -> None:
    """A server comes back on another node by its journal, and the result is that of a run without a failure."""
    words = ["--mode", "sync", "--deterministic", "--epochs", str(EPOCHS), "--json"]
    run = [sys.executable, "-m", "trainer", "run", "--config", str(job), "--trainers", "2", *words]
    quiet = subprocess.run(run, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert quiet.returncode == 0, quiet.stderr
    launched = Launched(
        nodes, "--shards", "2", "--trainers", "2", "--journal", "journal", str(job), *words
    )
    wait_until(lambda: has_pushes(0) and has_pushes(1))
    with held(0):  # so that the job does not end before the node does
        shard = next(shard for shard in range(2) if places(shard)[0] in nodes.others)

        nodes.remove(places(shard)[0])

        launched.wait_said("a server is back")
    status, told = launched.end()
    assert status == 0, launched.said
    first, second = places(shard)
    assert first != second
    expected, found = json.loads(quiet.stdout.splitlines()[-1]), json.loads(told)
    for name in ("steps", "samples", "rows", "eval_samples", "log_loss", "auc", "train_auc"):
        assert found[name] == expected[name], name
    assert found["watch"]["pushes"] == expected["watch"]["pushes"] == 2 * EPOCHS * 5


def test_a_trainer_is_lost_with_its_node_and_the_others_go_on(nodes: Nodes, job: Path) -> None:
    """In async nobody waits for it: the job ends well, and the summary names it and what was not trained on."""
    nodes.add("127.0.0.5", num_cpus=1, num_gpus=1)
    words = ["--mode", "async", "--epochs", str(EPOCHS), "--json"]
    more = ["--trainer-gpus", "1", "--journal", "journal"]
    launched = Launched(nodes, "--trainers", "2", *more, str(job), *words)
    wait_until(lambda: has_pushes(0))
    with held(0), held(1):
        assert places(0)[0] != "127.0.0.5"

        nodes.remove("127.0.0.5")

        launched.wait_said("a process is lost")
    status, told = launched.end()
    assert status == 0, launched.said
    summary = json.loads(told)
    assert summary["trainers"] == 1
    (warning,) = [line for line in summary["warnings"] if " is lost: " in line]
    assert re.match(r"trainer [01] is lost: .*node", warning)
    assert "the rest of its share was not trained on" in warning


def test_the_first_failure_is_told_and_nothing_is_left(nodes: Nodes, job: Path) -> None:
    """A setting that only a trainer can check is refused with its words, and servers' words end a job too."""
    bad = Launched(nodes, "--shards", "2", "--trainers", "2", str(job), "--optimizer", "adagard")
    status, _ = bad.end()

    assert status == 2, bad.said
    assert re.match(r"trainer launch: trainer [01] ended with status 2: ", bad.said[-1])
    assert "did you mean 'adagrad'?" in bad.said[-1]
    assert re.search(r"its log is logs/trainer-[01]\.log", bad.said[-1])
    job.write_text(f'{JOB}\n[serve]\nrestore = "latest"\n', encoding="utf-8")
    servers = Launched(nodes, "--trainers", "2", str(job))
    status, _ = servers.end()
    assert status == 1, servers.said
    assert "server 0 ended with status 2: " in servers.said[-1]
    assert "restore needs checkpoint_dir or journal" in servers.said[-1]


def test_a_signal_to_the_whole_group_ends_a_launch_with_its_own_cluster(job: Path) -> None:
    """Ray's processes get it too, as from a terminal or a batch system: we end in our own words, and all is gone."""
    job.write_text(f"{JOB}\n[serve]\ninsecure_bind = true\n", encoding="utf-8")
    launched = Launched(None, str(job), "--epochs", "100000")
    launched.wait_said("train fm")

    os.killpg(launched.process.pid, signal.SIGTERM)

    assert launched.process.wait(END_S) == 128 + signal.SIGTERM
    launched.end()
    assert launched.said[-1] == "trainer launch: ended by SIGTERM\n"
    here = str(Path.cwd())
    wait_until(
        lambda: all(
            p.info["cwd"] != here for p in psutil.process_iter(["cwd"]) if p.pid != os.getpid()
        )
    )
