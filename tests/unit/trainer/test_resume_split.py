"""A run with a split model that is resumed goes on as if it had never stopped, with other cuts or dense trainers too.

Trainers are threads over shards of this process; they meet by real gloo connections.
"""

from pathlib import Path
from typing import Any

import pytest

import pserver
from tests.unit.trainer.split_runs import SYNC, Losses, RunOn, write
from tests.unit.trainer.test_roles import embedding, listening
from tests.unit.trainer.test_stages import in_stages


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        ("sync", "adam:lr=0.01"),
        pytest.param("async", "sgd:lr=0.1,momentum=0.9", marks=pytest.mark.slow),
        pytest.param("half_async", "adagrad:lr=0.1", marks=pytest.mark.slow),
        pytest.param("float16", "sgd:lr=0.1", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_pipeline_takes_the_very_steps_of_an_undisturbed_one(
    run_on: RunOn, tmp_path: Path, mode: str, rule: str
) -> None:
    """Stopped after 4 of 6 steps, with the last version at 3: steps 4 to 6 have the same losses on all trainers.

    What is resumed has other stages: the first one is the last one's before. In float16 the first steps overflow, so that
    the scale of the loss is another one by then.
    """
    path = write(tmp_path / "rows.txt", list(range(46)))
    own: dict[str, Any] = {"batch_size": 8, "dense_optimizer": rule, "prefetch": 0, "window": 1}
    own |= {"checkpoint_every": 3, **(SYNC if mode in ("sync", "float16") else {"mode": mode})}
    if mode == "half_async":
        own |= {"max_merge_num": 1}
    if mode == "float16":
        own |= {"amp": "fp16", "amp_scale": 2.0**23, "amp_grow_every": 4, "amp_shrink_by": 0.25}

    whole = run_on(in_stages(path, 2, 2, **own), tmp_path / "whole", False)
    begun = run_on(in_stages(path, 2, 2, steps=4, **own), tmp_path / "cut", False)
    resumed = run_on(
        in_stages(path, 2, 2, **{**own, "cut": "mlp.last", "resume": True}), tmp_path / "cut", True
    )

    assert [len(losses) for losses in whole] == [6, 6]
    for number in range(2):
        assert begun[number] == pytest.approx(whole[number][:4], abs=1e-7)
        assert resumed[number] == pytest.approx(whole[number][3:], abs=1e-6)


@pytest.mark.parametrize(
    ("embeds", "denses"),
    [
        (1, 1),
        (2, 1),
        pytest.param(1, 2, marks=pytest.mark.slow),
        pytest.param(2, 2, marks=pytest.mark.slow),
    ],
)
def test_resumed_embedding_trainers_take_the_very_steps_of_undisturbed_ones(
    run_on: RunOn, tmp_path: Path, embeds: int, denses: int
) -> None:
    """Stopped after 4 of 6 steps, or 7, with the last version at 3; one more dense trainer takes it up."""
    path = write(tmp_path / "rows.txt", list(range(46 if embeds == 1 else 97)))
    own: dict[str, Any] = {
        "batch_size": 8,
        "prefetch": 0,
        "window": 1,
        "checkpoint_every": 3,
        **SYNC,
    }

    def run(folder: str, count: int, **more: Any) -> Losses:
        given = listening(count, dense_optimizer="adam:lr=0.01")
        before = embedding(path, given, embeds, **own, **more)
        losses = run_on([*given, *before], tmp_path / folder, "resume" in more)
        return losses[count:]

    whole = run("whole", denses)
    begun = run("cut", denses, steps=4)
    resumed = run("cut", denses + 1, resume=True)

    assert {len(losses) for losses in whole} == ({6} if embeds == 1 else {6, 7})
    for number in range(embeds):
        assert begun[number] == pytest.approx(whole[number][:4], abs=1e-6)
        assert resumed[number] == pytest.approx(whole[number][3:], abs=1e-6)


def test_trainers_behind_the_first_hear_that_nothing_was_saved(
    run_on: RunOn, tmp_path: Path
) -> None:
    """The servers began empty: each trainer's error says so, and none waits."""
    path = write(tmp_path / "rows.txt", list(range(10)))

    with pytest.raises(pserver.CheckpointError, match="--resume: the servers began empty"):
        run_on(in_stages(path, 2, 2, resume=True), tmp_path / "cut", False)
