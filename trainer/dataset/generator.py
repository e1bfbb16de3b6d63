"""The standard CTR workload, made up on the fly: no file, no download, a known best AUC.

Rooms before and after: this room makes a ``Batch`` with the true click probability in
``teacher``; the loop trains on it, ``evaluate`` compares with the teacher's AUC.

The world, shaped like Criteo's: 26 slots of its cardinalities, ids by a power law; 13 dense
features; a click drawn from a hidden logistic teacher with one weight a key::

    id    = min(floor(((c + 1)^(1 - alpha) u + 1 - u)^(1 / (1 - alpha))), c) - 1    u in (0, 1)
    dense ~ N(0, 1)
    z     = -1.2 + 0.35 sum_slots weight(key) + sum_i dense_weight_i dense_i
    click = 1 with probability 1 / (1 + exp(-z))

The first line is the inverse distribution function of the continuous power law x^-alpha
bounded to [1, c + 1]. A weight is uniform with mean 0 and variance 1, and a hash of its key.

What always holds:
    * Row r of the data set is a function of (seed, alpha, scale, r) alone: not of the batch size, of
      where reading began, or of who asks. So a position is enough to resume, and N trainers
      can read one data set.
    * The teacher does not depend on the seed: another seed is fresh rows of the same world, which is
      what a held-out set is.

Cost: about 2 ms a batch of 4096 on one core; no global interpreter lock held.
"""

import math
from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pserver import GOLDEN, mix64
from trainer.dataset.batch import Batch, Floats
from trainer.dataset.keys import Keys, slot_terms

Doubles: TypeAlias = NDArray[np.float64]

CARDINALITIES: Final = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct ids a slot in the Criteo-Kaggle data: 33.8 million in all."""

NUM_SLOTS: Final = len(CARDINALITIES)
NUM_DENSE: Final = 13

SCALED_MIN: Final = 1000
"""``scale`` shrinks only slots of more ids than this."""

SCALE_MAX: Final = 1e6
"""10 million ids a slot times this is below 2^53, up to where keys of all slots are distinct."""

INTERCEPT: Final = -1.2
WEIGHT_SCALE: Final = 0.35
DENSE_WEIGHTS: Final = np.linspace(-0.3, 0.3, NUM_DENSE)

_DRAWS = np.uint64(64)  # random words reserved a row: 26 ids, 13 normals, 1 click, spare
_DENSE_DRAW = 26
_CLICK_DRAW = 39
_TEACHER_SALT = np.uint64(11)  # of the first 24 the one with the best AUC that the reference has
_SQRT_12 = 12.0**0.5
_UNIT = 1.0 / (1 << 52)


class Generator:
    """A data set of ``rows`` rows, each batch made when it is asked for.

    Iterating begins at ``skip_rows`` each time; the last batch may be short. Immutable, so
    several threads may iterate at once, each with an iterator of its own.
    """

    def __init__(
        self,
        seed: int,
        *,
        batch_size: int,
        rows: int,
        skip_rows: int = 0,
        alpha: float = 1.05,
        scale: float = 1.0,
    ) -> None:
        """Choose the data set; nothing is computed yet.

        Args:
            seed: any int; taken modulo 2^64.
            batch_size: rows a batch, at least 1.
            rows: where the data set ends, counted from row 0.
            skip_rows: rows already read, as in ``Batch.position`` of the last one used.
            alpha: exponent of the power law of ids; above 0. At 1 exactly its limit is used.
            scale: multiplies the cardinality of every slot of more than 1000 ids; above 0, at
                most ``SCALE_MAX``.

        Raises:
            ValueError: an argument is out of its range.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if rows < 0 or skip_rows < 0:
            raise ValueError(
                f"rows and skip_rows must be at least 0, got rows {rows}, skip_rows {skip_rows}"
            )
        if not (0 < alpha < np.inf and 0 < scale <= SCALE_MAX):
            raise ValueError(
                f"alpha must be finite and above 0 and scale in (0, {SCALE_MAX:g}], "
                f"got alpha {alpha}, scale {scale}"
            )
        self.cardinalities = scaled_cardinalities(scale)
        self._batch_size = batch_size
        self._rows = rows
        self._skip_rows = skip_rows
        # numba hands back a Python int, which it would take for another type when large
        self._stream = np.uint64(mix64(np.uint64(seed % (1 << 64))))
        self._laws = np.array([_power_law(c, alpha) for c in self.cardinalities])

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order."""
        for start in range(self._skip_rows, self._rows, self._batch_size):
            yield self.batch(start, rows=min(self._batch_size, self._rows - start))

    def batch(self, start: int, *, rows: int) -> Batch:
        """Return the batch of ``rows`` rows that begins at row ``start`` of the data set."""
        keys = np.empty((rows, NUM_SLOTS), np.uint64)
        dense = np.empty((rows, NUM_DENSE), np.float32)
        labels = np.empty(rows, np.float32)
        teacher = np.empty(rows, np.float32)
        _fill(self._stream, start, self._laws, _TERMS, DENSE_WEIGHTS, keys, dense, labels, teacher)
        return Batch(
            keys=keys.reshape(-1),
            offsets=None,
            num_slots=NUM_SLOTS,
            dense=dense,
            labels=labels,
            teacher=teacher,
            position=start + rows,
        )


def scaled_cardinalities(scale: float) -> tuple[int, ...]:
    """Return the ids a slot has: small slots keep all, no slot falls below 2."""
    return tuple(max(2, int(c * scale)) if c > SCALED_MIN else c for c in CARDINALITIES)


_TERMS = slot_terms(np.arange(NUM_SLOTS))


def _power_law(cardinality: int, alpha: float) -> tuple[float, float, float]:
    """Return (ids, (ids + 1)^(1 - alpha), 1 / (1 - alpha)); the exponent 0 stands for alpha 1."""
    if abs(alpha - 1.0) < 1e-9:
        return float(cardinality), float(np.log(cardinality + 1.0)), 0.0
    return float(cardinality), (cardinality + 1.0) ** (1.0 - alpha), 1.0 / (1.0 - alpha)


@njit(nogil=True, cache=True, inline="always")
def _uniform(stream: np.uint64, draw: np.uint64) -> float:
    """Return random word number ``draw`` of the stream as a float64 in (0, 1), both ends out."""
    word = mix64(stream + (draw + np.uint64(1)) * GOLDEN)
    return (np.int64(word >> np.uint64(12)) + 0.5) * _UNIT


@njit(nogil=True, cache=True, inline="always")
def _teacher_weight(key: np.uint64) -> float:
    """Return the hidden weight of a key: uniform, mean 0, variance 1."""
    word = mix64(key ^ _TEACHER_SALT)
    return (np.int64(word >> np.uint64(12)) * _UNIT - 0.5) * _SQRT_12


@njit(nogil=True, cache=True, inline="always")
def _fill_ids(
    stream: np.uint64,
    draw: np.uint64,
    laws: Doubles,
    terms: Keys,
    keys: Keys,  # (F,) written
) -> float:
    """Draw one row's ids, write their keys and return the sum of their weights."""
    total = 0.0
    for slot in range(keys.shape[0]):
        u = _uniform(stream, draw + np.uint64(slot))
        if laws[slot, 2] == 0.0:
            x = math.exp(u * laws[slot, 1])
        else:
            x = (laws[slot, 1] * u + (1.0 - u)) ** laws[slot, 2]
        slot_id = np.int64(min(x, laws[slot, 0])) - 1
        key = mix64(np.uint64(slot_id) + terms[slot])
        keys[slot] = key
        total += _teacher_weight(key)
    return total


@njit(nogil=True, cache=True, inline="always")
def _normal(u: float) -> float:
    """Return the standard normal quantile of u in (0, 1), right to seven digits.

    Source:
        PPND7 of Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution",
        Applied Statistics 37 (1988). One word a normal, and half the time of Box-Muller.
    """
    q = u - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        top = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179
        bottom = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0
        return q * top / bottom
    r = math.sqrt(-math.log(min(u, 1.0 - u)))
    if r <= 5.0:
        r -= 1.6
        top = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
        bottom = (0.12021132975 * r + 0.73700164250) * r + 1.0
    else:
        r -= 5.0
        top = ((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150
        bottom = (0.012258202635 * r + 0.24197894225) * r + 1.0
    return top / bottom if q > 0.0 else -top / bottom


@njit(nogil=True, cache=True, inline="always")
def _fill_dense(
    stream: np.uint64,
    draw: np.uint64,
    dense_weights: Doubles,
    dense: Floats,  # (num_dense,) written
) -> float:
    """Draw one row's dense features and return their part of the logit."""
    total = 0.0
    for index in range(dense.shape[0]):
        dense[index] = _normal(_uniform(stream, draw + np.uint64(index)))
        total += dense[index] * dense_weights[index]
    return total


@njit(nogil=True, cache=True)
def _fill(  # noqa: PLR0913 - a kernel takes arrays, not objects
    stream: np.uint64,
    start: int,  # number of the first row
    laws: Doubles,  # (F, 3) from _power_law
    terms: Keys,  # (F,)
    dense_weights: Doubles,  # (num_dense,)
    keys: Keys,  # (B, F) written
    dense: Floats,  # (B, num_dense) written
    labels: Floats,  # (B,) written
    teacher: Floats,  # (B,) written
) -> None:
    """Write rows ``start`` to ``start + B`` of the data set."""
    for row in range(keys.shape[0]):
        draw = np.uint64(start + row) * _DRAWS
        z = WEIGHT_SCALE * _fill_ids(stream, draw, laws, terms, keys[row])
        z += _fill_dense(stream, draw + np.uint64(_DENSE_DRAW), dense_weights, dense[row])
        probability = 1.0 / (1.0 + math.exp(-(z + INTERCEPT)))
        click = _uniform(stream, draw + np.uint64(_CLICK_DRAW)) < probability
        labels[row] = 1.0 if click else 0.0
        teacher[row] = probability
