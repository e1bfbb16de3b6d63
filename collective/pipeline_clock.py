"""Where the time of one rank of a pipeline goes, in parts that do not overlap.

Rooms before and after: ``pipeline`` and ``pipeline_queue`` say what begins; whoever steps the pipeline says it of the rest of a
step, and shows the parts.

======================  ====================================================================
``compute``             forward and backward of this rank's stages
``bubble``              waited for a tensor that another stage had not given yet, or for its end
``hand_over``           giving tensors, those on their way, and telling the loss
``rows``                what comes before the pipeline: this rank makes the inputs, or waits while the first one does
``dense_step``          averaging gradients over pipelines, their norm, the optimizer
``rest``                what is between two steps
======================  ====================================================================

A parcel says its age: seconds from the begin of the step on the rank of the first stage until it was given. So a wait
is cut where the parcel was given, and that of the first parcel also where the step began, without clocks that agree. A
message takes as long as another, so what is left over is counted right in the mean of the ranks.

What always holds: the parts sum to ``total_s``. Owner: the training thread.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Literal, get_args

Part = Literal["compute", "bubble", "hand_over", "rows", "dense_step", "rest"]

PARTS: tuple[Part, ...] = get_args(Part)


class StepClock:
    """Adds up seconds by part; counts nothing until it is told of the first part.

    Attributes:
        seconds: of each part, up to the last ``to``.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Begin with nothing.

        Args:
            now: returns seconds that never go back.
        """
        self.seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._now = now
        self._part: Part | None = None
        self._started_s = self._since_s = math.nan
        self._step_s = math.nan  # when the step began on the first stage's rank, by this clock

    @property
    def total_s(self) -> float:
        """Return the seconds from the first part's begin to the last ``to``."""
        return self._since_s - self._started_s if self._part else 0.0

    @property
    def age_s(self) -> float:
        """Return the seconds since the step began; NaN: it has not, as far as this rank knows."""
        return self._now() - self._step_s

    def to(self, part: Part) -> Part | None:
        """Begin a part, and end the one before, which is returned; None: nothing was counted before."""
        before = self._part
        if before is None:
            self._started_s = self._since_s = self._now()
        else:
            self._count(until_s=self._now())
        self._part = part
        return before

    @contextlib.contextmanager
    def during(self, part: Part) -> Iterator[None]:
        """Count what runs within as a part, and go on with the one before."""
        before = self.to(part)
        try:
            yield
        finally:
            self.to(before or "rest")

    def step(self, *, has_inputs: bool) -> None:
        """Say that a step of the pipeline begins: now where the inputs are; elsewhere the first parcel tells."""
        self._step_s = self._now() if has_inputs else math.nan

    def waited(self, *, age_s: float, came_s: float) -> None:
        """Cut a wait, which began with the last ``to`` and ends now, and go on with ``hand_over``.

        Args:
            age_s: of the parcel that was waited for, when it was given.
            came_s: when it began to arrive, by this clock.
        """
        now_s = self._now()
        if math.isnan(self._step_s):
            self._step_s = came_s - age_s
            self._part = "rows"
            self._count(until_s=min(self._step_s, now_s))
        self._part = "bubble"
        self._count(until_s=min(self._step_s + age_s, now_s))
        self._part = "hand_over"

    def _count(self, *, until_s: float) -> None:
        """Count what goes on up to a moment, unless that is past."""
        assert self._part is not None, "it counts something"
        if until_s > self._since_s:
            self.seconds[self._part] += until_s - self._since_s
            self._since_s = until_s


def bubble_share(bubble_s: float, compute_s: float) -> float:
    """Return the share of the time for which stages compute or wait for each other that they wait.

    >>> bubble_share(1.0, 3.0), bubble_share(0.0, 0.0)
    (0.25, 0.0)
    """
    both = bubble_s + compute_s
    return bubble_s / both if both else 0.0
