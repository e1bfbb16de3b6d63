"""Runs of several trainers that push on their own: what a version has of each, and where each goes on."""

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pserver
from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.store import manifest_of
from pserver.embedded import Cluster
from tests.unit.checkpoint.helpers import rows_in
from tests.unit.trainer.models import criteo_line, on_file
from trainer.config import RunSettings
from trainer.job import run as job
from trainer.loop import StepReport
from trainer.modes import make_mode
from trainer.modes.grouped import GroupMode
from trainer.strategy import Strategy

STEPS = 40
SPEC = pserver.TableSpec(
    name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros", capacity_max=10_000
)
MODES: list[dict[str, Any]] = [
    {"mode": "async"},
    {"mode": "async", "on_full": "merge", "max_merge_num": 4, "merge": "sum"},
    {"mode": "half_async", "max_merge_num": 3},
]


def keys_of(trainer: int, step: int) -> np.ndarray:
    """Return keys of a step, from 0, that no other step has; some on each shard."""
    return np.arange(4, dtype=np.uint64) + np.uint64(4 * (trainer * STEPS + step))


def train(mode: GroupMode, *, begin: int, end: int) -> None:
    """Push one step's keys after the other, so that a row's weight counts its steps."""
    for step in range(begin, end):
        keys = keys_of(mode.trainer_id, step)
        mode.start_push({"t": (keys, np.full(4, -1.0, np.float32), np.empty(0, np.uint32))})
        mode.end_step(samples=1, loss=None)


def run(folder: Path, strategy: Strategy, *, begins: list[int], version: str | None) -> list[str]:
    """Train to the end with three trainers and saves at any moment; return the versions."""
    versions: list[str] = []
    with Cluster(2, checkpoint_dir=str(folder)) as cluster:
        if version is not None:
            for shard in cluster.shards:
                cluster._runtime.submit(shard.loads.restore(version)).result()

        def be(trainer: int) -> None:
            with cluster.connect() as client:
                mode = make_mode(client, strategy, trainer_id=trainer, trainers=3)
                assert isinstance(mode, GroupMode)
                mode.create_table(SPEC)
                mode.steps_before, mode.is_in_order = begins[trainer], True
                marks = [] if trainer else sorted(random.Random(7).sample(range(20, STEPS), 3))
                for begin, end in itertools.pairwise([begins[trainer], *marks, STEPS]):
                    train(mode, begin=begin, end=end)
                    if not trainer:
                        mode.flush()
                        versions.append(client.checkpoints.save().version)
                mode.finish()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(be, range(3), timeout=60.0))
    return versions


def weights_in(folder: Path, version: str) -> dict[int, float]:
    return {
        key: float(np.frombuffer(row["weights"], np.float32)[0])
        for key, row in rows_in(folder, version).items()
    }


def expected(positions: list[int]) -> dict[int, float]:
    """Return each row's weight if of each trainer just its first steps were applied, once."""
    return {
        int(key): 1.0
        for trainer, steps in enumerate(positions)
        for step in range(steps)
        for key in keys_of(trainer, step)
    }


@pytest.mark.parametrize("given", MODES, ids=lambda given: "-".join(map(str, given.values())))
def test_a_version_says_how_far_each_trainer_is_and_has_just_that(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    """Each step has rows of its own. In every version those of the first steps of each trainer are in,
    once, and no other; a run that is resumed there ends with every row in once.
    """
    strategy = Strategy(**given)
    versions = run(tmp_path, strategy, begins=[0, 0, 0], version=None)

    for version in versions:
        told = manifest_of(LocalStore(tmp_path), version).positions
        positions = [told.get(str(trainer), 0) for trainer in range(3)]
        assert weights_in(tmp_path, version) == expected(positions)

    told = manifest_of(LocalStore(tmp_path), versions[0]).positions
    begins = [told.get(str(trainer), 0) for trainer in range(3)]
    last = run(tmp_path, strategy, begins=begins, version=versions[0])[-1]
    told = manifest_of(LocalStore(tmp_path), last).positions
    found = [max(told.get(str(trainer), 0), begins[trainer]) for trainer in range(3)]
    assert weights_in(tmp_path, last) == expected(found)


@pytest.mark.parametrize("mode", ["async", "half_async"])
def test_each_trainer_of_a_run_goes_on_at_its_next_row(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainer 1 is ahead when trainer 0 saves: the resumed run takes what the version has not, of each."""
    path = tmp_path / "rows.txt"
    path.write_text("".join(map(criteo_line, range(120))), encoding="utf-8")
    is_ahead, has_saved = threading.Event(), threading.Event()

    def together(steps: list[int | None], on_step: Any, **values: Any) -> list[int]:
        """Run two trainers, and return how many steps each took."""
        taken = [0, 0]
        with Cluster(2, checkpoint_dir=str(tmp_path / "ckpt")) as cluster:
            for shard in cluster.shards if values.get("resume") else ():
                cluster._runtime.submit(shard.loads.restore("latest")).result()
            monkeypatch.setattr(job, "_connect", lambda _: cluster.connect())

            def be(trainer: int) -> None:
                def note(step: StepReport) -> None:
                    taken[trainer] += 1
                    on_step(trainer, step.step)

                given: RunSettings = on_file(
                    path,
                    trainers=2,
                    trainer_id=trainer,
                    ps="here:1",
                    model="fm",
                    mode=mode,
                    batch_size=6,
                    steps=steps[trainer],
                    prefetch=0,
                    **values,
                )
                job.run(given, on_step=note)

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(be, range(2), timeout=60.0))
        return taken

    def meet(trainer: int, step: int) -> None:
        """Let trainer 0's step 3 wait until trainer 1 took 5, and that one until the version is there."""
        if (trainer, step) == (1, 5):
            is_ahead.set()
            assert has_saved.wait(60.0)
        if (trainer, step) == (0, 3):
            assert is_ahead.wait(60.0)
        if (trainer, step) == (0, 4):
            has_saved.set()

    together([4, 5], meet, checkpoint_every=3)
    store = LocalStore(tmp_path / "ckpt")
    told = manifest_of(store, store.versions()[0]).positions
    taken = together([None, None], lambda *_: None, resume=True)

    assert told["0"] == 3
    ahead = told.get("1", 0)  # of the 5 steps some may be merged, and not have left yet
    assert ahead <= 5
    assert taken == [10 - told["0"], 10 - ahead]
