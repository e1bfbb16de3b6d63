"""The StatefulSet of ``deploy/kubernetes`` played in network namespaces: a pod is lost, and comes back elsewhere."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY
from tests.deploy.namespaces import Pod, net
from tests.integration.servers import Server
from tests.unit.trainer.models import criteo_line

ROWS, EPOCHS, BATCH = 300, 60, 25
ROUNDS = EPOCHS * ROWS // 2 // BATCH
JOURNAL_BYTES = 1 << 16  # in the middle of training: about 20 rounds
LIMIT_S = 400.0


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the settings that all pods get: those of the manifests."""
    monkeypatch.chdir(tmp_path)
    text = "".join(map(criteo_line, range(ROWS)))
    Path("train.txt").write_text(text, encoding="utf-8")
    settings = (DEPLOY / "kubernetes" / "base" / "job.toml").read_text(encoding="utf-8")
    Path("job.toml").write_text(settings, encoding="utf-8")
    return Path("job.toml")


def serve(stack: contextlib.ExitStack, pod: Pod, job: Path, shard: int) -> Server:
    """Start the server of a pod; its index comes from the pod's name, its folders are those of its claim."""
    folders = [f"--journal=journal-{shard}", "--checkpoint-dir=checkpoints"]
    command = [*pod.command, sys.executable, "-m", "pserver", "serve"]
    server = Server("--shard=auto", f"--config={job}", *folders, command=command)
    stack.callback(server.end)
    return server


def train(stack: contextlib.ExitStack, pod: Pod, job: Path, number: int) -> "subprocess.Popen[str]":
    """Start a trainer in a pod."""
    words = [f"--config={job}", f"--trainer-id={number}", "--mode=sync", "--deterministic"]
    words += ["--data=train.txt", "--model=lr", f"--batch-size={BATCH}", f"--epochs={EPOCHS}"]
    process = subprocess.Popen(
        [
            *pod.command,
            sys.executable,
            "-m",
            "trainer",
            "run",
            *words,
            "--device=cpu",
            "--threads=1",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.kill()
        process.communicate()

    stack.callback(end)
    return process


def versions(pod: Pod, ps: str) -> list[int]:
    """Return how many rounds each shard has applied to each table."""
    command = [*pod.command, sys.executable, "-m", "pserver", "ls", "--ps", ps, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    tables = json.loads(done.stdout)["tables"]
    return [shard["version"] for table in tables for shard in table["shards"]]


def wait_for_journal(shard: int) -> None:
    """Return once a shard has recorded some rounds."""
    until = time.monotonic() + LIMIT_S
    while sum(f.stat().st_size for f in Path(f"journal-{shard}").glob("*.journal")) < JOURNAL_BYTES:
        assert time.monotonic() < until
        threading.Event().wait(0.01)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(1200)
def test_i1_a_pod_comes_back_under_its_name_at_another_address(job: Path) -> None:
    """Shard 1 is killed while it trains and its address is gone; trainers go on, and every round counts once."""
    at = {"pserver-0.pserver": "10.78.0.10", "pserver-1.pserver": "10.78.0.11"}
    with net() as cluster, contextlib.ExitStack() as stack:
        pods = [cluster.add(address, host_name=name.split(".")[0]) for name, address in at.items()]
        trainers = cluster.add("10.78.0.20", host_name="trainer-0")
        trainers.knows(at)
        servers = [serve(stack, pod, job, shard) for shard, pod in enumerate(pods)]
        running = [train(stack, trainers, job, number) for number in range(2)]
        wait_for_journal(1)

        servers[1].end()
        pods[1].remove()
        at["pserver-1.pserver"] = "10.78.0.12"
        pod = cluster.add("10.78.0.12", host_name="pserver-1")
        trainers.knows(at)
        serve(stack, pod, job, 1)

        said = [process.communicate(timeout=LIMIT_S)[1] for process in running]
        assert [process.returncode for process in running] == [0, 0], said
        ps = ",".join(f"{name}:6170" for name in at)
        assert set(versions(trainers, ps)) == {ROUNDS}
