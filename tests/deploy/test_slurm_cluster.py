"""``deploy/slurm`` on a real Slurm of two nodes, each an address of this machine. Needs slurm-wlm and munge."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.deploy.manifests import DEPLOY
from tests.deploy.slurm_cluster import NODES, Slurm, cluster, is_here, wait_until
from tests.deploy.test_slurm import SCRIPT, SMALL, free_port
from tests.unit.trainer.models import criteo_line

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_here(), reason="needs Debian's slurm-wlm and munge"),
]
ROWS = 120
FOR_EVER = 'epochs = 1000000\ncheckpoint_every = "1s"\n'

Submit = Callable[..., str]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Return a cluster."""
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def submit(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submit]:
    """Return what submits the script from a folder with a small job, and gives the job's number; all of it ends."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("pserver", "trainer"):
        text = f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n'
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("".join(map(criteo_line, range(ROWS))), encoding="utf-8")
    jobs: list[str] = []

    def submit(settings: str = "", **variables: str) -> str:
        text = (DEPLOY / "slurm" / "job.toml").read_text(encoding="utf-8")
        if "checkpoint_every" in settings:
            text = text.partition("checkpoint_every")[0]
        Path("job.toml").write_text(f"{text}{SMALL}{settings}", encoding="utf-8")
        environ = {
            **slurm.environ,
            "PATH": f"{folder}:{slurm.environ['PATH']}",
            "PYTHONPATH": f"{DEPLOY.parent}:{os.environ.get('PYTHONPATH', '')}",
            "JOB": "job.toml",
            "TRAINERS": "2",
            "PORT": str(free_port()),
            **variables,
        }
        words = ["sbatch", "--parsable", "--output=said-%j.txt", str(SCRIPT)]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
        jobs.append(done.stdout.strip())
        return jobs[-1]

    yield submit
    for job in jobs:
        slurm.ask("scancel", job)
    wait_until(lambda: not processes(), what="processes of a job that has ended run on")


def processes(*words: str) -> list[psutil.Process]:
    """Return the servers and trainers of this folder whose command has some words."""
    here = str(Path.cwd())
    found = psutil.process_iter(["cwd", "cmdline"])
    mine = [p for p in found if p.info["cwd"] == here and p.pid != os.getpid()]
    return [p for p in mine if all(word in (p.info["cmdline"] or []) for word in words)]


def text_of(path: str) -> str:
    """Return the text of a file; nothing if there is none."""
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


def wait_trained(job: str) -> None:
    """Return once a checkpoint of a job is there."""
    wait_until(
        Path(f"checkpoints-{job}", "LATEST").exists, what=text_of(f"logs-{job}/trainer-0.log")
    )


def test_a_job_trains_and_its_servers_end_in_order(slurm: Slurm, submit: Submit) -> None:
    """It completes with status 0, a server on each node, and all of their last words in the logs."""
    job = submit()

    ended = slurm.wait_job(job, "COMPLETED", "FAILED", "CANCELLED")

    said = text_of(f"said-{job}.txt")
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), said
    for shard, node in enumerate(NODES):
        log = text_of(f"logs-{job}/server-{shard}.log")
        assert f"shard {shard} of 2 ready on {node}:" in log
        assert "event='drained'" in log
    for trainer in range(2):
        assert "60 rows, 3 steps" in text_of(f"logs-{job}/trainer-{trainer}.log")
    assert "Killed" not in said


def test_a_setting_that_is_refused_is_the_jobs_status(slurm: Slurm, submit: Submit) -> None:
    """A trainer's status 2, give up, is Slurm's ExitCode, and its words are in its log."""
    job = submit('optimizer = "adagard"\n')

    ended = slurm.wait_job(job, "COMPLETED", "FAILED", "CANCELLED")

    words = "".join(text_of(f"logs-{job}/trainer-{number}.log") for number in range(2))
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "2:0"), words
    assert "did you mean 'adagrad'?" in words


def test_a_killed_server_ends_the_job_and_another_goes_on_there(
    slurm: Slurm, submit: Submit
) -> None:
    """Status 1 and a word of why; one with its checkpoints loads them, until it is cancelled and drains."""
    first = submit(FOR_EVER)
    wait_trained(first)
    (server,) = processes("serve", "--shard=1")

    server.send_signal(signal.SIGKILL)

    ended = slurm.wait_job(first, "COMPLETED", "FAILED", "CANCELLED")
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "1:0")
    assert "a server ended with status 137 before the trainers" in text_of(f"said-{first}.txt")
    wait_until(lambda: not processes("serve") and not processes("run"), what="processes run on")
    second = submit(FOR_EVER, CHECKPOINTS=f"checkpoints-{first}")
    log = f"logs-{second}/server-1.log"
    wait_until(lambda: f"restored checkpoints-{first}/v" in text_of(log), what="nothing restored")
    wait_until(lambda: "step " in text_of(f"logs-{second}/trainer-0.log"), what="nothing trained")
    slurm.ask("scancel", second)
    slurm.wait_job(second, "CANCELLED")
    wait_until(lambda: "event='drained'" in text_of(log), what="the server did not drain")


def test_a_requeued_job_goes_on_behind_its_checkpoint(slurm: Slurm, submit: Submit) -> None:
    """What Slurm does when a node fails: the same number again, in the same folders, with the rows that there were."""
    job = submit(FOR_EVER)
    wait_trained(job)

    slurm.ask("scontrol", "requeue", job)

    log = f"logs-{job}/server-0.log"
    wait_until(lambda: f"restored checkpoints-{job}/v" in text_of(log), what=str(slurm.job(job)))
    assert slurm.wait_job(job, "RUNNING")["Restarts"] == "1"
