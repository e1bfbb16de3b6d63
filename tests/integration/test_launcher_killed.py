"""A launcher that is killed, by the system for lack of memory or by hand, can end nothing that it started."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.integration.forked import Piped
from tests.unit.trainer.models import criteo_line
from trainer.launch.local import servers_here

pytestmark = pytest.mark.integration

WAIT_S = 60.0
JOB = [
    "--data",
    "train.txt",
    "--model",
    "fm",
    "--batch-size",
    "25",
    "--epochs",
    "1000000",
    "--device",
    "cpu",
]


@contextlib.contextmanager
def watched(launcher: int) -> Iterator[dict[int, int]]:
    """Give the processes under a launcher by file descriptors that become readable at their end."""
    found = psutil.Process(launcher).children(recursive=True)
    files = {os.pidfd_open(process.pid): process.pid for process in found}
    try:
        yield files
    finally:
        for file in files:
            if not select.select([file], [], [], 0)[0]:
                signal.pidfd_send_signal(file, signal.SIGKILL)
            os.close(file)


def left(files: dict[int, int]) -> list[int]:
    """Wait for the ends of processes, and return those that did not come."""
    waiting, until = dict(files), time.monotonic() + WAIT_S
    while waiting:
        ended = select.select(list(waiting), [], [], max(0.0, until - time.monotonic()))[0]
        if not ended:
            break
        for file in ended:
            del waiting[file]
    return list(waiting.values())


def hold_servers(words: Sequence[str]) -> int:
    """Be a launcher that has a server until it is killed."""
    with servers_here(1, Path(words[0]), os.environ, own={}) as ps:
        os.write(1, f"{ps}\n".encode())
        signal.pause()
    return 0


def test_e4_a_server_ends_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    """It is gone, though nobody told it to end."""
    launcher = Piped(hold_servers, str(tmp_path))
    try:
        assert launcher.stdout.readline().count(":") == 1
        with watched(launcher.pid) as servers:
            assert len(servers) == 1

            launcher.kill()

            assert left(servers) == []
    finally:
        launcher.end(WAIT_S)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "first_step"),
    [
        (["run", "--trainers", "2", *JOB], "trainers, steps"),
        (["launch", "--worker_num", "2", "--server_num", "2", "job.toml", *JOB], "step "),
    ],
    ids=["run", "launch"],
)
def test_trainers_and_servers_end_with_a_launcher_that_is_killed(
    how: list[str], first_step: str, tmp_path: Path
) -> None:
    """While they train, however they were launched."""
    text = "".join(map(criteo_line, range(300)))
    (tmp_path / "train.txt").write_text(text, encoding="utf-8")
    (tmp_path / "job.toml").write_text("[run]\n", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer", *how],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert process.stdout is not None
        assert any(first_step in line for line in process.stdout)
        with watched(process.pid) as started:
            assert len(started) >= 4

            process.kill()

            assert left(started) == []
    finally:
        process.kill()
        process.communicate()
