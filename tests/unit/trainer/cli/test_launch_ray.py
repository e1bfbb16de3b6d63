"""``trainer launch --on ray``: what its flags say, and what is refused before there is a cluster."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.cli.test_main import nothing
from trainer.cli import main as cli
from trainer.config import RunSettings
from trainer.launch.ray_job import RESTARTS, RayJob


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Return what would have been started; Ray is neither needed nor asked."""
    found: list[dict[str, Any]] = []

    def launch_on_ray(job: RayJob, settings: RunSettings, **others: Any) -> Any:
        found.append({"job": job, "settings": settings, **others})
        return nothing()

    fake = types.SimpleNamespace(launch_on_ray=launch_on_ray)
    monkeypatch.setitem(sys.modules, "trainer.launch.ray_cluster", fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text('[run]\nmode = "sync"\ndim = 8\n', encoding="utf-8")
    return found


def test_a_job_is_made_of_flags_and_its_file(
    launched: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands behind the file is for its trainers, who find the servers by files of one folder."""
    words = ["--shards", "2", "--trainers", "4", "--journal", "j", "--ray-address", "10.0.0.1:6379"]
    more = ["--trainer-gpus", "0.5", "--log-dir", "d", "--job-id", "ads", "--max-restarts", "3"]

    status = cli.main(["launch", "--on", "ray", *words, *more, "job.toml", "--dim=4", "--json"])

    assert status == 0
    (one,) = launched
    job, settings, folder = one["job"], one["settings"], one["folder"]
    assert (job.shards, job.address, job.journal) == (2, "10.0.0.1:6379", Path("j"))
    assert (job.server_cpus, job.trainer_cpus, job.trainer_gpus) == (1.0, 1.0, 0.5)
    assert (job.log_dir, job.job_id, one["restarts"]) == (Path("d"), "ads", 3)
    assert (settings.trainers, settings.mode, settings.dim) == (4, "sync", 4)
    assert settings.ps == f"file:{folder}/shard-0,file:{folder}/shard-1"
    assert json.loads(capsys.readouterr().out)["steps"] == nothing().steps


def test_numbers_of_trainers_and_restarts_follow_from_the_job(
    launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may say how many trainers; a server is started again where that brings something back."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    goes_on = ["--mode", "async", "--on-restart", "go_on"]

    assert cli.main(["launch", "--on", "ray", "job.toml", "--trainers", "3"]) == 0
    assert cli.main(["launch", "--on", "ray", "--journal", "j", "job.toml"]) == 0
    assert cli.main(["launch", "--on", "ray", "job.toml", *goes_on]) == 0

    plain, with_journal, forgetful = launched
    assert (plain["settings"].trainers, plain["job"].shards, plain["restarts"]) == (3, 1, 0)
    assert plain["job"].address == "10.0.0.9:6379"
    assert with_journal["restarts"] == forgetful["restarts"] == RESTARTS


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--on ray --nnodes 2 job.toml", "nnodes is for --on torchrun, and this is --on ray"),
        ("--on ray --server_num 2 job.toml", "server_num is for --on torchrun"),
        ("--shards 2 job.toml", "shards is for --on ray, and this is --on torchrun"),
        ("--trainers 4 job.toml", "with --on ray trainers is how many there are"),
        ("--on ray other.toml", "other.toml"),
        ("--on ray train.py", "--on ray takes a job.toml, got 'train.py'"),
        ("--on ray --shards 0 job.toml", "shards must be in [1, 1024], got 0"),
        ("--on ray --trainers two job.toml", "trainers: input should be a valid integer"),
        ("--on ray --trainer-cpus -1 job.toml", "must be at least 0"),
        ("--on ray --trainers 2 job.toml --trainers 3", "says 2 before the job and 3 after it"),
        ("--on ray --max-restarts 2 job.toml", "max_restarts has no effect without journal"),
        ("--on ray --max-restarts -1 --journal j job.toml", "max_restarts must be at least 0"),
        ("--on ray job.toml --shards 2", "shards has no effect"),
    ],
)
def test_what_cannot_be_started_on_ray_is_refused(
    words: str,
    text: str,
    launched: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 2 with the reason; nothing is started."""
    Path("train.py").touch()

    assert cli.main(["launch", *words.split()]) == 2

    assert text in capsys.readouterr().err
    assert not launched


def test_a_machine_without_ray_is_told_what_to_install(
    launched: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The extra is named."""
    monkeypatch.delitem(sys.modules, "trainer.launch.ray_cluster")
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed

    assert cli.main(["launch", "--on", "ray", "job.toml"]) == 2

    assert "install pserver[ray]" in capsys.readouterr().err
    assert not launched
