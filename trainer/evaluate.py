"""How good predicted click probabilities are: AUC, log loss and COPC; AUC streaming too.

Rooms before and after: ``loop`` hands over the probabilities and labels of held-out batches
(pulled without creating rows, so that evaluation changes nothing); ``progress`` shows the numbers.

What always holds:
    * A NaN is refused where it comes in, so a broken model never gets a good-looking number.
    * No value yet (no samples, or labels of one class only for an AUC) is NaN, never 0 or 0.5.
    * Sums are in float64 whatever the dtype of the input.
"""

import math
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainer.errors import TrainerError

Scores: TypeAlias = NDArray[np.floating[Any]]
"""Floats that order samples: logits or probabilities."""

Probabilities: TypeAlias = NDArray[np.floating[Any]]
"""Floats in [0, 1]."""

Labels: TypeAlias = NDArray[np.floating[Any]]
"""Floats that are 0 or 1."""

Doubles: TypeAlias = NDArray[np.float64]
"""float64 values."""

LOG_LOSS_CLIP: Final = 1e-7
"""Probabilities are kept this far from 0 and 1: float32 rounds to 1 from 3e-8 on."""

AUC_BUCKETS: Final = 1 << 16
"""Buckets of ``StreamingAuc``: 1 MiB of counts, and 1.5e-5 of probability a bucket."""


def auc(scores: Scores, labels: Labels) -> float:
    """Return the chance that a positive scores above a negative, a tie counting one half.

    Exact: the rank sum of the positives, tied scores sharing their mean rank.

    Args:
        scores: (B,) floats, any scale; infinities are ordered like other values.
        labels: (B,) 0 or 1.

    Returns:
        The AUC; NaN when the labels are of one class only.

    Raises:
        TrainerError: the shapes differ, a score is NaN, or a label is neither 0 nor 1.

    Source:
        Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically
        Larger than the Other", Annals of Mathematical Statistics 18 (1947).

    >>> auc(np.array([0.1, 0.5, 0.5, 0.9]), np.array([0.0, 0.0, 1.0, 1.0]))
    0.875
    """
    _check("auc", scores, labels)
    if scores.size == 0:
        return math.nan
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    counts = np.diff(begins, append=len(ordered))
    positives = np.add.reduceat(labels[order].astype(np.float64), begins)
    return _auc_of_counts(positives, counts - positives)


def log_loss(probabilities: Probabilities, labels: Labels) -> float:
    """Return the mean negative log likelihood of the labels, in nats.

    Probabilities are clipped to ``LOG_LOSS_CLIP`` from 0 and 1, so one sure mistake costs 16.1.

    Returns:
        The log loss; NaN when there are no samples.

    Raises:
        TrainerError: the shapes differ, a probability is NaN or outside [0, 1], or a label is
            neither 0 nor 1.

    >>> log_loss(np.array([0.5, 0.5]), np.array([0.0, 1.0])) == math.log(2)
    True
    """
    _check("log_loss", probabilities, labels)
    _check_range("log_loss", probabilities)
    if probabilities.size == 0:
        return math.nan
    clipped = np.clip(probabilities.astype(np.float64), LOG_LOSS_CLIP, 1.0 - LOG_LOSS_CLIP)
    return float(-np.mean(np.where(labels == 1, np.log(clipped), np.log1p(-clipped))))


def copc(probabilities: Probabilities, labels: Labels) -> float:
    """Return clicks over predicted clicks: 1 where a model promises as many as come, below 1 where it promises more.

    Returns:
        The ratio; NaN when no clicks are predicted, or there are no samples.

    Raises:
        TrainerError: as of ``log_loss``.

    >>> copc(np.array([0.5, 0.25, 0.25]), np.array([1.0, 0.0, 1.0]))
    2.0
    """
    _check("copc", probabilities, labels)
    _check_range("copc", probabilities)
    predicted = float(probabilities.sum(dtype=np.float64))
    return float(labels.sum(dtype=np.float64)) / predicted if predicted else math.nan


class StreamingAuc:
    """The AUC of any number of samples in fixed memory. Owned by the thread that updates it.

    Counts positives and negatives in equal buckets of probability; a pair in one bucket counts
    one half, as a tie. So it is off by at most half the share of such pairs: below 1e-4
    unless most probabilities crowd into a few thousandths.

    Attributes:
        counts: (2, AUC_BUCKETS) int64 by label, then bucket. Counts of several trainers add up.
    """

    def __init__(self) -> None:
        """Begin with no samples."""
        self.counts = np.zeros((2, AUC_BUCKETS), np.int64)

    def update(self, probabilities: Probabilities, labels: Labels) -> None:
        """Add the samples of a batch, (B,) each.

        Raises:
            TrainerError: as ``log_loss`` does. Nothing was added.
        """
        _check("StreamingAuc", probabilities, labels)
        _check_range("StreamingAuc", probabilities)
        scaled = (probabilities.astype(np.float64) * AUC_BUCKETS).astype(np.int64)
        buckets = np.minimum(scaled, AUC_BUCKETS - 1)
        for label in (0, 1):
            chosen = buckets[labels == label]
            self.counts[label] += np.bincount(chosen, minlength=AUC_BUCKETS)

    def merge(self, other: "StreamingAuc") -> None:
        """Add the samples that another one has seen, as when trainers share an evaluation."""
        self.counts += other.counts

    @property
    def num_samples(self) -> int:
        """Samples seen so far."""
        return int(self.counts.sum())

    @property
    def value(self) -> float:
        """The AUC of the samples so far; NaN while they are of one class only."""
        return _auc_of_counts(self.counts[1].astype(np.float64), self.counts[0])


class StreamingMean:
    """The mean of any number of values. Owned by the thread that updates it."""

    def __init__(self) -> None:
        """Begin with no values."""
        self._total = 0.0
        self._count = 0

    def update(self, values: NDArray[np.floating[Any]]) -> None:
        """Add values of any shape, each with weight 1.

        Raises:
            TrainerError: a value is NaN. Nothing was added.
        """
        _check_no_nan("StreamingMean", values)
        self._total += float(values.sum(dtype=np.float64))
        self._count += values.size

    @property
    def num_values(self) -> int:
        """Values seen so far."""
        return self._count

    @property
    def value(self) -> float:
        """The mean so far; NaN while there are no values."""
        return self._total / self._count if self._count else math.nan


def _auc_of_counts(positives: NDArray[Any], negatives: NDArray[Any]) -> float:
    """Return the AUC from the positives and negatives of each score, scores ascending."""
    total = float(positives.sum()) * float(negatives.sum())
    if total == 0.0:
        return math.nan
    below: Doubles = np.cumsum(negatives, dtype=np.float64) - 0.5 * negatives
    return float(np.dot(positives.astype(np.float64), below)) / total


def _check(where: str, scores: NDArray[Any], labels: NDArray[Any]) -> None:
    """Refuse shapes that differ, scores that are NaN and labels that are neither 0 nor 1."""
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise TrainerError(
            f"{where}: predictions and labels must both be (B,), got {scores.shape} "
            f"and {labels.shape}"
        )
    _check_no_nan(where, scores)
    good = (labels == 0) | (labels == 1)
    if not good.all():
        bad = int(np.argmin(good))
        raise TrainerError(f"{where}: labels must be 0 or 1, got {labels[bad]} for sample {bad}")


def _check_no_nan(where: str, values: NDArray[Any]) -> None:
    """Refuse NaN; name the first."""
    nan = np.isnan(values)
    if nan.any():
        raise TrainerError(
            f"{where}: no value may be NaN, got {int(nan.sum())} of {nan.size}, the first at "
            f"{int(np.argmax(nan))}; look for a learning rate that is too high"
        )


def _check_range(where: str, probabilities: Probabilities) -> None:
    """Refuse values outside [0, 1]; name the first."""
    good = (probabilities >= 0) & (probabilities <= 1)
    if not good.all():
        bad = int(np.argmin(good))
        raise TrainerError(
            f"{where}: probabilities must be in [0, 1], got {probabilities[bad]} for sample "
            f"{bad}; pass logits through a sigmoid first"
        )
