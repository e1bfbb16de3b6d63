"""``trainer run --sharding-stage 3``: real processes, since torch has one default process group in each."""

import json
from pathlib import Path

import pytest

from tests.unit.trainer.models import criteo_line
from trainer.cli import main as cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = 201  # shares of 75 and 76 rows: 3 and 4 steps


def test_stage_3_is_the_run_without_sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two trainers with unlike ends: loss, AUC and log loss to 1e-6; half of the parameters in each."""
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("".join(map(criteo_line, range(ROWS))), encoding="utf-8")
    job = ["--data", "train.txt", "--eval-last", "50", "--batch-size", "25", "--shards", "1"]
    place = ["--trainers", "2", "--dense", "allreduce", "--device", "cpu", "--dim", "4"]
    words = ["run", *place, *job, "--mode", "sync", "--log-dir", "logs", "--json"]
    told = []
    for more in (["--sharding-stage", "3", "--clip-norm", "0.1"], ["--clip-norm", "0.1"]):
        status = cli.main([*words, *more])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        told.append(json.loads(captured.out.splitlines()[-1]))

    sharded, wanted = told
    assert (sharded["samples"], sharded["eval_samples"]) == (ROWS - 50, 50)
    for name in ("auc", "log_loss", "train_auc"):
        assert sharded[name] == pytest.approx(wanted[name], abs=1e-6)
    for name in ("loss", "grad_norm"):
        assert sharded["watch"][name] == pytest.approx(wanted["watch"][name], abs=1e-6)
    whole = wanted["watch"]["dense_parameters_bytes"]
    for name in ("parameters", "gradients"):
        assert whole / 2 <= sharded["watch"][f"dense_{name}_bytes"] < 0.6 * whole
    assert whole <= sharded["watch"]["dense_state_bytes"] < 1.2 * whole


@pytest.mark.parametrize("stage", ["2", "3"])
def test_a_shared_dense_part_is_resumed_where_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    """Stopped after 3 steps, with the last version at 2: AUC and log loss of the undisturbed run, to 1e-6."""
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("".join(map(criteo_line, range(ROWS))), encoding="utf-8")
    job = ["--data", "train.txt", "--eval-last", "50", "--batch-size", "15", "--shards", "2"]
    place = ["--trainers", "2", "--dense", "allreduce", "--device", "cpu", "--dim", "4"]
    place += ["--sharding-stage", stage, "--checkpoint-every", "2"]
    words = ["run", *place, *job, "--mode", "sync", "--log-dir", "logs", "--json"]
    told = []
    for more in (["whole"], ["cut", "--steps", "3"], ["cut", "--resume"]):
        status = cli.main([*words, "--checkpoint-dir", *more])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        told.append(json.loads(captured.out.splitlines()[-1]))

    whole, cut, resumed = told
    assert (cut["samples"], resumed["samples"]) == (90, whole["samples"] - 60)
    for name in ("auc", "log_loss"):
        assert resumed[name] == pytest.approx(whole[name], abs=1e-6)
    assert abs(cut["log_loss"] - whole["log_loss"]) > 1e-4
