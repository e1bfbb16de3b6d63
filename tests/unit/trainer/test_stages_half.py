"""``trainer run --stages --amp fp16``: one scale and one verdict for all stages of all pipelines.

Trainers are threads over shards of this process; they meet by real gloo connections.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.trainer.models import on_file
from tests.unit.trainer.settings.test_computing import UNMOVED
from tests.unit.trainer.split_runs import SYNC, RunTogether, alone, write
from tests.unit.trainer.test_stages import in_stages, with_values
from trainer.dense.stage_steps import StageSteps

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("schedule", "clip"),
    [("1f1b", None), pytest.param("zero_bubble", 0.05, marks=slow)],
)
def test_stages_come_to_what_one_process_does(
    run_together: RunTogether, tmp_path: Path, schedule: str, clip: float | None
) -> None:
    """Parameters, rows, loss and norm of the unsplit float16 run, whose float32 run is another one."""
    path = write(tmp_path / "rows.txt", list(range(24)))
    one = {"batch_size": 8, "amp": "fp16", "clip_norm": clip, "optimizer": "sgd:lr=0.1", **SYNC}
    own = {"schedule": schedule, "accumulate_steps": 2}

    told, (found,), rows = run_together(in_stages(path, 2, 2, **own, **one))
    (wanted_told,), (wanted,), wanted_rows = run_together([alone(path, **one)])
    _, (whole,), _ = run_together([alone(path, **{**one, "amp": "off"})])

    torch.testing.assert_close(found, wanted, rtol=0.0, atol=2e-4)
    assert np.abs(rows - wanted_rows).max() < 1e-3
    assert not torch.equal(found, whole)
    for name, limit in (("loss", 1e-3), ("loss_scale", 0.0), ("skipped_steps", 0.0)):
        assert all(
            one.watch[name] == pytest.approx(wanted_told.watch[name], abs=limit) for one in told
        )
    if clip is not None:
        assert told[0].watch["grad_norm"] == pytest.approx(wanted_told.watch["grad_norm"], rel=1e-2)


@pytest.mark.parametrize("where", ["a stage", pytest.param("rows", marks=slow)])
def test_a_step_with_an_overflow_anywhere_is_made_nowhere(
    run_together: RunTogether, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Step 3 of 6 is as if its samples were not there; the scale shrinks, and grows back after two good ones."""
    path = write(tmp_path / "rows.txt", list(range(48)))
    without = write(tmp_path / "without.txt", [n for n in range(48) if n // 8 != 2])
    one = {"batch_size": 8, "amp": "fp16", "amp_scale": 2.0**10, "amp_grow_every": 2, **SYNC}
    squares, calls = StageSteps.squares, [0, 0]

    def bad(self: StageSteps, rows: float, samples: int) -> float:
        rank = self._mesh.world.rank
        calls[rank] += 1
        if calls[rank] == 3 and where == "rows" and rank == 0:
            rows = float("nan")
        if calls[rank] == 3 and where == "a stage" and rank == 1:
            self._gradients()[0][0] = float("inf")
        return squares(self, rows, samples)

    with monkeypatch.context() as patch:
        patch.setattr(StageSteps, "squares", bad)
        told, (found,), _ = run_together(in_stages(path, 2, 2, **one))
    _, (wanted,), _ = run_together(in_stages(without, 2, 2, **one))

    assert [one.watch["skipped_steps"] for one in told] == [1.0, 1.0]
    assert [one.watch["loss_scale"] for one in told] == [2.0**11, 2.0**11]
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)


@slow
@pytest.mark.parametrize("sharding", [None, 1])
def test_an_overflow_in_all_steps_leaves_all_as_it_was(
    run_together: RunTogether, tmp_path: Path, sharding: int | None
) -> None:
    """Pipelines of 2 and 3 steps: no row and no weight changes, and who is through counts with the others."""
    path = write(tmp_path / "rows.txt", list(range(24)))
    own = {"amp": "fp16", "amp_scale": 2.0**40, "amp_grow_every": 0, "mode": "async"}
    given = in_stages(path, 2, 4, sharding_stage=sharding, check_every=1, **own)
    given = [
        with_values(one, batch_size=size) for one, size in zip(given, (8, 8, 4, 4), strict=True)
    ]

    told, found, rows = run_together(given)
    _, (unmoved,), untrained = run_together([on_file(path, **UNMOVED)])

    assert [one.steps for one in told] == [2, 2, 3, 3]
    assert {one.watch["skipped_steps"] for one in told} == {3.0}
    assert {one.watch["loss_scale"] for one in told} == {2.0**40}
    for one in found:
        torch.testing.assert_close(one, unmoved, rtol=0.0, atol=0.0)
    assert np.array_equal(rows, untrained)
