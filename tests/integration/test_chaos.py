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
from tests.integration.proxy import Proxy
from tests.integration.servers import Start, endpoints, start_cluster
from trainer.config import RunSettings
from trainer.data import share
from trainer.dataset import slot_keys
from trainer.job.model import TABLE
from trainer.job.run import run
from trainer.job.summary import Summary
from trainer.launch.local import launch

BATCH, RANGE_ROWS = 4, 40
STEPS, TRAINERS, SHARDS = 1000, 6, 2
"""Steps of all trainers together; how many trainers and servers a chaos begins with."""

EVERY_S, DELAY_S = 10.0, 0.2
"""Seconds between two blows; the longest that a link holds a chunk back, so that 1,000 steps take a minute and more."""

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
    """Return how often each row of the data was trained on, as the servers have it.

    A shard that was struck when the trainers had just ended has not even the table.
    """
    spec = pserver.TableSpec(
        name=TABLE, dim=1, optimizer=str(VALUES["optimizer"]), initializer="zeros"
    )
    with pserver.connect(ps) as client:
        client.create_table(spec)
        states = [client.inspect(TABLE, int(key)).state for key in row_keys(rows)]
    return np.array([int(state["t"][0]) if state else 0 for state in states])


def row_keys(rows: int) -> np.ndarray:
    """Return the key that each row of the data has."""
    return slot_keys(np.arange(rows)[:, None], np.zeros(1, np.int64)).reshape(-1)


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


class Chaos:
    """Servers behind slow links, and blows at times: a server is killed and started again, a trainer killed for good.

    Two trainers are left to the end.

    Attributes:
        servers: of the job.
        ps: where trainers reach them.
        dead: the trainers that were killed, in order.
        blows: that there were.
    """

    def __init__(self, stack: ExitStack, folder: Path, *, journal: bool) -> None:
        """Start the servers."""
        self._chance = random.Random(7)
        self.servers = []
        for shard in range(SHARDS):
            (own := folder / f"shard-{shard}").mkdir()
            place = ("--shard", str(shard), "--shards", str(SHARDS))
            self.servers.append(stack.enter_context(Killed(own, *place, journal=journal)))
        far = [
            stack.enter_context(Proxy(server.endpoint, delay_s=DELAY_S)) for server in self.servers
        ]
        self.ps = ",".join(proxy.endpoint for proxy in far)
        self.direct = ",".join(server.endpoint for server in self.servers)
        self.dead: list[int] = []
        self.blows = 0

    def strike(self, watcher: Watcher) -> None:
        """Once training has begun, strike every ``EVERY_S`` seconds until the job is over."""
        next(steps for steps in watcher.steps(self.direct) if steps)
        while not watcher.is_over.wait(EVERY_S):
            alive = launched_trainers()
            if not alive:  # all have ended: what is lost now, nobody can tell
                return
            self._chance.choice(self.servers).kill()
            if len(alive) > 2:
                number = self._chance.choice(sorted(alive))
                alive[number].send_signal(signal.SIGKILL)
                self.dead.append(number)
            self.blows += 1


def check_told(summary: Summary, chaos: Chaos) -> None:
    """Assert that there were blows, and that the summary tells of each trainer that died."""
    assert chaos.blows >= 4
    assert summary.trainers == TRAINERS - len(chaos.dead)
    for number in chaos.dead:
        told = f"trainer {number} was killed by SIGKILL"
        assert any(told in warning for warning in summary.warnings), summary.warnings


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_is_lost_when_trainers_and_servers_are_killed(
    data: Callable[[int], str], tmp_path: Path
) -> None:
    """1,000 steps; every 10 s one of the trainers is killed for good and a server with a journal restarted.

    Each row was trained on, and again only those of ranges that a dead trainer held; the summary
    says who died.
    """
    rows = STEPS * BATCH
    with ExitStack() as stack:
        chaos = Chaos(stack, tmp_path, journal=True)
        watcher = Watcher(chaos.strike)
        how = {"mode": "async", "trainers": TRAINERS, "data_mode": "dynamic"}
        summary = launched(data(rows), chaos.ps, **how, range_rows=RANGE_ROWS, prefetch=0)
        watcher.end()
        times = times_trained(chaos.direct, rows)

    check_told(summary, chaos)
    assert summary.lost == []
    assert times.min() == 1
    again = np.unique(np.flatnonzero(times > 1) // RANGE_ROWS)
    assert len(again) <= 2 * len(chaos.dead)  # one that it trains on, and one read ahead


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_is_lost_is_told_when_servers_come_back_empty(
    data: Callable[[int], str], tmp_path: Path
) -> None:
    """The same without journals: the job ends, and the summary counts the pushes that were lost.

    No row counts twice. Of the batches of the trainers that lived, those whose rows of a shard were not
    trained on are as many as the pushes that the summary says this shard lost; a batch without rows there
    may be one of them or not.
    """
    rows = STEPS * BATCH
    with ExitStack() as stack:
        chaos = Chaos(stack, tmp_path, journal=False)
        watcher = Watcher(chaos.strike)
        how = {"mode": "async", "trainers": TRAINERS, "on_restart": "go_on"}
        summary = launched(data(rows), chaos.ps, **how, prefetch=0)
        watcher.end()
        times = times_trained(chaos.direct, rows)

    check_told(summary, chaos)
    assert times.max() == 1
    shards = pserver.shard_of(row_keys(rows), SHARDS)
    lived = [number for number in range(TRAINERS) if number not in chaos.dead]
    for shard, one in enumerate(summary.lost):
        lost = keyless = 0
        for begin, end in (share(rows, number, TRAINERS) for number in lived):
            for first in range(begin, end, BATCH):
                batch = slice(first, min(first + BATCH, end))
                trained = times[batch][shards[batch] == shard]
                assert trained.min(initial=1) == trained.max(initial=0) or not trained.size
                keyless += not trained.size
                lost += trained.size > 0 and trained.max() == 0
        assert lost <= one["pushes"] <= lost + keyless
        assert bool(lost) <= one["restarts"] <= chaos.servers[shard].kills
        text = f"{one['pushes']} acknowledged pushes to it are lost"
        assert not one["restarts"] or any(text in warning for warning in summary.warnings)


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
        ("sync", {"on_missing": "drop", "barrier_timeout": 5.0, "lease_s": 5.0}),
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
