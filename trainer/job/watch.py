"""The watch list of a run: what tells that training goes as it should, and what it costs.

Rooms before and after: ``job`` tells it of each step and asks at the end; a mode adds its own figures
(``Mode.facts``); ``summary`` shows them, and ``launch`` merges those of several trainers.

======================  ====================================================================
``loss``                mean log loss of about the last twenty steps
``loss_spread``         largest less smallest ``loss`` of the trainers
``grad_norm``           mean global norm of a step's gradients, before clipping
``nonfinite``           steps whose loss was NaN or infinite
``queue_depth_max``     most requests that waited or were open, over all shards
``pull_share``          share of the training time that went into waiting for and asking for rows
``push_share``          share that went into splitting, queueing and flushing pushes
``dense_*_bytes``       what this trainer holds of the dense part, see ``memory``
======================  ====================================================================

and of the mode: ``steps``, ``pushes``, ``merge_factor``, ``staleness_p50``, ``staleness_p99``,
``staleness_max``, ``pull_wait_s``, ``push_wait_s`` and what else it measures.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainer.dense.memory import FACTS

if TYPE_CHECKING:
    from trainer.loop import StepReport

SHARE_MAX = 0.2
"""Pull and push shares that together are above this are warned of."""

_SMOOTHING = 0.05  # of the loss: about the last twenty steps
_ADDED = ("steps", "pushes", "nonfinite")
_LARGEST = ("staleness_p99", "staleness_max", "queue_depth_max", *FACTS)

Facts = dict[str, float]


class Watch:
    """The figures of one trainer. Owner: the training thread."""

    def __init__(self) -> None:
        """Begin with no step."""
        self.steps = 0
        self.samples = 0
        self.loss = 0.0
        self._norms = 0.0
        self._num_norms = 0
        self._nonfinite = 0
        self._queue_depth_max = 0

    def step(self, report: "StepReport", *, queue_depth: int) -> None:
        """Take in one step."""
        self.steps += 1
        self.samples += report.batch.num_samples
        if math.isfinite(report.loss):
            weight = max(_SMOOTHING, 1.0 / self.steps)
            self.loss += weight * (report.loss - self.loss)
        else:
            self._nonfinite += 1
        if report.grad_norm is not None and math.isfinite(report.grad_norm):
            self._norms += report.grad_norm
            self._num_norms += 1
        self._queue_depth_max = max(self._queue_depth_max, queue_depth)

    def facts(self, mode: Mapping[str, float], *, pull_share: float, push_share: float) -> Facts:
        """Return the watch list.

        Args:
            mode: what the mode measured.
            pull_share: of the training time.
            push_share: of the training time.
        """
        facts = {
            "loss": self.loss,
            "nonfinite": float(self._nonfinite),
            "queue_depth_max": float(self._queue_depth_max),
            "pull_share": pull_share,
            "push_share": push_share,
            **{name: value for name, value in mode.items() if name != "queue_depth"},
        }
        if self._num_norms:
            facts["grad_norm"] = self._norms / self._num_norms
        return facts


def merged(lists: Sequence[Facts]) -> Facts:
    """Return the watch list of all trainers: counts added, the worst of tails, else the mean.

    >>> merged([{"loss": 0.5, "pushes": 2.0}, {"loss": 0.25, "pushes": 3.0}])
    {'loss': 0.375, 'pushes': 5.0, 'loss_spread': 0.25}
    """
    facts: Facts = {}
    for name in dict.fromkeys(name for one in lists for name in one):
        values = [one[name] for one in lists if name in one]
        if name in _ADDED:
            facts[name] = sum(values)
        elif name in _LARGEST:
            facts[name] = max(values)
        else:
            facts[name] = sum(values) / len(values)
    losses = [one["loss"] for one in lists if "loss" in one]
    facts["loss_spread"] = max(losses, default=0.0) - min(losses, default=0.0)
    return facts


def warnings(facts: Facts) -> list[str]:
    """Return what the user should look at, with what to do.

    >>> warnings({"pull_share": 0.25, "push_share": 0.05})[0]
    'communication took 30 % of the time (over 20 %): pulls 25 % (raise --prefetch), pushes 5 %'
    """
    told = []
    pull, push = (100.0 * facts.get(name, 0.0) for name in ("pull_share", "push_share"))
    if pull + push > 100.0 * SHARE_MAX:
        what = f"pulls {pull:.0f} %, pushes {push:.0f} % (push less often: half_async or geo)"
        if pull > push:
            what = f"pulls {pull:.0f} % (raise --prefetch), pushes {push:.0f} %"
        told.append(
            f"communication took {pull + push:.0f} % of the time (over "
            f"{100.0 * SHARE_MAX:.0f} %): {what}"
        )
    if facts.get("nonfinite", 0.0):
        told.append(
            f"the loss of {facts['nonfinite']:.0f} steps was NaN or infinite: lower the learning "
            "rate, or give --clip-norm"
        )
    return told
