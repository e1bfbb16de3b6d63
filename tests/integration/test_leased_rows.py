"""Training on leased ranges with real trainers that die: no row is lost, and what is repeated is known."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import pserver
from tests.integration import forked
from tests.integration.servers import WAIT_S, Server, Start, endpoints, start_cluster
from trainer.config import RunSettings
from trainer.dataset import slot_keys
from trainer.job.model import TABLE
from trainer.job.run import run
from trainer.loop import StepReport

ROWS, BATCH, RANGE_ROWS = 400, 10, 50

VALUES: dict[str, object] = {
    "format": "libsvm",
    "model": "lr",
    "optimizer": "adam:lr=0.001",  # which counts a row's updates
    "initializer": "zeros",
    "batch_size": BATCH,
    "data_mode": "dynamic",
    "range_rows": RANGE_ROWS,
    "trainers": 2,
    "lease_s": 1.5,
    "device": "cpu",
    "threads": 1,
}


def be_killed(words: Sequence[str]) -> int:
    """Be trainer 0, killed after a step."""
    path, ps, step = words

    def die(report: StepReport) -> None:
        if report.step == int(step):
            os.kill(os.getpid(), signal.SIGKILL)

    own = {"data": path, "ps": ps, "trainer_id": 0}
    run(RunSettings.make({**VALUES, **own}, origins={}), on_step=die)
    return 0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a file in which row i has the id i and no other."""
    path = tmp_path / "rows.libsvm"
    path.write_text("".join(f"{i % 2} {i}:1\n" for i in range(ROWS)), encoding="utf-8")
    return path


def times_trained(ps: str) -> np.ndarray:
    """Return how often each row of the data was trained on: the updates that its key's row counts."""
    keys = slot_keys(np.arange(ROWS)[:, None], np.zeros(1, np.int64)).reshape(-1)
    with pserver.connect(ps) as client:
        states = [client.inspect(TABLE, int(key)).state for key in keys]
    return np.array([int(state["t"][0]) for state in states])


def die_at(step: int, data: Path, cluster: list[Server]) -> None:
    """Run trainer 0 in a process that kills itself after a step."""
    done = forked.run(be_killed, str(data), endpoints(cluster), str(step), timeout=2 * WAIT_S)
    assert done.returncode == -signal.SIGKILL, done.stderr


def run_rest(data: Path, cluster: list[Server]) -> int:
    """Be trainer 1 to the end, and return the rows that it trained on."""
    own = {"data": str(data), "ps": endpoints(cluster), "trainer_id": 1}
    return run(RunSettings.make({**VALUES, **own}, origins={})).samples


def test_rows_are_trained_on_once_if_a_trainer_dies_between_ranges(
    start: Start, data: Path
) -> None:
    """A trainer killed after it reported two ranges has trained on exactly those; each row counts once."""
    cluster = start_cluster(start, 2)
    die_at(2 * RANGE_ROWS // BATCH, data, cluster)

    rest = run_rest(data, cluster)

    assert rest == ROWS - 2 * RANGE_ROWS
    assert times_trained(endpoints(cluster)).tolist() == [1] * ROWS


def test_no_row_is_lost_if_a_trainer_dies_within_a_range(start: Start, data: Path) -> None:
    """Killed two steps into its third range, only what it pushed of that range counts twice."""
    cluster = start_cluster(start, 2)
    die_at(2 * RANGE_ROWS // BATCH + 2, data, cluster)

    rest = run_rest(data, cluster)

    assert rest == ROWS - 2 * RANGE_ROWS
    times = times_trained(endpoints(cluster))
    begun = slice(2 * RANGE_ROWS, 2 * RANGE_ROWS + 2 * BATCH)
    assert set(times[begun]) <= {1, 2}
    assert set(np.delete(times, np.arange(ROWS)[begun])) == {1}
