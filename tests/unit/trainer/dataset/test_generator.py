"""What ``trainer.dataset.generator`` promises: rows that are a function of their number alone."""

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from trainer.dataset import generator
from trainer.dataset.batch import Batch
from trainer.dataset.generator import CARDINALITIES, NUM_DENSE, NUM_SLOTS, Generator
from trainer.dataset.keys import slot_keys
from trainer.evaluate import auc

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def slow_mix(x: int) -> int:
    """SplitMix64's finalizer in Python's own integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def slow_row(seed: int, row: int, *, alpha: float) -> tuple[list[int], list[float], float, bool]:
    """Return one row's ids, dense features, click probability and click, a draw at a time."""
    words = [slow_mix((slow_mix(seed) + (row * 64 + d + 1) * GOLDEN) & MASK) for d in range(40)]
    draws = [((word >> 12) + 0.5) / 2**52 for word in words]
    ids = []
    for u, c in zip(draws, CARDINALITIES, strict=False):
        if alpha == 1:
            x = (c + 1) ** u
        else:
            x = ((c + 1) ** (1 - alpha) * u + (1 - u)) ** (1 / (1 - alpha))
        ids.append(int(min(x, c)) - 1)
    dense = [NormalDist().inv_cdf(u) for u in draws[NUM_SLOTS : NUM_SLOTS + NUM_DENSE]]
    z = -1.2 + sum(x * w for x, w in zip(dense, np.linspace(-0.3, 0.3, 13), strict=True))
    for slot, raw in enumerate(ids):
        key = slow_mix((raw + (slot + 1) * GOLDEN) & MASK)
        z += 0.35 * ((slow_mix(key ^ 11) >> 12) / 2**52 - 0.5) * 12**0.5
    probability = 1 / (1 + np.exp(-z))
    return ids, dense, probability, draws[39] < probability


def joined(batches: list[Batch]) -> list[np.ndarray]:
    """Return the rows of all batches, field by field."""
    assert all(batch.teacher is not None for batch in batches)
    return [
        np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("keys", "dense", "labels", "teacher")
    ]


def equal(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    """Whether all fields are equal to the bit."""
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.05, 2.0])
def test_rows_are_what_the_formula_says(alpha: float) -> None:
    """Ids, dense features, probability and click equal a slow reading of the formula."""
    batch = Generator(5, batch_size=1, rows=1, alpha=alpha).batch(1000, rows=200)

    expected = [slow_row(5, row, alpha=alpha) for row in range(1000, 1200)]

    ids = np.array([row[0] for row in expected])
    assert np.array_equal(batch.keys.reshape(200, 26), slot_keys(ids, np.arange(26)))
    np.testing.assert_allclose(batch.dense, [row[1] for row in expected], rtol=1e-6, atol=1e-6)
    assert batch.teacher is not None
    np.testing.assert_allclose(batch.teacher, [row[2] for row in expected], rtol=1e-5)
    assert batch.labels.tolist() == [float(row[3]) for row in expected]


def test_rows_do_not_depend_on_batch_size_or_start() -> None:
    """Any batch size, and reading on from any position, gives the same rows to the bit."""
    whole = joined(list(Generator(1, batch_size=100, rows=100)))
    batches = list(Generator(1, batch_size=7, rows=100))

    assert [b.position for b in batches] == [*range(7, 100, 7), 100]
    assert [b.num_samples for b in batches] == [7] * 14 + [2]
    assert equal(joined(batches), whole)
    for batch in batches[:-1]:
        rest = list(Generator(1, batch_size=9, rows=100, skip_rows=batch.position))
        tail = [whole[0][26 * batch.position :], *(field[batch.position :] for field in whole[1:])]
        assert equal(joined(rest), tail)


def test_every_pass_gives_the_same_rows() -> None:
    """Two passes, and two generators of one seed, agree to the bit; another seed does not."""
    data = Generator(3, batch_size=50, rows=100)

    first = joined(list(data))

    assert equal(first, joined(list(data)))
    assert equal(first, joined(list(Generator(3, batch_size=50, rows=100))))
    other = joined(list(Generator(4, batch_size=50, rows=100)))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_no_rows_give_no_batches() -> None:
    """An empty range is empty, also when more rows are skipped than there are."""
    assert list(Generator(0, batch_size=5, rows=0)) == []
    assert list(Generator(0, batch_size=5, rows=10, skip_rows=11)) == []


def test_the_best_auc_is_the_known_one() -> None:
    """At scale 1 the teacher's own AUC is 0.860, its probabilities are calibrated, 26 % click."""
    batch = Generator(17, batch_size=1, rows=1).batch(0, rows=300_000)

    assert batch.teacher is not None
    assert auc(batch.teacher, batch.labels) == pytest.approx(0.860, abs=0.003)
    assert batch.labels.mean() == pytest.approx(0.264, abs=0.004)
    assert batch.labels.mean() == pytest.approx(batch.teacher.mean(), abs=0.003)


def test_ids_follow_the_bounded_power_law() -> None:
    """The most frequent id of a slot has the share that the power law gives it."""
    rows = 200_000
    keys = Generator(2, batch_size=1, rows=1).batch(0, rows=rows).keys.reshape(rows, 26)
    first = slot_keys(np.zeros((1, 26), np.int64), np.arange(26))[0]

    for slot, c in enumerate(CARDINALITIES):
        share = (1 - 2.0**-0.05) / (1 - (c + 1) ** -0.05)
        assert (keys[:, slot] == first[slot]).mean() == pytest.approx(share, abs=0.005)
        assert len(np.unique(keys[:, slot])) <= c
    assert len(np.unique(keys[:4096])) == pytest.approx(27_600, rel=0.01)


def test_scale_shrinks_only_large_slots() -> None:
    """Slots of at most 1000 ids keep theirs; the others are multiplied, and keep at least 2."""
    tiny = generator.scaled_cardinalities(1e-9)

    assert generator.scaled_cardinalities(1.0) == CARDINALITIES
    assert sum(CARDINALITIES) == 33_762_577
    assert all(t == (c if c <= 1000 else 2) for t, c in zip(tiny, CARDINALITIES, strict=True))
    batch = Generator(0, batch_size=1, rows=1, scale=1e-9).batch(0, rows=2000)
    assert len(np.unique(batch.keys.reshape(2000, 26)[:, 2])) == 2


def test_dense_features_are_standard_normal() -> None:
    """The quantile function is right to seven digits, and the features have its moments."""
    draws = [1e-16, 1e-12, 1e-5, 0.02, 0.0749, 0.0751, 0.3, 0.5, 0.9, 0.97, 1 - 1e-9]

    for u in draws:
        assert generator._normal(u) == pytest.approx(NormalDist().inv_cdf(u), rel=3e-7, abs=1e-7)
    dense = Generator(8, batch_size=1, rows=1).batch(0, rows=100_000).dense
    assert np.abs(dense.mean(0)).max() < 0.015
    assert np.abs(dense.std(0) - 1).max() < 0.015
    assert np.abs(np.corrcoef(dense.T) - np.eye(13)).max() < 0.015


def test_the_first_row_never_changes() -> None:
    """Row 0 of seed 0 is frozen, so that a trained table and a known AUC stay comparable."""
    batch = Generator(0, batch_size=1, rows=1).batch(0, rows=1)

    assert int(np.bitwise_xor.reduce(batch.keys)) == 0xC6E89DEE21229517
    assert batch.dense[0, :2].tolist() == pytest.approx([-0.2199202, -0.6644105], rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"rows": -1}, "got rows -1"),
        ({"skip_rows": -1}, "skip_rows -1"),
        ({"alpha": 0.0}, "got alpha 0.0"),
        ({"alpha": float("nan")}, "got alpha nan"),
        ({"scale": 0.0}, "scale 0.0"),
        ({"scale": float("inf")}, "scale inf"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    """A bad option is refused at construction, with what came."""
    with pytest.raises(ValueError, match=message):
        Generator(0, **{"batch_size": 1, "rows": 1} | options)


def test_any_int_is_a_seed() -> None:
    """Negative and huge seeds are taken modulo 2^64."""
    negative = Generator(-1, batch_size=5, rows=5)

    assert equal(joined(list(negative)), joined(list(Generator(MASK, batch_size=5, rows=5))))
