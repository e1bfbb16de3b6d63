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

from tests.integration.servers import Start, endpoints, start_cluster
from tests.unit.collective.test_meeting import free_port
from tests.unit.trainer.models import criteo_line

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

RANK = Path(__file__).with_name("rank_process.py")
WAIT_S = 250.0
WORLD_SIZE = 3
LOST = 1


@contextlib.contextmanager
def processes(commands: list[list[str]], folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Run Python processes, which are ended with the context."""
    with contextlib.ExitStack() as stack:
        started = []
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
            started.append(process)
            assert process.stdout is not None
            stack.callback(process.stdout.close)
            stack.callback(process.wait, WAIT_S)
            stack.callback(process.kill)
        yield started


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("moment", ["before_init", "after_init", "in_the_middle"])
def test_h6_a_rank_that_ends_is_named_by_the_others(moment: str, lost: int, tmp_path: Path) -> None:
    """Before it connects, before its first sum, or in the middle of a sum of 100 MB; with the store, or without."""
    place = f"127.0.0.1:{free_port()}"
    own = [str(WORLD_SIZE), place, str(lost), moment]
    ranks = [[str(RANK), str(rank), *own] for rank in range(WORLD_SIZE)]

    with processes(ranks, tmp_path) as started:
        told = [process.communicate(timeout=WAIT_S)[0] for process in started]
        statuses = [process.returncode for process in started]

    assert statuses == [3 if rank == lost else 1 for rank in range(WORLD_SIZE)], told
    for rank in {0, 1, 2} - {lost}:
        assert f"missing [{lost}]" in told[rank]
        assert ("sum of 100 MB" in told[rank]) == (moment != "before_init")


def test_killed_trainer_is_named_by_the_others(start: Start, tmp_path: Path) -> None:
    """One of three trainers with averaged dense parts is killed while they train."""
    (tmp_path / "rows.txt").write_text("".join(map(criteo_line, range(3000))), encoding="utf-8")
    servers = endpoints(start_cluster(start, 1, "--drain-s", "0"))
    words = ["-m", "trainer", "run", "--trainers", "3", "--ps", servers, "--dense", "allreduce"]
    words += ["--data", "rows.txt", "--model", "fm", "--dim", "4", "--device", "cpu"]
    words += ["--threads", "1", "--epochs", "1000", "--batch-size", "20", "--allreduce", "ring"]
    words += ["--master", f"127.0.0.1:{free_port()}", "--json-progress"]

    with processes([[*words, f"--trainer-id={n}"] for n in range(3)], tmp_path) as started:
        lost = started[LOST]
        assert lost.stdout is not None
        next(line for line in lost.stdout if '"step":' in line)
        lost.kill()
        told = [process.communicate(timeout=WAIT_S)[0] for process in started if process != lost]

    for text, process in zip(told, (started[0], started[2]), strict=True):
        assert process.returncode == 1
        assert "bucket 0 of 1 in group 'world'" in text
        assert "rank 1 of the run went away" in text


def test_launcher_names_the_trainer_that_was_killed(tmp_path: Path) -> None:
    """With all trainers started together, the first that failed is told, and nothing is left."""
    (tmp_path / "rows.txt").write_text("".join(map(criteo_line, range(3000))), encoding="utf-8")
    words = ["-m", "trainer", "run", "--trainers", "3", "--dense", "allreduce", "--mode", "sync"]
    words += ["--data", "rows.txt", "--model", "fm", "--dim", "4", "--device", "cpu"]
    words += ["--epochs", "1000", "--batch-size", "20", "--allreduce", "ring"]

    with processes([words], tmp_path) as (launcher,):
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if "3 trainers, steps" in line)
        (lost,) = (
            child
            for child in psutil.Process(launcher.pid).children()
            if f"--trainer-id={LOST}" in child.cmdline()
        )
        lost.send_signal(signal.SIGKILL)
        text, _ = launcher.communicate(timeout=WAIT_S)

    assert launcher.returncode == 1
    assert "trainer run: trainer 1 was killed by SIGKILL" in text.splitlines()[-1]
    assert text.splitlines()[-1].endswith("the others were ended")
