"""What a run shows while it goes on, on standard error.

Rooms before and after: ``job`` reports each step; on a terminal this is one live bar, elsewhere a
line every few seconds.
"""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.evaluate import StreamingAuc
from trainer.loop import StepReport

_LINE_EVERY_S = 5.0
_REFRESH_EVERY_S = 0.2
_SMOOTHING = 0.05  # of the shown loss: about the last twenty steps


class ProgressView:
    """The screen of one run. Owner: the training thread."""

    def __init__(self, *, title: str, steps: int | None) -> None:
        """Choose the form.

        Args:
            title: what is trained.
            steps: in all, if known.
        """
        self._console = Console(stderr=True)
        self._is_live = self._console.is_terminal
        self._steps = steps
        self._title = title
        self._auc = StreamingAuc()
        self._loss = 0.0
        self._samples = 0
        self._begin_s = time.perf_counter()
        self._shown_s = 0.0
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not self._is_live,
        )
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
        every_s = _REFRESH_EVERY_S if self._is_live else _LINE_EVERY_S
        if now - self._shown_s < every_s and not is_last:
            return
        self._shown_s = now
        facts = (
            f"{self._samples / (now - self._begin_s):,.0f} samples/s loss {self._loss:.4f} "
            f"AUC {self.auc:.4f} queue {queue_depth}"
        )
        if self._is_live:
            self._bar.update(self._task, completed=report.step, facts=facts)
        else:
            of = f"/{self._steps}" if self._steps else ""
            self._console.out(f"{self._title}: step {report.step}{of}  {facts}", highlight=False)
