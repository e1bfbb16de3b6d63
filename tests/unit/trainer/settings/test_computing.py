"""Shared optimizers, layers computed again and half floats: the run without them, or refused with what to do.

Trainers are threads over shards of this process; they meet by real gloo connections.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import pserver
from tests.unit.trainer.models import on_file
from tests.unit.trainer.split_runs import SYNC, RunTogether, alone, write
from tests.unit.trainer.test_hybrid import free_port
from tests.unit.trainer.test_stages import in_stages
from trainer.config import RunSettings

BOTH = {"dense": "allreduce", "trainers": 2}


UNMOVED: dict[str, object] = {
    "ps": "here:1",
    "optimizer": "sgd:lr=0",
    "dense_optimizer": "sgd:lr=0",
}


def averaged(path: Path, trainers: int, **values: object) -> list[RunSettings]:
    """Return the settings of trainers that average."""
    own = {"dense": "allreduce", "trainers": trainers, "ps": "here:1", "batch_size": 10, **SYNC}
    own |= {"dense_optimizer": "adam:lr=0.001", "master": f"127.0.0.1:{free_port()}", **values}
    if "sharding_stage" not in values:
        own["allreduce"] = "ring"  # measuring takes long on a busy machine
    return [on_file(path, trainer_id=number, **own) for number in range(trainers)]


@pytest.mark.parametrize(
    ("stage", "degree", "clip"),
    [
        (2, None, 0.05),
        *(pytest.param(1, degree, None, marks=pytest.mark.slow) for degree in (None, 1)),
    ],
)
def test_shared_optimizers_step_as_each_trainers_own_would(
    run_together: RunTogether, tmp_path: Path, stage: int, degree: int | None, clip: float | None
) -> None:
    """Losses, parameters and rows to 1e-6, with unlike ends; each holds the bytes that the formula says."""
    path = write(tmp_path / "rows.txt", list(range(65)))

    told, found, rows = run_together(
        averaged(path, 2, sharding_stage=stage, sharding_degree=degree, clip_norm=clip)
    )
    wanted_told, wanted, wanted_rows = run_together(averaged(path, 2, clip_norm=clip))

    torch.testing.assert_close(found[0], wanted[0], rtol=0.0, atol=1e-6)
    assert torch.equal(found[0], found[1])
    assert np.abs(rows - wanted_rows).max() < 1e-5
    for one, other in zip(told, wanted_told, strict=True):
        assert one.watch["loss"] == pytest.approx(other.watch["loss"], abs=1e-6)
        assert one.watch["grad_norm"] == pytest.approx(other.watch["grad_norm"], rel=1e-5)
    whole, own = 4.0 * found[0].numel(), 4.0 * found[0].numel() / (degree or 2)
    for watch in (one.watch for one in told):
        assert watch["dense_parameters_bytes"] == whole
        gradients = own + (whole if stage == 1 else 0.0)
        assert watch["dense_gradients_bytes"] == pytest.approx(gradients, abs=4.0)
        assert watch["dense_state_bytes"] == pytest.approx(2.0 * own, abs=8.0)
    for watch in (one.watch for one in wanted_told):
        assert watch["dense_gradients_bytes"] == whole
        assert watch["dense_state_bytes"] == 2.0 * whole


@pytest.mark.slow
def test_pipelines_side_by_side_may_share_optimizers(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """Four trainers, two pipelines of two stages: parameters of the run without sharing; compared every step."""
    path = write(tmp_path / "rows.txt", list(range(86)))
    own = {"batch_size": 8, "dense_optimizer": "adam:lr=0.001", "check_every": 1, **SYNC}

    told, found, rows = run_together(in_stages(path, 2, 4, sharding_stage=2, **own))
    wanted_told, wanted, wanted_rows = run_together(in_stages(path, 2, 4, **own))

    torch.testing.assert_close(found[0], wanted[0], rtol=0.0, atol=1e-6)
    assert torch.equal(found[0], found[1])
    assert np.abs(rows - wanted_rows).max() < 1e-5
    state = [[one.watch["dense_state_bytes"] for one in run] for run in (told, wanted_told)]
    assert sum(state[0]) == pytest.approx(sum(state[1]) / 2)


def test_stages_cut_gradients_to_one_norm(run_together: RunTogether, tmp_path: Path) -> None:
    """With a limit that is reached each step: parameters, rows and the norm are those of one process."""
    path = write(tmp_path / "rows.txt", list(range(43)))

    told, (found,), rows = run_together(in_stages(path, 3, 3, batch_size=8, clip_norm=0.05, **SYNC))
    (wanted_told,), (wanted,), wanted_rows = run_together(
        [alone(path, batch_size=8, clip_norm=0.05, **SYNC)]
    )

    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-6)
    assert np.abs(rows - wanted_rows).max() < 1e-5
    assert told[0].watch["grad_norm"] == pytest.approx(wanted_told.watch["grad_norm"], rel=1e-4)
    assert wanted_told.watch["grad_norm"] > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_half_floats_come_near(run_together: RunTogether, tmp_path: Path, amp: str) -> None:
    """One trainer, and two that share an optimizer: near the float32 run, and not it."""
    path = write(tmp_path / "rows.txt", list(range(40)))
    one = {"batch_size": 10, **SYNC}

    halves = run_together([alone(path, amp=amp, **one)])
    wholes = run_together([alone(path, **one)])
    shared = run_together(averaged(path, 2, amp=amp, sharding_stage=1))
    unshared = run_together(averaged(path, 2))

    for half, whole in ((halves, wholes), (shared, unshared)):
        torch.testing.assert_close(half[1][0], whole[1][0], rtol=0.0, atol=0.02)
        assert not torch.equal(half[1][0], whole[1][0])
        assert half[1][0].dtype == torch.float32
        assert np.abs(half[2] - whole[2]).mean() < 0.002
    assert ("loss_scale" in halves[0][0].watch) is (amp == "fp16")


@pytest.mark.parametrize(
    "dense",
    ["local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("allreduce", "pserver"))],
)
def test_an_overflow_is_a_step_that_nobody_makes(
    run_together: RunTogether, tmp_path: Path, dense: str
) -> None:
    """A scale that float16 cannot hold: no row and no weight changes, and the summary counts the steps."""
    path = write(tmp_path / "rows.txt", list(range(20)))
    own = {"dense": dense, "amp": "fp16", "amp_scale": 2.0**40, "amp_grow_every": 0}
    if dense == "allreduce":
        given = averaged(path, 2, **own)
    else:
        given = [alone(path, batch_size=10, **own, **SYNC)]

    told, found, rows = run_together(given)
    _, unmoved, untrained = run_together([on_file(path, **UNMOVED)])

    assert [one.watch["skipped_steps"] for one in told] == [2.0 / len(told)] * len(told)
    assert all(one.watch["loss_scale"] == 2.0**40 for one in told)
    torch.testing.assert_close(found[0], unmoved[0], rtol=0.0, atol=0.0)
    assert np.array_equal(rows, untrained)


@pytest.mark.slow
def test_layers_that_are_computed_again_change_no_bit(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """In one process less is kept for backward; in stages the layer stays whole; parameters are the same."""
    path = write(tmp_path / "rows.txt", list(range(24)))
    one = {"batch_size": 8, **SYNC}

    (again,), (found,), rows = run_together([alone(path, recompute="mlp", **one)])
    (kept,), (wanted,), wanted_rows = run_together([alone(path, **one)])
    _, (staged,), _ = run_together(
        in_stages(path, 2, 2, cut="linear", recompute="mlp", amp="off", **one)
    )

    assert torch.equal(found, wanted)
    assert np.array_equal(rows, wanted_rows)
    assert again.watch["dense_kept_bytes"] < kept.watch["dense_kept_bytes"]
    torch.testing.assert_close(staged, wanted, rtol=0.0, atol=1e-6)


@pytest.mark.slow
def test_stages_and_dense_trainers_compute_in_bfloat16(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """What goes between stages is bfloat16 then: near the float32 run."""
    path = write(tmp_path / "rows.txt", list(range(24)))
    one = {"batch_size": 8, **SYNC}

    _, (found,), _ = run_together(in_stages(path, 2, 2, amp="bf16", **one))
    _, (wanted,), _ = run_together([alone(path, **one)])

    torch.testing.assert_close(found, wanted, rtol=0.0, atol=0.02)
    assert not torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"sharding_stage": 1}, "no effect with dense local, only with allreduce, or with stages"),
        ({"sharding_stage": 1, "dense": "allreduce"}, "no effect with one trainer; give trainers"),
        ({**BOTH, "sharding_stage": 4}, "sharding_stage: input should be less than or equal to 3"),
        ({**BOTH, "sharding_degree": 2}, "sharding_degree has no effect without sharding_stage"),
        ({**BOTH, "sharding_stage": 1, "sharding_degree": 3}, "which are 2, got 3"),
        ({**BOTH, "sharding_stage": 2, "accumulate": 2}, "accumulate has no effect with sharding_"),
        ({**BOTH, "sharding_stage": 2, "wire": "bfloat16"}, "wire has no effect with sharding_stage"),
        ({**BOTH, "sharding_stage": 2, "offload": True}, "offload has no effect with sharding_stage 2"),
        (
            {**BOTH, "sharding_stage": 3, "offload": True, "device": "cpu"},
            "offload has no effect with device cpu, where all is in host memory; give device cuda",
        ),
        ({**BOTH, "sharding_stage": 3, "check_every": 5}, "and one copy: no two trainers have the same"),
        ({"stages": 2, "trainers": 2, "sharding_stage": 1}, "give trainers 4 for two pipelines"),
        ({"stages": 2, "trainers": 4, "sharding_stage": 3}, "use sharding_stage 1 or 2"),
        (
            {"stages": 2, "trainers": 2, "recompute": "mlp", "schedule": "zero_bubble"},
            "recompute and schedule zero_bubble deny each other",
        ),
        ({"recompute": " , "}, "recompute must name layers, such as mlp"),
        ({"amp": "half"}, "amp: unknown value 'half'; valid: bf16, fp16, off"),
        ({"amp": "bf16", "amp_scale": 8.0}, "amp_scale has no effect with amp bf16, only with fp16"),
        ({"role": "dense", "listen": "here:1", "amp": "fp16"}, "embedding trainers push before it is known"),
        ({**BOTH, "amp": "fp16", "accumulate": 2}, "amp fp16 and accumulate deny each other"),
        ({**BOTH, "amp": "fp16", "local_sgd_steps": 2}, "amp fp16 and local_sgd_steps deny each other"),
        ({"role": "dense", "listen": "here:1", "sharding_stage": 1}, "use dense allreduce, or stages"),
        ({"role": "embed", "next": "here:1", "amp": "bf16"}, "give it to the trainers with role dense"),
    ],
)  # fmt: skip
def test_what_would_have_no_effect_is_refused(values: dict[str, object], text: str) -> None:
    """The message names the setting, why, and what to give instead."""
    with pytest.raises(pserver.ConfigError) as caught:
        RunSettings.make(values, origins={})

    assert text in str(caught.value)


def test_a_layer_that_is_none_is_refused_with_the_nearest(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """So is one that lies within another."""
    path = write(tmp_path / "rows.txt", list(range(10)))
    for names, text in (("mpl", "did you mean 'mlp'"), ("mlp,mlp.last", "is recomputed already")):
        with pytest.raises(pserver.ConfigError, match=f"--recompute: .*{text}"):
            run_together([alone(path, recompute=names)])
