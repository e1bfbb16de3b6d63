"""What a run shows while it goes on, on standard error.

Rooms before and after: ``job`` reports each step, ``launch`` what each of its trainers told; on a terminal
this is a live bar a trainer, elsewhere a line every few seconds.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import pserver
from trainer.evaluate import StreamingAuc
from trainer.loop import StepReport

_LINE_EVERY_S = 5.0
_REFRESH_EVERY_S = 0.2
_SMOOTHING = 0.05  # of the shown loss: about the last twenty steps

Tell: TypeAlias = Callable[[dict[str, Any]], None]
"""Is told the progress, see ``ProgressView``."""


class ProgressView:
    """The screen of one run. Owner: the training thread."""

    def __init__(
        self,
        *,
        title: str,
        steps: int | None,
        tell: Tell = lambda _: None,
    ) -> None:
        """Choose the form.

        Args:
            title: what is trained.
            steps: in all, if known.
            tell: is told the progress too, as often as it is shown on a terminal: step, steps,
                samples_per_s, loss, auc (None while there is none) and queue.
        """
        self._tell = tell
        self._told_s = 0.0
        self._console = Console(stderr=True)
        self._is_live = self._console.is_terminal and not pserver.logs_are_json()
        self._steps = steps
        self._title = title
        self._auc = StreamingAuc()
        self._loss = 0.0
        self._samples = 0
        self._begin_s = time.perf_counter()
        self._shown_s = 0.0
        self._bar = _bars(self._console)
        self._task = self._bar.add_task(title, total=steps, facts="")

    def __enter__(self) -> "ProgressView":
        """Begin to show."""
        self._begin_s = time.perf_counter()
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Show the end."""
        self._bar.stop()

    @property
    def auc(self) -> float:
        """Return the AUC of the predictions made so far, each before its row was trained on."""
        return self._auc.value

    def update(self, report: StepReport, *, queue_depth: int) -> None:
        """Take in one step."""
        self._auc.update(report.probabilities, report.batch.labels)
        self._samples += report.batch.num_samples
        weight = max(_SMOOTHING, 1.0 / report.step)
        self._loss += weight * (report.loss - self._loss)
        now = time.perf_counter()
        is_last = report.step == self._steps
        if now - self._told_s >= _REFRESH_EVERY_S or is_last:
            self._told_s = now
            self._tell(self._progress(report.step, now, queue_depth))
        every_s = _REFRESH_EVERY_S if self._is_live else _LINE_EVERY_S
        if now - self._shown_s < every_s and not is_last:
            return
        self._shown_s = now
        facts = _facts(self._progress(report.step, now, queue_depth))
        if self._is_live:
            self._bar.update(self._task, completed=report.step, facts=facts)
        else:
            of = f"/{self._steps}" if self._steps else ""
            text = f"{self._title}: step {report.step}{of}  {facts}"
            say(self._console, text, **self._progress(report.step, now, queue_depth))

    def _progress(self, step: int, now: float, queue_depth: int) -> dict[str, Any]:
        auc = self.auc
        return {
            "step": step,
            "steps": self._steps,
            "samples_per_s": self._samples / (now - self._begin_s),
            "loss": self._loss,
            "auc": None if auc != auc else auc,
            "queue": queue_depth,
        }


class ManyView:
    """The screen of several trainers. Owner: the thread that launched them."""

    def __init__(self, *, title: str, num: int, each: int = 1) -> None:
        """Choose the form.

        Args:
            title: what is trained.
            num: trainers.
            each: trainers that compute the same samples together, such as those of a pipeline.
        """
        self._each = each
        self._console = Console(stderr=True)
        self._is_live = self._console.is_terminal and not pserver.logs_are_json()
        self._title = title
        self._told: list[dict[str, Any]] = [{} for _ in range(num)]
        self._ended: set[int] = set()
        self._shown_s = time.perf_counter()
        self._last_line = ""
        self._bar = _bars(self._console)
        self._tasks = [
            self._bar.add_task(f"trainer {number}", total=None, facts="waits for its first step")
            for number in range(num)
        ]

    def __enter__(self) -> "ManyView":
        """Begin to show."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Show the end."""
        self.show(is_last=True)
        self._bar.stop()

    def update(self, number: int, told: dict[str, Any]) -> None:
        """Take in what a trainer told: see ``ProgressView``, or ``ways``, what it showed at its start."""
        if "ways" in told:
            say(self._console, told["ways"])
            return
        self._told[number] = told
        self._bar.update(
            self._tasks[number],
            total=told["steps"],
            completed=told["step"],
            facts=_facts(told),
        )
        self.show()

    def end(self, number: int) -> None:
        """Take in that a trainer has ended: it is told of on its own, unless all have."""
        self._ended.add(number)
        self._bar.update(self._tasks[number], facts="ended")

    def show(self, *, is_last: bool = False) -> None:
        """Write a line where there is no terminal, if it is time for one and it says something new."""
        now = time.perf_counter()
        runs = [n for n in range(len(self._told)) if is_last or n not in self._ended]
        told = [self._told[n] for n in runs if n % self._each == 0 and "loss" in self._told[n]]
        if self._is_live or not told or not (is_last or now - self._shown_s >= _LINE_EVERY_S):
            return
        self._shown_s = now
        steps = [one["step"] for one in told]
        losses = [one["loss"] for one in told]
        rate = sum(one["samples_per_s"] for one in told)
        line = (
            f"{self._title}: {len(told) * self._each} trainers{self._gone(is_last=is_last)}, "
            f"steps {min(steps)} to {max(steps)}  "
            f"{rate:,.0f} samples/s loss {sum(losses) / len(losses):.4f} "
            f"spread {max(losses) - min(losses):.4f}"
        )
        if line != self._last_line:
            say(self._console, line, trainers=len(told), samples_per_s=rate)
        self._last_line = line

    def _gone(self, *, is_last: bool) -> str:
        """Return how many have ended, in brackets, while others go on."""
        return f" ({len(self._ended)} ended)" if self._ended and not is_last else ""


def say(console: Console, text: str, **facts: object) -> None:
    """Write a line for people, or an event where standard error is for JSON: its facts, or else the text."""
    if pserver.logs_are_json():
        structlog.get_logger(__name__).info("progress", **(facts or {"text": text}))
    else:
        console.out(text, highlight=False)


def tell_user(text: str) -> None:
    """Tell the user something once, beside the progress."""
    say(Console(stderr=True), text)


def _bars(console: Console) -> Progress:
    """Return bars, one a trainer; nothing where there is no terminal."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal or pserver.logs_are_json(),
    )


def _facts(told: dict[str, Any]) -> str:
    """Return one trainer's progress in a few words."""
    auc = "nan" if told["auc"] is None else f"{told['auc']:.4f}"
    return (
        f"{told['samples_per_s']:,.0f} samples/s loss {told['loss']:.4f} AUC {auc} "
        f"queue {told['queue']}"
    )
