"""What ``trainer.job.watch`` promises: each figure counts what it says, and many trainers' merge."""

import math

import numpy as np
import pytest

from tests.unit.trainer.models import batch
from trainer.job.watch import SHARE_MAX, Watch, merged, warnings
from trainer.loop import StepReport


def report(step: int, loss: float, norm: float | None) -> StepReport:
    """Return what a step of two samples tells."""
    return StepReport(step, batch([1, 2], [1.0, 0.0]), loss, np.zeros(2, np.float32), norm)


def facts(watch: Watch, **mode: float) -> dict[str, float]:
    """Return the watch list after a run that spent a tenth of its time on either way."""
    return watch.facts(mode, pull_share=0.1, push_share=0.1)


def test_losses_norms_and_queue_are_followed() -> None:
    """Two steps: the loss is their mean, the norm too, the queue's depth the most."""
    watch = Watch()
    watch.step(report(1, 0.75, 3.0), queue_depth=2)
    watch.step(report(2, 0.25, 5.0), queue_depth=1)

    assert (watch.steps, watch.samples) == (2, 4)
    assert facts(watch, staleness_max=7.0, queue_depth=1.0) == {
        "loss": 0.5,
        "nonfinite": 0.0,
        "queue_depth_max": 2.0,
        "pull_share": 0.1,
        "push_share": 0.1,
        "staleness_max": 7.0,
        "grad_norm": 4.0,
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_losses_are_counted_and_spoil_no_mean(bad: float) -> None:
    """A NaN is one step with NaN; loss and norm stay those of the others."""
    watch = Watch()
    watch.step(report(1, 0.5, 1.0), queue_depth=0)
    watch.step(report(2, bad, bad), queue_depth=0)

    told = facts(watch)
    assert (told["loss"], told["nonfinite"], told["grad_norm"]) == (0.5, 1.0, 1.0)


def test_loss_is_of_about_the_last_twenty_steps() -> None:
    """After a thousand steps a change shows after a few dozen."""
    watch = Watch()
    for step in range(1, 1001):
        watch.step(report(step, 1.0, None), queue_depth=0)
    for step in range(1001, 1061):
        watch.step(report(step, 0.0, None), queue_depth=0)

    assert watch.loss == pytest.approx(0.95**60)
    assert "grad_norm" not in facts(watch)


def test_merging_adds_counts_keeps_the_worst_and_averages_the_rest() -> None:
    """Of three trainers: pushes in all, the largest staleness, the mean share, the spread of losses."""
    lists = [
        {"loss": 0.5, "pushes": 3.0, "staleness_max": 9.0, "pull_share": 0.3, "nonfinite": 1.0},
        {"loss": 0.25, "pushes": 4.0, "staleness_max": 2.0, "pull_share": 0.1, "nonfinite": 0.0},
        {"loss": 0.75, "pushes": 5.0, "staleness_max": 4.0, "pull_share": 0.2, "nonfinite": 2.0},
    ]

    assert merged(lists) == {
        "loss": 0.5,
        "pushes": 12.0,
        "staleness_max": 9.0,
        "pull_share": pytest.approx(0.2),
        "nonfinite": 3.0,
        "loss_spread": 0.5,
    }


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"pull_share": SHARE_MAX / 2, "push_share": SHARE_MAX / 2}, []),
        ({}, []),
        (
            {"pull_share": 0.05, "push_share": 0.25},
            [
                "communication took 30 % of the time (over 20 %): pulls 5 %, pushes 25 % "
                "(push less often: half_async or geo)"
            ],
        ),
        (
            {"nonfinite": 2.0},
            [
                "the loss of 2 steps was NaN or infinite: lower the learning rate, or give "
                "--clip-norm"
            ],
        ),
    ],
)
def test_warnings_say_what_to_do(told: dict[str, float], expected: list[str]) -> None:
    """Too much communication and bad losses are warned of, with what helps."""
    assert warnings(told) == expected
