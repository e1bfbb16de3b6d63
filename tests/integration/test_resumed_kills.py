"""Runs whose dense part several trainers step: one of them is killed behind a save, and what is resumed ends alike."""

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pserver.checkpoint.local import LocalStore
from tests.integration.killed import free_port
from tests.integration.servers import Server, Start, endpoints, start_cluster
from tests.integration.trainers import Trainer, start_dense, start_embed
from tests.unit.trainer.models import criteo_line

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS, HELD_OUT = 4_100, 100
BATCH = ["--batch-size", "10", "--mode", "sync", "--sync-divisor", "samples", "--dim", "4"]
RESUMED = ["--resume", "--checkpoint-every", "10"]

Begin = Callable[[list[Trainer], list[str]], None]


def averaged(trainers: list[Trainer], flags: list[str]) -> None:
    """Start three trainers that average."""
    _start(trainers, 3, [*flags, "--dense", "allreduce", "--allreduce", "ring"])


def in_pipelines(trainers: list[Trainer], flags: list[str]) -> None:
    """Start two pipelines of two stages that share their optimizers."""
    cut = ["--stages", "2", "--cut", "mlp.layers.0", "--sharding-stage", "1"]
    _start(trainers, 4, [*flags, *cut])


def in_roles(trainers: list[Trainer], flags: list[str]) -> None:
    """Start two embedding trainers and a dense one."""
    start_embed(trainers, 2, start_dense(trainers, 1), *flags)


def _start(trainers: list[Trainer], count: int, flags: list[str]) -> None:
    place = ["--trainers", str(count), "--master", f"127.0.0.1:{free_port()}"]
    place += ["--device", "cpu", "--threads", "1"]
    trainers.extend(Trainer(*place, "--trainer-id", str(number), *flags) for number in range(count))


def scored(trainers: list[Trainer]) -> dict[str, Any]:
    """Return the figures of the trainer that scores, once all have ended well."""
    told = [trainer.summary() for trainer in trainers]
    (found,) = [one for one in told if one["eval_samples"]]
    return found


@pytest.mark.parametrize("begin", [averaged, in_pipelines, in_roles])
def test_a_run_ends_as_an_undisturbed_one_when_a_trainer_is_killed_behind_a_save(
    start: Start, trainers: list[Trainer], tmp_path: Path, begin: Begin
) -> None:
    """SIGKILL of any of them, servers started from the last version, --resume: AUC and log loss to 1e-6."""
    path = tmp_path / "rows.txt"
    path.write_text("".join(map(criteo_line, range(ROWS))), encoding="utf-8")
    data = ["--data", str(path), "--eval-last", str(HELD_OUT), *BATCH]

    def servers(folder: str, *flags: str) -> list[Server]:
        return start_cluster(start, 2, "--checkpoint-dir", str(tmp_path / folder), *flags)

    begin(trainers, [*data, "--ps", endpoints(servers("whole")), "--checkpoint-every", "10"])
    wanted = scored(trainers)

    cluster = servers("cut")
    killed: list[Trainer] = []
    begin(killed, [*data, "--ps", endpoints(cluster), "--checkpoint-every", "10"])
    trainers += killed
    cluster[0].wait_line("event='saved'")
    one = random.Random(begin.__name__).randrange(len(killed))
    killed[one].kill()
    statuses = [trainer.end() for trainer in killed]
    assert statuses.pop(one) == -signal.SIGKILL
    assert set(statuses) == {1}, [trainer.said for trainer in killed]
    for server in cluster:
        server.end()

    (version, *_) = reversed(LocalStore(tmp_path / "cut").versions())
    resumed: list[Trainer] = []
    begin(resumed, [*data, "--ps", endpoints(servers("cut", "--restore", version)), *RESUMED])
    trainers += resumed
    found = scored(resumed)

    assert 0 < found["steps"] < wanted["steps"]
    for name in ("auc", "log_loss"):
        assert found[name] == pytest.approx(wanted[name], abs=1e-6)
