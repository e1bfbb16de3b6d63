"""Several trainers in rounds that are resumed go on as if they had never stopped, wherever their dense part is.

Trainers are threads over shards of this process; those that average meet by real gloo connections.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.models import on_file
from tests.unit.trainer.split_runs import SYNC, Losses, RunOn, write
from tests.unit.trainer.test_hybrid import free_port
from trainer.config import RunSettings


def trainers(path: Path, count: int, **own: Any) -> list[RunSettings]:
    """Return the settings of the trainers of one job."""
    if own.get("dense") == "allreduce" or "stages" in own:
        own |= {"master": f"127.0.0.1:{free_port()}"}
    return [
        on_file(path, ps="here:1", trainers=count, trainer_id=number, threads=1, **own)
        for number in range(count)
    ]


ADAM = {"dense_optimizer": "adam:lr=0.01"}
SHARED = {"dense": "allreduce", **ADAM}
AVERAGED = {**SHARED, "allreduce": "ring"}  # one that is measured may be another one each time
STAGES = {"stages": 2, "cut": "mlp.layers.0", **ADAM}

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("count", "shards", "own"),
    [
        pytest.param(2, 1, {"dense": "pserver", **ADAM}, id="servers"),
        pytest.param(2, 2, {"dense": "pserver", **ADAM}, id="servers-2", marks=slow),
        pytest.param(2, 1, AVERAGED, id="allreduce"),
        pytest.param(3, 2, {**AVERAGED, "accumulate": 3}, id="accumulate", marks=slow),
        pytest.param(
            2, 2, {**AVERAGED, "amp": "fp16", "amp_scale": 2.0**28}, id="fp16", marks=slow
        ),
        pytest.param(3, 2, {**SHARED, "sharding_stage": 2}, id="zero-2"),
        pytest.param(
            4, 1, {**SHARED, "sharding_stage": 1, "sharding_degree": 2}, id="zero-1", marks=slow
        ),
        pytest.param(4, 1, STAGES, id="pipelines", marks=slow),
        pytest.param(4, 2, {**STAGES, "sharding_stage": 2}, id="pipelines-zero"),
    ],
)
def test_resumed_trainers_take_the_very_steps_of_undisturbed_ones(
    run_on: RunOn, tmp_path: Path, count: int, shards: int, own: dict[str, Any]
) -> None:
    """Trainers with unlike numbers of batches, stopped after 4 with the last version at 3: the same losses from step
    4 on, to the bit, on each of them.
    """
    shares = count // 2 if "stages" in own else count
    path = write(tmp_path / "rows.txt", list(range(48 * shares + 1)))
    own = {"batch_size": 8, "prefetch": 1, "window": 1, "checkpoint_every": 3, **SYNC, **own}

    def run(folder: str, **more: Any) -> Losses:
        given = trainers(path, count, **own, **more)
        return run_on(given, tmp_path / folder, shards=shards, restores="resume" in more)

    whole, begun, resumed = run("whole"), run("cut", steps=4), run("cut", resume=True)

    assert {len(losses) for losses in whole} == {6, 7}
    for number in range(count):
        assert begun[number] == whole[number][:4]
        assert resumed[number] == whole[number][3:]
