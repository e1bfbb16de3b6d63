"""Jobs that a launcher runs to their end although trainers are killed and servers restarted under them.

What is lost is known to the row: each row of the data has a key of its own, and the optimizer counts how often
it was trained on.
"""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

import pserver
from tests.integration.killed import WAIT_S, Killed
from tests.integration.servers import Start, endpoints, start_cluster
from trainer.config import RunSettings
from trainer.dataset import slot_keys
from trainer.job import TABLE, run
from trainer.launch import launch
from trainer.summary import Summary

BATCH, RANGE_ROWS = 4, 40
STEPS, EVERY = 1000, 200
"""Steps of all trainers together, and how many pass between two blows."""

VALUES: dict[str, object] = {
    "format": "libsvm",
    "model": "lr",
    "optimizer": "adam:lr=0.001",  # which counts a row's updates
    "initializer": "zeros",
    "batch_size": BATCH,
    "device": "cpu",
    "threads": 1,
    "lease_s": 1.5,
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """Return what makes a file in which row i has the id i and no other."""
    monkeypatch.chdir(tmp_path)

    def write(rows: int) -> str:
        path = tmp_path / "rows.libsvm"
        path.write_text("".join(f"{i % 2} {i}:1\n" for i in range(rows)), encoding="utf-8")
        return str(path)

    return write


def times_trained(ps: str, rows: int) -> np.ndarray:
    """Return how often each row of the data was trained on."""
    keys = slot_keys(np.arange(rows)[:, None], np.zeros(1, np.int64)).reshape(-1)
    with pserver.connect(ps) as client:
        states = [client.inspect(TABLE, int(key)).state for key in keys]
    return np.array([int(state["t"][0]) for state in states])


def launched_trainers() -> dict[int, psutil.Process]:
    """Return the trainers that run on this process's behalf, by number."""
    found = {}
    for child in psutil.Process().children():
        try:
            flags = [word for word in child.cmdline() if word.startswith("--trainer-id=")]
        except psutil.Error:
            continue
        if flags:
            found[int(flags[0].partition("=")[2])] = child
    return found


class Watcher:
    """A thread that looks at the job beside it, and strikes; its errors are raised at the end."""

    def __init__(self, work: Callable[["Watcher"], None]) -> None:
        """Start it."""
        self.is_over = threading.Event()
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:  # noqa: BLE001 - raised by ``end``
            self._error = error

    def end(self) -> None:
        """Say that the job is over, and wait for the thread."""
        self.is_over.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def steps(self, ps: str) -> Iterator[int]:
        """Yield the steps that shard 0 has applied, again and again until the job is over."""
        settings = pserver.ClientSettings(timeout_s=2.0, try_timeout_s=1.0)
        while not self.is_over.wait(0.02):
            try:
                with pserver.connect(ps, settings=settings, connect_s=1.0) as client:
                    tables = client.stats()[0].tables
            except pserver.PserverError:  # it is being restarted
                continue
            yield max((table.version for table in tables), default=0)


def launched(path: str, ps: str, **values: object) -> Summary:
    """Run all trainers of a job to their end."""
    settings = RunSettings.make({**VALUES, "data": path, "ps": ps, **values}, origins={})
    return launch(settings, environ=os.environ)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nothing_is_lost_when_trainers_and_servers_are_killed(
    data: Callable[[int], str], tmp_path: Path
) -> None:
    """1,000 steps; each 200, one of 4 trainers is killed for good and a server killed and started again.

    Each row was trained on, and again only those of ranges that a dead trainer held; the summary
    says who died.
    """
    chance = random.Random(7)
    rows = STEPS * BATCH
    with ExitStack() as stack:
        servers = []
        for shard in range(2):
            (folder := tmp_path / f"shard-{shard}").mkdir()
            place = ("--shard", str(shard), "--shards", "2")
            servers.append(stack.enter_context(Killed(folder, *place)))
        ps = ",".join(server.endpoint for server in servers)
        dead: list[int] = []

        def strike(watcher: Watcher) -> None:
            due = EVERY
            for steps in watcher.steps(ps):
                if steps < due:
                    continue
                due += EVERY
                chance.choice(servers).kill()
                alive = launched_trainers()
                if len(alive) > 2:
                    number = chance.choice(sorted(alive))
                    alive[number].send_signal(signal.SIGKILL)
                    dead.append(number)

        watcher = Watcher(strike)
        summary = launched(
            data(rows), ps, mode="async", trainers=4, data_mode="dynamic", range_rows=RANGE_ROWS
        )
        watcher.end()
        times = times_trained(ps, rows)

    assert sum(server.kills for server in servers) >= 3
    assert len(dead) == 2
    assert summary.trainers == 4 - len(dead)
    for number in dead:
        told = f"trainer {number} was killed by SIGKILL"
        assert any(told in warning for warning in summary.warnings), summary.warnings
    assert times.min() == 1
    again = np.unique(np.flatnonzero(times > 1) // RANGE_ROWS)
    assert len(again) <= 2 * len(dead)  # one that it trains on, and one read ahead


def kill_when_begun(ps: str, number: int, steps: int) -> Watcher:
    """Have a trainer killed once the job has come that far."""

    def strike(watcher: Watcher) -> None:
        for done in watcher.steps(ps):
            if done >= steps:
                launched_trainers()[number].send_signal(signal.SIGKILL)
                return

    return Watcher(strike)


@pytest.mark.parametrize(
    ("mode", "knobs"),
    [
        ("sync", {"on_missing": "drop", "barrier_timeout": 2.0}),
        pytest.param("async", {}, marks=pytest.mark.slow),
        pytest.param("geo", {"k_steps": 5}, marks=pytest.mark.slow),
    ],
)
def test_a_launch_goes_on_without_a_killed_trainer(
    start: Start, data: Callable[[int], str], mode: str, knobs: dict[str, object]
) -> None:
    """Dropped in sync, not waited for elsewhere: the other one trains on all of its share."""
    rows, ps = 1600, endpoints(start_cluster(start, 2))
    watcher = kill_when_begun(ps, 1, 10)

    summary = launched(data(rows), ps, mode=mode, trainers=2, **knobs)

    watcher.end()
    assert summary.trainers == 1
    assert summary.samples == rows / 2
    (told,) = (one for one in summary.warnings if "trainer 1 was killed by SIGKILL" in one)
    assert "the rest of its share was not trained on" in told


@pytest.mark.slow
def test_a_trainer_that_is_waited_for_may_be_started_again(
    start: Start, data: Callable[[int], str]
) -> None:
    """With on_missing wait the job stands until somebody starts the dead trainer again, then ends."""
    rows = 800
    path, ps = data(rows), endpoints(start_cluster(start, 2))
    job = {"mode": "sync", "trainers": 2, "on_missing": "wait", "barrier_timeout": 1.0}

    def strike(watcher: Watcher) -> None:
        for done in watcher.steps(ps):
            if done >= 10:
                launched_trainers()[1].send_signal(signal.SIGKILL)
                again = {**VALUES, **job, "data": path, "ps": ps, "trainer_id": 1}
                assert run(RunSettings.make(again, origins={})).samples == rows / 2
                return

    watcher = Watcher(strike)
    summary = launched(path, ps, **job)
    watcher.end()

    assert (summary.trainers, summary.samples) == (1, rows / 2)
    assert any("trainer 1 was killed by SIGKILL" in one for one in summary.warnings)
