"""Checkpoints of real processes: the flags, kill -9 at any moment of a save, a full disk."""

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pserver
from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.tools import verify
from pserver.cli import main as cli
from tests.integration.servers import WAIT_S, Start, endpoints, servers, start_cluster

pytestmark = pytest.mark.integration

KEYS = np.arange(4000)
SPEC = pserver.TableSpec(name="t", dim=4, optimizer="adagrad", capacity_max=1_000_000)


@pytest.fixture
def start() -> Iterator[Start]:
    with servers() as starter:
        yield starter


def push(client: pserver.Client, value: float = 1.0) -> None:
    client.push("t", KEYS, np.full((KEYS.size, 4), value))


def save_on(client: pserver.Client) -> None:
    """Save until that fails."""
    while True:
        client.checkpoints.save()


def test_d4_training_goes_on_as_our_documents_say_when_servers_are_replaced(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Save, stop all, start three in place of two with --restore, continue: the very numbers of an
    undisturbed run.
    """
    folder = str(tmp_path)
    first = start_cluster(start, 2, "--checkpoint-dir", folder)
    with pserver.connect(endpoints(first)) as client:
        client.create_table(SPEC)
        push(client)
        words = ["checkpoint", "save", "--ps", endpoints(first), "--wait", "--json"]
        assert cli.main(words) == 0
        saved = json.loads(capsys.readouterr().out)
        push(client, 0.5)
        expected = client.peek("t", KEYS)
    for server in first:
        server.end()

    second = [
        start("--shard", str(i), "--shards", "3", "--checkpoint-dir", folder, "--restore", "latest")
        for i in range(3)
    ]
    for server in second:
        line = server.wait_line(r"restored (\S+): tables 1, rows ([\d,]+) of 4,000 here, optimizer")
        assert line[1] == f"{folder}/{saved['version']}"
        server.wait_ready()
    with pserver.connect(endpoints(second)) as client:
        push(client, 0.5)
        assert np.array_equal(client.peek("t", KEYS), expected)


def test_d10_a_server_that_comes_back_alone_is_told_and_all_go_back_together(
    start: Start, tmp_path: Path
) -> None:
    """One of three is restored alone: a push fails and names it, its count shows that it is behind, and a load
    takes all of them back to the version.
    """
    cluster = start_cluster(start, 3, "--checkpoint-dir", str(tmp_path))
    client = pserver.connect(endpoints(cluster))
    client.create_table(SPEC)
    push(client)
    client.checkpoints.save()
    saved = client.peek("t", KEYS)
    push(client, 0.5)
    cluster[1].end()
    flags = ("--shard", "1", "--shards", "3", "--bind", cluster[1].endpoint)
    start(*flags, "--checkpoint-dir", str(tmp_path), "--restore", "latest").wait_ready()

    with pytest.raises(pserver.RestartedError, match=cluster[1].endpoint):
        push(client)
    client.close(flush=False)

    with pserver.connect(endpoints(cluster)) as anew:
        versions = [stats.tables[0].version for stats in anew.stats()]
        assert versions[1] == 1
        assert min(versions[0], versions[2]) >= 2
        anew.checkpoints.load()
    with pserver.connect(endpoints(cluster)) as anew:
        assert [stats.tables[0].version for stats in anew.stats()] == [1, 1, 1]
        assert np.array_equal(anew.peek("t", KEYS), saved)


def test_j3_a_save_and_a_restore_end_with_a_line_of_their_figures(
    start: Start, tmp_path: Path
) -> None:
    """Folder, tables, rows, bytes, seconds: of the server that saved, and of the one that restored."""
    first = start("--checkpoint-dir", str(tmp_path)).wait_ready()
    with pserver.connect(first.endpoint, connect_s=WAIT_S) as client:
        client.create_table(SPEC)
        push(client)
        client.checkpoints.save()
    first.wait_line(
        rf"event='saved' shard=0 where='{tmp_path}/v00000001' epoch=\d+ rows=4000 bytes=\d+ seconds=[\d.]+"
    )
    first.end()

    second = start("--checkpoint-dir", str(tmp_path), "--restore", "latest")

    second.wait_line(
        rf"restored {tmp_path}/v00000001: tables 1, rows 4,000 of 4,000 here, optimizer state \d of "
        r"\d, bytes [\d,]+, seconds [\d.]+"
    )


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--restore", "latest"], "restore needs checkpoint_dir or journal"),
        (["--checkpoint-dir", "{}/file/x"], r"--checkpoint-dir .*/file/x: user \w+ cannot write"),
        (["--checkpoint-dir", "{}/new", "--restore", "latest"], "no checkpoint is there"),
    ],
)
def test_a_server_ends_at_once_when_its_folder_cannot_serve(
    start: Start, tmp_path: Path, flags: list[str], problem: str
) -> None:
    """It names folder and user, or what is missing, and listens to nobody."""
    (tmp_path / "file").write_text("")

    server = start(*(flag.format(tmp_path) for flag in flags))

    server.wait_line(problem)
    assert server.wait_exit()[0] in (1, 2)


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_d2_no_half_version_is_listed_when_a_server_is_killed_during_saves(
    start: Start, tmp_path: Path, rounds: int
) -> None:
    """D2: SIGKILL of one of two servers at random moments of saves: what is listed is whole, and the
    newest one loads.
    """
    rng = random.Random(5)
    known = 0
    for _ in range(rounds):
        flags = ["--checkpoint-dir", str(tmp_path)]
        restores = ["--restore", "latest"] if LocalStore(tmp_path).versions() else []
        cluster = start_cluster(start, 2, *flags, *restores)
        with pserver.connect(
            endpoints(cluster), settings=pserver.ClientSettings(timeout_s=2.0)
        ) as client:
            client.create_table(SPEC)
            push(client)
            client.checkpoints.save()
            timer = threading.Timer(
                0.3 * rng.random(), cluster[rng.randrange(2)].send, [signal.SIGKILL]
            )
            timer.start()
            with pytest.raises(pserver.PserverError):
                save_on(client)
            timer.join()
        for server in cluster:
            server.end()
        store = LocalStore(tmp_path)
        versions = store.versions()
        assert len(versions) > known
        known = len(versions)
        for version in versions[-3:]:
            assert verify(store, version).num_rows == KEYS.size


def test_d2_the_last_version_stays_when_the_disk_is_full(start: Start, tmp_path: Path) -> None:
    """D2: a save that does not fit fails with folder and reason; the process goes on, and saves again
    when there is room.
    """
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("this user may not mount")
    try:
        server = start("--checkpoint-dir", str(small)).wait_ready()
        with pserver.connect(server.endpoint) as client:
            client.create_table(SPEC)
            push(client)
            good = client.checkpoints.save()
            client.push("t", np.arange(60_000), np.ones((60_000, 4)))

            with pytest.raises(pserver.CheckpointError, match=r"small: user .*No space left"):
                client.checkpoints.save()

            assert LocalStore(small).versions() == [good.version]
            verify(LocalStore(small), good.version)
            subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
            assert client.checkpoints.save().rows == 60_000
    finally:
        server.end()
        subprocess.run(["umount", str(small)], check=True)
        shutil.rmtree(small)


def test_all_shards_must_see_one_folder(start: Start, tmp_path: Path) -> None:
    """Shards that write to folders of their own make no version, and the error says so."""
    cluster = [
        start("--shard", str(i), "--shards", "2", "--checkpoint-dir", str(tmp_path / str(i)))
        for i in range(2)
    ]
    for server in cluster:
        server.wait_ready()
    with pserver.connect(endpoints(cluster)) as client:
        client.create_table(SPEC)

        with pytest.raises(pserver.CheckpointError, match="all shards must use one folder"):
            client.checkpoints.save()

    assert [list((tmp_path / name).iterdir()) for name in ("0", "1")] == [[], []]


@pytest.mark.slow
def test_a_job_of_two_trainers_resumes_after_it_was_stopped(tmp_path: Path) -> None:
    """mode sync, servers and trainers as processes: the resumed job takes the steps that were left."""
    words = ["run", "--trainers", "2", "--mode", "sync", "--rows", "4000", "--batch-size", "100"]
    words += ["--scale", "0.001", "--model", "lr", "--checkpoint-dir", str(tmp_path / "ckpt")]
    words += ["--checkpoint-every", "5", "--log-dir", str(tmp_path / "logs"), "--json"]

    def run(*more: str) -> dict[str, float]:
        command = [sys.executable, "-m", "trainer", *words, *more]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
        facts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return facts

    run("--steps", "12")
    assert run("--resume")["steps"] == 2 * (20 - 10)
