"""``trainer run --trainers N``: real trainers on servers of this machine, one screen, one summary."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.servers import WAIT_S
from tests.unit.trainer.models import criteo_line
from trainer.cli import main as cli

ROWS = 300


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a small job on a file, with its logs in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINER_EPOCHS", "2")  # what comes from outside reaches the trainers once
    text = "".join(map(criteo_line, range(ROWS)))
    Path("train.txt").write_text(text, encoding="utf-8")
    job = ["--data", "train.txt", "--eval-last", "50", "--model", "fm", "--batch-size", "25"]
    return ["run", "--trainers", "2", *job, "--device", "cpu", "--dim", "4", "--log-dir", "logs"]


def left_over() -> list[psutil.Process]:
    """Return the processes that this one started and that are still there."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def test_e4_two_trainers_run_on_servers_of_their_own(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both train on their share, trainer 0 scores when both are done, and all processes end."""
    before = left_over()

    status = cli.main([*words, "--mode", "sync", "--json"])

    captured = capsys.readouterr()
    assert status == 0, captured.err
    told = json.loads(captured.out.splitlines()[-1])
    assert (told["trainers"], told["mode"], told["shards"]) == (2, "sync", 2)
    assert (told["samples"], told["steps"]) == (2 * (ROWS - 50), 2 * (5 + 5))
    assert told["eval_samples"] == 50
    assert told["watch"]["pushes"] == 20.0
    assert told["strategy"]["dense"] == "pserver"
    assert "2 trainers, steps" in captured.err
    logs = {path.name for path in Path("logs").iterdir()}
    assert logs == {"trainer-0.log", "trainer-1.log", "server-0.log", "server-1.log"}
    assert left_over() == before


def test_e4_first_failure_is_told_and_the_others_are_ended(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad line in trainer 1's share ends the job with that trainer's words; nothing is left."""
    lines = Path("train.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    lines[200] = "bad\n"
    Path("train.txt").write_text("".join(lines), encoding="utf-8")
    before = left_over()

    status = cli.main([*words, "--mode", "sync"])

    assert status == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(
        "trainer run: trainer 1 ended with status 1: trainer run: train.txt:201:"
    )
    assert told.endswith("its log is logs/trainer-1.log; the others were ended")
    assert left_over() == before


def test_i6_the_words_of_a_server_that_cannot_start_are_told(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The job ends with the reason of the server, and not with trainers that nobody answers."""
    Path("file").write_text("", encoding="utf-8")
    before = left_over()

    status = cli.main([*words, "--storage", "file", "--storage-dir", "file/x"])

    told = capsys.readouterr().err.splitlines()[-1]
    assert status in (1, 2)
    assert "server " in told
    assert "file/x" in told
    assert "logs/server-" in told
    assert left_over() == before


@pytest.mark.slow
def test_settings_that_a_trainer_refuses_exit_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting that only a trainer can check is refused as it would be by one alone."""
    status = cli.main([*words, "--optimizer", "adagard"])

    assert status == 2
    assert "did you mean 'adagrad'?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_trainers_and_servers(words: list[str], number: signal.Signals) -> None:
    """A launcher that is told to end ends all that it started first."""
    command = [sys.executable, "-m", "trainer", *words, "--epochs", "1000000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "trainers, steps" in next(line for line in process.stderr if "steps" in line)
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) == 4

        process.send_signal(number)

        assert process.wait(WAIT_S) == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        assert psutil.wait_procs(started, timeout=WAIT_S)[1] == []
    finally:
        process.kill()
        process.communicate()
