"""What ``trainer.job.progress`` promises: a bar on a terminal, a line now and then elsewhere."""

import numpy as np
import pytest

from tests.unit.trainer.models import batch
from trainer.errors import TrainerError
from trainer.job import progress
from trainer.job.progress import ManyView, ProgressView
from trainer.loop import StepReport


class Clock:
    """Time under the hand of a test."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock that the view reads; no terminal, whatever runs the tests."""
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def report(
    step: int, *, loss: float = 0.5, probabilities: tuple[float, ...] = (0.9, 0.1)
) -> StepReport:
    """Return what a step of two samples tells."""
    return StepReport(step, batch([1, 2], [1.0, 0.0]), loss, np.array(probabilities, np.float32))


def test_lines_come_at_first_every_few_seconds_and_at_last(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal there is a line for the first step, one every 5 s, and one for the last."""
    with ProgressView(title="train lr", steps=100) as view:
        for step in range(1, 101):
            clock.now_s += 0.125
            view.update(report(step), queue_depth=3)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split("  ")[0] for line in captured.err.splitlines()] == [
        "train lr: step 1/100",
        "train lr: step 41/100",
        "train lr: step 81/100",
        "train lr: step 100/100",
    ]


def test_line_tells_rate_loss_auc_and_queue(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line has the samples a second since the beginning, the smoothed loss, AUC and queue."""
    with ProgressView(title="train lr", steps=2) as view:
        clock.now_s += 1.0
        view.update(report(1, loss=0.5), queue_depth=3)
        clock.now_s += 1.0
        view.update(report(2, loss=0.25, probabilities=(0.2, 0.3)), queue_depth=0)

    first, last = capsys.readouterr().err.splitlines()
    assert first == "train lr: step 1/2  2 samples/s loss 0.5000 AUC 1.0000 queue 3"
    assert last == "train lr: step 2/2  2 samples/s loss 0.3750 AUC 0.7500 queue 0"


def test_loss_follows_the_last_steps(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """The shown loss forgets: after a hundred steps of another loss, that is what it is."""
    with ProgressView(title="t", steps=200) as view:
        for step in range(1, 201):
            clock.now_s += 0.125
            view.update(report(step, loss=1.0 if step <= 100 else 0.0), queue_depth=0)

    assert "loss 0.0059" in capsys.readouterr().err.splitlines()[-1]


def test_unknown_length_is_not_made_up(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a number of steps the line says the step alone."""
    with ProgressView(title="t", steps=None) as view:
        clock.now_s += 1.0
        view.update(report(1), queue_depth=0)

    assert capsys.readouterr().err.startswith("t: step 1  ")


def test_auc_is_of_all_predictions_shown_or_not(clock: Clock) -> None:
    """The AUC counts each step, also those that print no line; none yet is NaN."""
    with ProgressView(title="t", steps=9) as view:
        assert np.isnan(view.auc)
        clock.now_s += 1.0
        for step in range(1, 4):
            view.update(report(step), queue_depth=0)
        assert view.auc == 1.0
        for step in range(4, 7):
            view.update(report(step, probabilities=(0.1, 0.9)), queue_depth=0)

    assert view.auc == 0.5


def test_terminal_gets_one_bar(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the same facts stand in one bar, on standard error, and nothing else is printed."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "150")

    with ProgressView(title="train lr", steps=4) as view:
        for step in range(1, 5):
            clock.now_s += 1.0
            view.update(report(step), queue_depth=step)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "4/4" in captured.err
    assert "2 samples/s loss 0.5000 AUC 1.0000 queue 4" in captured.err
    assert "step 4/4" not in captured.err


def test_nan_predictions_are_refused(clock: Clock) -> None:
    """A model that broke stops the run with what to look for."""
    view = ProgressView(title="t", steps=1)

    with view, pytest.raises(TrainerError, match="learning rate that is too high"):
        view.update(report(1, probabilities=(0.5, float("nan"))), queue_depth=0)


def told(step: int, *, loss: float = 0.5, steps: int | None = 10) -> dict[str, object]:
    """Return what a trainer tells of its progress."""
    figures = {"samples_per_s": 100.0, "loss": loss, "auc": None, "queue": 1}
    return {"step": step, "steps": steps, **figures}


def test_progress_is_told_as_often_as_it_is_shown_on_a_terminal(clock: Clock) -> None:
    """A listener gets plain figures five times a second, and at the last step."""
    heard: list[dict[str, object]] = []
    with ProgressView(title="t", steps=20, tell=heard.append) as view:
        for step in range(1, 21):
            clock.now_s += 0.125
            view.update(report(step), queue_depth=step)

    assert [one["step"] for one in heard] == [1, *range(3, 20, 2), 20]
    assert heard[-1] == {
        "step": 20,
        "steps": 20,
        "samples_per_s": 16.0,
        "loss": pytest.approx(0.5),
        "auc": 1.0,
        "queue": 20,
    }


def test_auc_that_is_not_there_is_told_as_none() -> None:
    """A number that JSON cannot hold is none."""
    heard: list[dict[str, object]] = []
    one_class = StepReport(1, batch([1], [1.0]), 0.5, np.array([0.5], np.float32))
    with ProgressView(title="t", steps=1, tell=heard.append) as view:
        view.update(one_class, queue_depth=0)

    assert heard[0]["auc"] is None


def test_many_trainers_share_one_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, a line every 5 s tells steps, rate, loss and the spread of losses."""
    with ManyView(title="train lr sync", num=3) as view:
        for step in range(1, 5):
            clock.now_s += 2.0
            view.update(0, told(step, loss=0.25))
            view.update(1, told(2 * step, loss=0.75))
            view.show()
        view.end(0)
        clock.now_s += 6.0
        view.update(1, told(10, loss=0.75))

    assert capsys.readouterr().err.splitlines() == [
        "train lr sync: 2 trainers, steps 3 to 4  200 samples/s loss 0.5000 spread 0.5000",
        "train lr sync: 1 trainers (1 ended), steps 10 to 10  100 samples/s loss 0.7500 spread 0.0000",
        "train lr sync: 2 trainers, steps 4 to 10  200 samples/s loss 0.5000 spread 0.5000",
    ]


def test_many_trainers_have_a_bar_each_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal each trainer's bar shows its facts, from before its first step to its end."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with ManyView(title="t", num=2) as view:
        view.update(1, told(5))
        view.end(0)

    shown = capsys.readouterr().err
    assert "trainer 0" in shown
    assert "ended" in shown
    assert "100 samples/s loss 0.5000 AUC nan queue 1" in shown


def test_a_line_of_many_is_not_repeated_when_nothing_moved(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trainers that are done tell the same until the last one is; it is shown once."""
    told = {"step": 4, "steps": 4, "samples_per_s": 2.0, "loss": 0.5, "auc": None, "queue": 0}
    with ManyView(title="t", num=2) as view:
        for _ in range(3):
            for number in range(2):
                clock.now_s += 10.0
                view.update(number, told)

    assert capsys.readouterr().err.splitlines() == [
        "t: 1 trainers, steps 4 to 4  2 samples/s loss 0.5000 spread 0.0000",
        "t: 2 trainers, steps 4 to 4  4 samples/s loss 0.5000 spread 0.0000",
    ]
