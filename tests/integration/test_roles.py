"""``trainer run --role embed|dense``: real processes on real data, and what becomes of them when one is killed."""

import functools
import re
from pathlib import Path

import pytest

from tests.integration.servers import Start, endpoints, start_cluster
from tests.integration.trainers import Trainer, start_dense, start_embed
from tests.unit.trainer.dataset.shared import SHARED
from trainer.config import RunSettings
from trainer.job.run import run

HELD_OUT = 2000
AUC_APART_MAX = 0.01


@functools.cache
def alone(path: Path) -> float:
    """Return the AUC of one process."""
    given = {"data": str(path), "eval_last": HELD_OUT, "batch_size": 64, "device": "cpu"}
    summary = run(RunSettings.make(given, origins={}))
    assert summary.auc is not None
    return summary.auc


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("embeds", "denses"), [(2, 1), (1, 2)])
def test_roles_are_as_good_as_one_process(
    trainers: list[Trainer], start: Start, embeds: int, denses: int
) -> None:
    """On real data the AUC is that of one process to 0.01, where it is scored and where the loss is."""
    path = SHARED / "criteo_10k" / "train_examples.txt"
    if not path.exists():
        pytest.skip("the real data is not here")
    wanted = alone(path)
    servers = endpoints(start_cluster(start, 1))
    addresses = start_dense(trainers, denses)
    data = ["--data", str(path), "--eval-last", str(HELD_OUT), "--ps", servers]
    batch = ["--batch-size", str(64 // embeds), "--mode", "sync", "--sync-divisor", "samples"]
    start_embed(trainers, embeds, addresses, *data, *batch)

    told = [trainer.summary() for trainer in trainers]

    dense, embed = told[:denses], told[denses:]
    assert embed[0]["auc"] == pytest.approx(wanted, abs=AUC_APART_MAX)
    assert embed[0]["eval_samples"] == HELD_OUT
    assert sum(one["samples"] for one in dense) == sum(one["samples"] for one in embed) == 8000
    assert all(one["train_auc"] > 0.65 for one in dense)
    assert '"progress"' in trainers[0].out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dense_trainer_that_is_killed_ends_all_others_with_its_name(
    trainers: list[Trainer], start: Start
) -> None:
    """SIGKILL in the middle of training: both embedding trainers and the other dense one say who went."""
    servers = endpoints(start_cluster(start, 1))
    addresses = start_dense(trainers, 2)
    endless = ["--rows", "1000000000", "--scale", "0.001", "--batch-size", "64", "--ps", servers]
    start_embed(trainers, 2, addresses, *endless)
    for trainer in trainers:
        trainer.until(re.compile(r'("step": \d)'))

    trainers[1].kill()

    assert [trainer.end() for trainer in trainers] == [1, -9, 1, 1]
    for embed in trainers[2:]:
        assert f"trainer run: dense trainer {addresses[1]} went away" in embed.said
    last = trainers[0].said.splitlines()[-1]
    assert addresses[1] in last or "rank 1" in last
