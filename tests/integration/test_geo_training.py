"""Mode geo as a user runs it: two trainers and two servers on real data learn what one process learns."""

import json
from pathlib import Path

import pytest

from trainer.cli import main as cli

CRITEO = (
    Path(__file__).resolve().parents[2].parent
    / "shared"
    / "data"
    / "criteo_10k"
    / "train_examples.txt"
)
JOB = ["--eval-last", "2000", "--model", "lr", "--batch-size", "32", "--device", "cpu"]
GEO = ["--trainers", "2", "--mode", "geo", "--log-dir", "logs"]


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """Run a job, and return its summary."""
    status = cli.main(["run", "--data", str(CRITEO), *JOB, *words, "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    summary: dict[str, object] = json.loads(captured.out.splitlines()[-1])
    return summary


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_trainers_reach_the_auc_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Averaged or added, every 10 or 50 steps: within 0.01 of one process, all windows told of."""
    if not CRITEO.exists():
        pytest.skip("the real data is not here")
    monkeypatch.chdir(tmp_path)
    alone = told([], capsys)["auc"]

    runs = [("trainers", 10), ("none", 50)]
    summaries = [
        told([*GEO, "--geo-average", average, "--k-steps", str(k)], capsys) for average, k in runs
    ]

    for (_, k), summary in zip(runs, summaries, strict=True):
        assert summary["auc"] == pytest.approx(alone, abs=0.01)
        assert (summary["shards"], summary["samples"]) == (2, 8000)
        assert summary["watch"]["pushes"] == 2 * (125 // k + 1)  # type: ignore[index]
