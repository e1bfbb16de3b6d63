"""``deploy/slurm``: its batch script does what it says, with stand-ins for Slurm's commands and real processes."""

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, run_settings, serve_settings
from tests.unit.trainer.models import criteo_line

SCRIPT = DEPLOY / "slurm" / "train.sbatch"
STAND_IN = Path(__file__).with_name("slurm_stand_in.py")
WAIT_S = 400.0
HOSTS = ("127.0.0.1", "127.0.0.2")
ROWS = 120
SMALL = 'data = "train.txt"\nmodel = "lr"\nbatch_size = 20\ndevice = "cpu"\nthreads = 1\n'

Submit = Callable[..., tuple[int, str]]


def free_port() -> int:
    """Return a port that is free on both hosts, and the next one too."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000, 2):
        try:
            for host in HOSTS:
                for each in (port, port + 1):
                    with socket.socket() as probe:
                        probe.bind((host, each))
        except OSError:
            continue
        return port
    raise AssertionError("no two ports are free")


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Return what submits the script, in an allocation of two nodes: its status, and what it said."""
    folder = tmp_path / "bin"
    folder.mkdir()
    text = f"#!{sys.executable}\n{STAND_IN.read_text(encoding='utf-8')}"
    for name in ("srun", "scancel", "scontrol"):
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("pserver", "trainer"):
        text = f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n'
        (folder / name).write_text(text, encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.chdir(tmp_path)
    text = "".join(map(criteo_line, range(ROWS)))
    Path("train.txt").write_text(text, encoding="utf-8")
    settings = (DEPLOY / "slurm" / "job.toml").read_text(encoding="utf-8")
    Path("job.toml").write_text(settings + SMALL, encoding="utf-8")

    def submit(**variables: str) -> tuple[int, str]:
        environ = {
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": f"{DEPLOY.parent}:{os.environ.get('PYTHONPATH', '')}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
            "TRAINERS": "2",
            "JOB": "job.toml",
            "PORT": str(free_port()),
            **variables,
        }
        job = subprocess.Popen(
            ["bash", str(SCRIPT)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, said = job.communicate(timeout=WAIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing of the job is left
                os.killpg(job.pid, signal.SIGKILL)
        return job.returncode, said

    return submit


def log(name: str) -> str:
    """Return the log of a task of job 7."""
    return Path("logs-7", f"{name}.log").read_text(encoding="utf-8")


def test_each_flag_and_setting_of_the_script_is_one_of_the_product() -> None:
    """The words of both steps, with numbers as Slurm gives them, are settings that go together."""
    text = SCRIPT.read_text(encoding="utf-8").replace("\\\n", " ")
    serving, running = re.findall(r"'(?:pserver|trainer) ([^']+)'", text)
    values = {"$0": "job.toml", "$SLURM_PROCID": "1", "$SLURM_NTASKS": "2"}
    file = DEPLOY / "slurm" / "job.toml"

    def words(line: str, **more: str) -> list[str]:
        for name, value in {**values, **more}.items():
            line = line.replace(f'"{name}"', value).replace(name, value)
        return [word.replace('"', "") for word in line.split()]

    server = serve_settings(
        words(serving, **{"$1": "6170", "$2": "ckpt", "$3": "latest", "$SLURMD_NODENAME": "node2"}),
        file=file,
    )
    trainer = run_settings(
        words(running, **{"$1": "node1:6170,node2:6170", "$2": "node1:6171", "$3": "--resume"}),
        file=file,
    )

    assert (server.shard, server.shards, server.bind) == (1, 2, "node2:6170")
    assert (server.checkpoint_dir, server.restore) == ("ckpt", "latest")
    assert (trainer.trainer_id, trainer.trainers, trainer.resume) == (1, 2, True)
    assert (trainer.ps, trainer.master) == ("node1:6170,node2:6170", "node1:6171")
    assert set(tomllib.loads(file.read_text(encoding="utf-8"))) == {"serve", "run"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.integration
def test_a_job_trains_and_a_requeued_one_goes_on_behind_its_checkpoint(submit: Submit) -> None:
    """Servers on both nodes and trainers by number end well; the same job again has nothing left to train on."""
    Path("job.toml").write_text(
        Path("job.toml").read_text("utf-8").replace('"300s"', "1"), encoding="utf-8"
    )

    first, said = submit()
    assert first == 0, said + log("trainer-0") + log("server-0")
    ready = [re.findall(r"ready on ([\d.]+):", log(f"server-{shard}")) for shard in range(2)]
    again, said = submit()

    assert ready == [[HOSTS[0]], [HOSTS[1]]]
    assert again == 0, said + log("trainer-0")
    assert "restored checkpoints-7/v" in log("server-1")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.integration
def test_a_failure_ends_the_whole_job(submit: Submit) -> None:
    """Settings that a trainer refuses end it, and so does a server that cannot start; nothing runs on without them."""
    good = Path("job.toml").read_text(encoding="utf-8")
    Path("job.toml").write_text(good + 'optimizer = "adagard"\n', encoding="utf-8")
    refused, _ = submit()
    words = log("trainer-0") + log("trainer-1")
    bad = good.replace("drain_s = 10", "drain_s = 10\nread_only = true\njournal = 'x'")
    Path("job.toml").write_text(bad, encoding="utf-8")

    status, said = submit()

    assert refused == 2, words
    assert "did you mean 'adagrad'?" in words
    assert status == 1
    assert "a server ended with status 2 before the trainers" in said
    assert "read_only" in log("server-0") + log("server-1")
    assert submit(SHARDS="3") == (2, "SHARDS must be at most the number of nodes, 2, got 3\n")
