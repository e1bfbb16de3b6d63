"""Ranks that die: the others end long before the limit of an operation, and say who it was. Real processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration import rank_process
from tests.integration.forked import Main, Piped
from tests.integration.servers import Start, endpoints, start_cluster
from tests.unit.collective.test_meeting import free_port
from tests.unit.trainer.models import criteo_line
from trainer.cli import main as cli

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

WAIT_S = 250.0
WORLD_SIZE = 3
LOST = 1


@contextlib.contextmanager
def forks(main: Main, commands: list[list[str]]) -> Iterator[list[Piped]]:
    """Run processes, which are ended with the context."""
    with contextlib.ExitStack() as stack:
        started = []
        for command in commands:
            started.append(Piped(main, *command))
            stack.callback(started[-1].end, WAIT_S)
        yield started


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("moment", ["before_init", "after_init", "in_the_middle"])
def test_h6_a_rank_that_ends_is_named_by_the_others(moment: str, lost: int) -> None:
    """Before it connects, before its first sum, or in the middle of a sum of 100 MB; with the store, or without."""
    place = f"127.0.0.1:{free_port()}"
    own = [str(WORLD_SIZE), place, str(lost), moment]

    with forks(rank_process.main, [[str(rank), *own] for rank in range(WORLD_SIZE)]) as started:
        told = ["".join(process.communicate(timeout=WAIT_S)) for process in started]
        statuses = [process.returncode for process in started]

    assert statuses == [3 if rank == lost else 1 for rank in range(WORLD_SIZE)], told
    for rank in {0, 1, 2} - {lost}:
        assert f"missing [{lost}]" in told[rank]
        assert ("sum of 100 MB" in told[rank]) == (moment != "before_init")


def test_killed_trainer_is_named_by_the_others(start: Start, tmp_path: Path) -> None:
    """One of three trainers with averaged dense parts is killed while they train."""
    (tmp_path / "rows.txt").write_text("".join(map(criteo_line, range(3000))), encoding="utf-8")
    servers = endpoints(start_cluster(start, 1, "--drain-s", "0"))
    words = ["run", "--trainers", "3", "--ps", servers, "--dense", "allreduce"]
    words += [
        "--data",
        str(tmp_path / "rows.txt"),
        "--model",
        "fm",
        "--dim",
        "4",
        "--device",
        "cpu",
    ]
    words += ["--threads", "1", "--epochs", "1000", "--batch-size", "20", "--allreduce", "ring"]
    words += ["--master", f"127.0.0.1:{free_port()}", "--json-progress"]

    with forks(cli.main, [[*words, f"--trainer-id={n}"] for n in range(3)]) as started:
        lost = started[LOST]
        next(line for line in lost.stdout if '"step":' in line)
        lost.kill()
        told = ["".join(p.communicate(timeout=WAIT_S)) for p in started if p != lost]

    for text, process in zip(told, (started[0], started[2]), strict=True):
        assert process.returncode == 1
        assert "bucket 0 of 1 in group 'world'" in text
        assert "rank 1 of the run went away" in text


def test_launcher_names_the_trainer_that_was_killed(tmp_path: Path) -> None:
    """With all trainers started together, the first that failed is told, and nothing is left."""
    (tmp_path / "rows.txt").write_text("".join(map(criteo_line, range(3000))), encoding="utf-8")
    words = ["run", "--trainers", "3", "--dense", "allreduce", "--mode", "sync"]
    words += ["--data", "rows.txt", "--model", "fm", "--dim", "4", "--device", "cpu"]
    words += ["--epochs", "1000", "--batch-size", "20", "--allreduce", "ring"]

    launcher = subprocess.Popen(
        [sys.executable, "-m", "trainer", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if "3 trainers, steps" in line)
        (lost,) = (
            child
            for child in psutil.Process(launcher.pid).children()
            if f"--trainer-id={LOST}" in child.cmdline()
        )
        lost.send_signal(signal.SIGKILL)
        text, _ = launcher.communicate(timeout=WAIT_S)
    finally:
        launcher.kill()
        launcher.communicate()

    assert launcher.returncode == 1
    assert "trainer run: trainer 1 was killed by SIGKILL" in text.splitlines()[-1]
    assert text.splitlines()[-1].endswith("the others were ended")
