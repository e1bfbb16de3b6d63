"""Every mode on real data, two trainers and two servers: as good as one process, and how far seeds differ.

The trainers have half of the one process's batch each, so that a round of theirs is a batch of its.
"""

import functools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.dataset.shared import SHARED
from trainer import cli

pytestmark = pytest.mark.slow

AUC_APART_MAX = 0.01
"""How far a mode's AUC may be below that of one process."""

SPREAD_MAX = 0.02
"""How far the AUCs of eight seeds of async may be apart."""

DATA = {
    "criteo": ("criteo_10k/train_examples.txt", "criteo", 2000),
    "avazu": ("avazu_9k/wide_resdnn_train.csv", "avazu", 1500),
    "frappe": ("frappe_libfm/frappe.validation.libfm", "libfm", 8000),
}
MODES = {
    "sync": (),
    "async": (),
    "half_async": ("--max-merge-num", "4"),
    "geo": ("--k-steps", "20"),
}


@functools.cache
def trained(name: str, *words: str) -> dict[str, Any]:
    """Return the figures of a run."""
    file, form, held_out = DATA[name]
    path = SHARED / file
    if not path.exists():
        pytest.skip("the real data is not here")
    of_data = ["--data", str(path), "--format", form, "--eval-last", str(held_out)]
    with pytest.MonkeyPatch.context() as patch:
        told: list[str] = []
        patch.setattr("builtins.print", lambda text="", **_: told.append(text))
        assert cli.main(["run", *of_data, "--device", "cpu", "--json", *words]) == 0
    figures: dict[str, Any] = json.loads(told[-1])
    return figures


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the logs of trainers in the test's folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DATA)
def test_every_mode_is_as_good_as_one_process(name: str, mode: str) -> None:
    """Two trainers on two servers reach the AUC of one process to 0.01, on each data set."""
    alone = trained(name, "--batch-size", "64")

    together = trained(name, "--trainers", "2", "--batch-size", "32", "--mode", mode, *MODES[mode])

    assert together["samples"] == alone["samples"]
    assert together["auc"] >= alone["auc"] - AUC_APART_MAX


@pytest.mark.usefixtures("folder")
@pytest.mark.timeout(1200)
def test_eight_seeds_of_async_are_close(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight async runs with two trainers differ by less than the stated limit (A11)."""
    words = ("--trainers", "2", "--batch-size", "32", "--mode", "async")

    aucs = [trained("criteo", *words, "--seed", str(seed))["auc"] for seed in range(1, 9)]

    with capsys.disabled():
        print(
            f"\nasync, 8 seeds: AUC {min(aucs):.4f} to {max(aucs):.4f}, "
            f"standard deviation {statistics.stdev(aucs):.4f}"
        )
    assert max(aucs) - min(aucs) < SPREAD_MAX
