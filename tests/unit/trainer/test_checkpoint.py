"""A run that is resumed goes on as if it had never stopped."""

import threading
from pathlib import Path
from typing import Any

import pytest

import pserver
from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.store import manifest_of
from trainer.config import RunSettings
from trainer.job.run import run
from trainer.loop import StepReport


def settings(folder: Path, **more: Any) -> RunSettings:
    values: dict[str, Any] = {
        "rows": 2000,
        "batch_size": 100,
        "scale": 0.001,
        "model": "deepfm",
        "dim": 4,
        "eval_last": 100,
        "prefetch": 0,
        "window": 1,
        "threads": 1,
        "checkpoint_dir": str(folder),
        "checkpoint_every": 7,
        **more,
    }
    return RunSettings(**values)


def losses_of(given: RunSettings) -> list[float]:
    """Return the loss of each step."""
    losses: list[float] = []
    run(given, on_step=lambda step: losses.append(step.loss))
    return losses


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"dense": "pserver", "dense_optimizer": "adam:lr=0.01"},
        {"mode": "sync", "shards": 3},
        {"amp": "fp16", "amp_scale": 2.0**28, "amp_grow_every": 3},
        {"epochs": 2, "rows": 1000},
    ],
)
def test_a_resumed_run_takes_the_very_steps_of_an_undisturbed_one(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """D4: stopped after 9 of 20 steps, with the last version at 7: steps 8 to 20 have the same losses,
    to the bit; no row is trained on twice in the version, and none is skipped.
    """
    whole = losses_of(settings(tmp_path / "whole", **more))
    begun = losses_of(settings(tmp_path / "cut", steps=9, **more))

    resumed = losses_of(settings(tmp_path / "cut", resume=True, **more))

    assert len(whole) == 20
    assert begun == whole[:9]
    assert resumed == whole[7:]


def test_a_run_resumes_from_a_version_of_a_resumed_run(tmp_path: Path) -> None:
    """Positions count from the beginning of the data, not of the process."""
    whole = losses_of(settings(tmp_path / "whole", mode="sync"))
    losses_of(settings(tmp_path / "cut", steps=8, mode="sync"))
    losses_of(settings(tmp_path / "cut", steps=15, resume=True, mode="sync"))

    assert losses_of(settings(tmp_path / "cut", resume=True, mode="sync")) == whole[14:]


def test_a_finished_run_has_nothing_left_when_it_is_resumed(tmp_path: Path) -> None:
    """All steps were taken: none is taken again."""
    losses_of(settings(tmp_path, steps=7))

    assert losses_of(settings(tmp_path, steps=7, resume=True)) == []


def test_a_run_saves_by_seconds_too(tmp_path: Path) -> None:
    """With --checkpoint-every 1s and a step that takes longer; what is resumed goes on there."""
    whole = losses_of(settings(tmp_path / "whole"))
    begun: list[float] = []

    def slow(step: StepReport) -> None:
        begun.append(step.loss)
        if step.step == 4:
            threading.Event().wait(1.05)

    run(settings(tmp_path / "cut", steps=9, checkpoint_every="1s"), on_step=slow)
    store = LocalStore(tmp_path / "cut")
    positions = [manifest_of(store, v).trainers["0"]["steps"] for v in store.versions()]
    resumed = losses_of(settings(tmp_path / "cut", resume=True))

    assert begun == whole[:9]
    assert store.leftovers() == []
    assert positions
    assert all(0 < step <= 9 for step in positions)
    assert resumed == whole[positions[-1] :]


def test_training_goes_on_while_a_version_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are not written until step 9 was taken: the version is of step 7 all the same."""
    is_at_9 = threading.Event()
    write = LocalStore.write

    def late(store: LocalStore, version: str, name: str, data: Any) -> None:
        assert name.startswith("trainer") or is_at_9.wait(60.0)
        write(store, version, name, data)

    def note(step: StepReport) -> None:
        if step.step == 9:
            is_at_9.set()

    monkeypatch.setattr(LocalStore, "write", late)
    run(settings(tmp_path, steps=9), on_step=note)

    monkeypatch.undo()
    whole = losses_of(settings(tmp_path / "whole"))
    assert losses_of(settings(tmp_path, resume=True)) == whole[7:]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"batch_size": 50}, "is of another run .*batch_size: 100 there, 50 here"),
        ({"seed": 1}, "seed: 0 against 1"),
        ({"model": "fm"}, "model: deepfm there, fm here"),
    ],
)
def test_a_version_of_another_run_is_refused(
    tmp_path: Path, more: dict[str, Any], problem: str
) -> None:
    """D3: the differences are shown, and nothing is trained."""
    losses_of(settings(tmp_path, steps=7))

    with pytest.raises(pserver.PserverError, match=problem):
        run(settings(tmp_path, resume=True, **more))


def test_a_version_without_a_position_is_refused(tmp_path: Path) -> None:
    """One that the command line saved is good for tables, and does not say where the rows go on."""
    with pserver.embedded(2, checkpoint_dir=str(tmp_path)) as client:
        client.create_table(pserver.TableSpec(name="t", dim=1))
        client.checkpoints.save()

    with pytest.raises(pserver.CheckpointError, match="it has no position in the rows"):
        run(settings(tmp_path, resume=True))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"checkpoint_dir": None}, "need checkpoint_dir"),
        ({"mode": "geo"}, "need mode sync, async or half_async"),
        ({"data_mode": "dynamic"}, "need data_mode static"),
        ({"checkpoint_every": None}, "checkpoint_dir has no effect"),
        ({"checkpoint_every": "7m"}, "steps such as 1000, or seconds such as 60s, got '7m'"),
        ({"checkpoint_every": 0}, "got '0'"),
        ({"ps": "a:1"}, "checkpoint_dir has no effect when ps is given"),
    ],
)
def test_settings_are_refused_when_a_position_could_not_be_told(
    tmp_path: Path, more: dict[str, Any], problem: str
) -> None:
    """At start, with what to do."""
    with pytest.raises(ValueError, match=problem):
        settings(tmp_path, **more)
