"""``trainer run --stages``: real processes, started by one command, and what becomes of them when one is killed."""

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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = 200


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a small job on a file, with its logs in the test's folder."""
    monkeypatch.chdir(tmp_path)
    text = "".join(map(criteo_line, range(ROWS)))
    Path("train.txt").write_text(text, encoding="utf-8")
    job = ["--data", "train.txt", "--eval-last", "50", "--batch-size", "25", "--shards", "1"]
    place = ["--stages", "2", "--trainers", "2", "--device", "cpu", "--dim", "4"]
    return ["run", *place, *job, "--log-dir", "logs"]


def test_two_stages_are_one_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Samples count once; AUC, rows and the bubble are in the one summary; all processes end."""
    before = psutil.Process().children(recursive=True)

    status = cli.main([*words, "--accumulate-steps", "2", "--schedule", "gpipe", "--json"])

    captured = capsys.readouterr()
    assert status == 0, captured.err
    told = json.loads(captured.out.splitlines()[-1])
    assert (told["trainers"], told["samples"], told["steps"]) == (2, ROWS - 50, 6)
    assert told["eval_samples"] == 50
    assert told["auc"] is not None
    assert told["rows"] > 0
    assert told["strategy"]["dense"] == "stages"
    assert told["watch"]["bubble_formula"] == pytest.approx(1 / 3)
    assert all(told["watch"][f"place_{place}_compute_s"] > 0.0 for place in range(2))
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def test_a_stage_that_is_killed_ends_the_run(words: list[str]) -> None:
    """SIGKILL of the second trainer: the run ends with status 1, and its error names that trainer."""
    command = [sys.executable, "-m", "trainer", *words, "--epochs", "1000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "trainers, steps" in next(line for line in process.stderr if "steps" in line)
            started = psutil.Process(process.pid).children(recursive=True)
            (second,) = [one for one in started if "--trainer-id=1" in one.cmdline()]

            second.send_signal(signal.SIGKILL)

            last = process.stderr.read().splitlines()[-1]
            assert process.wait(WAIT_S) == 1
            assert "trainer 1 was killed by SIGKILL" in last or "rank 1 of the run" in last
            assert psutil.wait_procs(started, timeout=WAIT_S)[1] == []
        finally:
            process.kill()
