"""What a trainer counts, as Prometheus series: how fast it is, how well it learns, what it waits for.

Rooms before and after: ``job`` opens the page, tells it of each step and of the parts that train; what is
served, and to whom, is as with a shard's page.

What always holds: no label names a table, a shard or a trainer, so a page has at most ``SERIES_MAX``
series. Rates are counters: samples a second are ``rate(trainer_samples_total[1m])``, the share of time that
goes into communication is ``rate(trainer_comm_seconds_total[1m])``.
Owner: the training thread writes; the page's thread reads plain numbers, each as it was at some moment.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import torch

import pserver

if TYPE_CHECKING:
    from trainer.config import RunSettings
    from trainer.embedding import CommTime
    from trainer.loop import StepReport
    from trainer.modes.grouped import GroupMode

SERIES_MAX: Final = 40
"""Series of a trainer's page at the most."""

_SMOOTHING = 0.05  # of the gradient norm: about the last twenty steps

_Samples = list[tuple[tuple[str, ...], float]]


class RunMetrics:
    """The figures of one trainer; zeros until it trains."""

    def __init__(self) -> None:
        """Begin with no step."""
        self._mode: GroupMode | None = None
        self._comm: CommTime | None = None
        self._auc: Callable[[], float] = lambda: math.nan
        self._dense_wait_s: Callable[[], float] = lambda: 0.0
        self._begin_s = self._stepped_s = time.monotonic()
        self._told_at = (
            self._begin_s,
            0,
        )  # when heartbeats last told of the samples; the client's loop's
        self._steps = self._samples = self._nonfinite = 0
        self._loss = self._norm = math.nan
        self._trains = False

    def begin(
        self,
        mode: "GroupMode | None" = None,
        comm: "CommTime | None" = None,
        *,
        auc: Callable[[], float],
        dense_wait_s: Callable[[], float],
    ) -> None:
        """Take the parts that train; from now on time counts as training time.

        Args:
            mode: whose waits, pushes and staleness are shown; None: this trainer has no rows.
            comm: of the model's bag; None: it has none.
            auc: of the predictions so far.
            dense_wait_s: seconds that averages of the dense part, or dense trainers, were waited for.
        """
        self._auc, self._dense_wait_s = auc, dense_wait_s
        self._begin_s = self._stepped_s = time.monotonic()
        self._told_at = (self._begin_s, 0)
        self._mode, self._comm = mode, comm
        self._trains = True
        if mode is not None:
            mode.group.tells(self._told)

    def step(self, report: "StepReport", *, loss: float) -> None:
        """Take in a step.

        Args:
            report: of it.
            loss: mean of about the last twenty steps.
        """
        self._stepped_s = time.monotonic()
        self._steps += 1
        self._samples += report.batch.num_samples
        self._nonfinite += not math.isfinite(report.loss)
        self._loss = loss
        norm = report.grad_norm
        if norm is not None and math.isfinite(norm):
            is_first = math.isnan(self._norm)
            self._norm = norm if is_first else self._norm + _SMOOTHING * (norm - self._norm)

    def end(self) -> None:
        """Take in that no step follows."""
        self._trains = False

    def series(self) -> list[pserver.AnySeries]:
        """Return what the page shows."""
        return [*self._of_learning(), *self._of_work(), *self._of_waits(), *_of_gpu()]

    def _of_learning(self) -> list[pserver.AnySeries]:
        return [
            _one("loss", "Mean log loss of about the last twenty steps.", lambda: self._loss),
            _one(
                "auc",
                "AUC of all predictions, each before its row was trained on.",
                lambda: self._auc(),
            ),
            _one("grad_norm", "Global norm of gradients, before clipping.", lambda: self._norm),
            _one(
                "nonfinite_steps_total",
                "Steps whose loss was NaN or infinite.",
                lambda: self._nonfinite,
            ),
        ]

    def _of_work(self) -> list[pserver.AnySeries]:
        return [
            _one("steps_total", "Steps done.", lambda: self._steps),
            _one("samples_total", "Samples trained on.", lambda: self._samples),
            _one("training", "1 while it trains, 0 before and after.", lambda: self._trains),
            _one(
                "step_age_seconds",
                "Since the last step ended: large where a trainer hangs.",
                lambda: time.monotonic() - self._stepped_s if self._trains else 0.0,
            ),
            _one("pushes_total", "Pushes sent.", lambda: self._facts().get("pushes", 0.0)),
            _one("merge_factor", "Steps a push.", lambda: self._facts().get("merge_factor", 0.0)),
            pserver.SpreadSeries(
                "staleness_versions",
                "Versions that others came to between pull and push, of this trainer's pushes.",
                lambda: [] if self._mode is None else self._mode.staleness.counts,
            ),
        ]

    def _of_waits(self) -> list[pserver.AnySeries]:
        return [
            pserver.Series(
                "comm_seconds_total",
                "Seconds that the training thread spent on pulls, pushes and waits for dense parts elsewhere.",
                ("part",),
                self._comm_s,
            ),
            _one("comm_ratio", "Share of the training time that went there.", self._comm_ratio),
            _one(
                "barrier_wait_seconds_total",
                "Seconds that sync rounds waited for other trainers.",
                lambda: self._facts().get("barrier_wait_s", 0.0),
            ),
            _one(
                "queue_wait_seconds_total",
                "Seconds that requests waited for room in the send queues.",
                lambda: 0.0 if self._mode is None else self._mode.group.queue_wait_s,
            ),
            _one(
                "queue_depth",
                "Requests that wait or are open, over all shards.",
                lambda: self._facts().get("queue_depth", 0.0),
            ),
            _one(
                "retries_total",
                "Requests that were sent again.",
                lambda: 0 if self._mode is None else self._mode.client.retries,
            ),
        ]

    def _told(self) -> tuple[float, float]:
        """Return the AUC and the samples a second since this was last asked, for heartbeats."""
        now, samples = time.monotonic(), self._samples
        (before_s, before), self._told_at = self._told_at, (now, samples)
        return self._auc(), (samples - before) / max(now - before_s, 1e-3)

    def _facts(self) -> Mapping[str, float]:
        return {} if self._mode is None else self._mode.facts()

    def _comm_s(self) -> _Samples:
        comm = self._comm
        pull_s, push_s = (0.0, 0.0) if comm is None else (comm.pull_s, comm.push_s)
        return [
            (("pull",), pull_s),
            (("push",), push_s),
            (("dense",), self._dense_wait_s()),
        ]

    def _comm_ratio(self) -> float:
        # To the last step, so that what training came to stays when it is over.
        training_s = self._stepped_s - self._begin_s
        return sum(value for _, value in self._comm_s()) / training_s if training_s > 0.0 else 0.0


def _one(name: str, text: str, read: Callable[[], float]) -> pserver.Series:
    """Return a series without labels."""
    return pserver.Series(name, text, (), lambda: [((), float(read()))])


def _of_gpu() -> list[pserver.AnySeries]:
    """Return the memory of torch's device, where there is one."""
    if not torch.cuda.is_available():
        return []

    def memory() -> _Samples:
        return [
            (("allocated",), float(torch.cuda.memory_allocated())),
            (("reserved",), float(torch.cuda.memory_reserved())),
        ]

    text = "Memory of the GPU that torch's tensors take, and that torch holds for them."
    return [pserver.Series("gpu_memory_bytes", text, ("kind",), memory)]


@contextlib.contextmanager
def metrics_page(settings: "RunSettings", say: Callable[[str], None]) -> Iterator[RunMetrics]:
    """Have a page for as long as a run lasts; give what it shows.

    Args:
        settings: with the address, if there is to be a page.
        say: is told where it is.

    Raises:
        pserver.ConfigError: the address cannot be listened on, or not without TLS and a token.
    """
    metrics = RunMetrics()
    page = pserver.start_page_of(
        settings, metrics.series(), prefix="trainer", command="trainer run"
    )
    if page is None:
        yield metrics
        return
    address, end = page
    say(f"metrics at {address}/metrics")
    try:
        yield metrics
    finally:
        end()
