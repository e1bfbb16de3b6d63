"""What ``hot`` promises: hot keys are found, with counts within the bounds that are told."""

from collections import Counter

import numpy as np
import pytest

from pserver.kernel import hot as kernel
from pserver.table.hot import STEP, Hot
from tests.reference import mix64


def noted(batches: list[np.ndarray]) -> Hot:
    """Return counters that saw these pushes."""
    hot = Hot()
    for keys in batches:
        keys.flags.writeable = False
        hot.note(keys)
    return hot


def test_nothing_is_told_when_nothing_was_pushed() -> None:
    """No keys, and nothing seen."""
    top = Hot().top(5)

    assert (top.keys.size, top.low.size, top.missed, top.seen) == (0, 0, 0, 0)


@pytest.mark.parametrize("size", [1, 63, 64, 1000])
def test_a_key_of_every_push_is_counted_as_often(size: int) -> None:
    """Whatever the length of the pushes and the key's place, one in STEP is looked at, evenly."""
    rng = np.random.default_rng(size)
    batches = []
    for _ in range(20_000):
        keys = rng.integers(1000, 1200, size, dtype=np.uint64)
        keys[rng.integers(0, size)] = 7
        batches.append(keys)

    top = noted(batches).top(500)

    low = dict(zip(top.keys.tolist(), top.low.tolist(), strict=True))
    assert top.missed == 0  # fewer keys than counters
    assert abs(low[7] - 20_000) < 5 * np.sqrt(STEP * 20_000)
    assert abs(top.seen - 20_000 * size) <= 5 * np.sqrt(STEP * 20_000 * size)


def test_counts_are_within_the_bounds_when_there_are_more_keys_than_counters() -> None:
    """Of the keys that are looked at, none is counted too often, and none misses more than is told."""
    rng = np.random.default_rng(1)
    hot = Hot()
    true: Counter[int] = Counter()
    for push in range(1, 2001):
        keys = rng.zipf(1.2, 3000).astype(np.uint64)
        keys.flags.writeable = False
        hot.note(keys)
        true.update(keys[mix64(push) % STEP :: STEP].tolist())

    top = hot.top(kernel.SLOTS)

    low = dict(zip(top.keys.tolist(), (top.low // STEP).tolist(), strict=True))
    missed = top.missed // STEP
    assert missed > 0
    assert all(count <= true[key] <= count + missed for key, count in low.items())
    assert all(true[key] <= missed for key in true.keys() - low.keys())
    heavy = {key for key, count in true.items() if count > 2 * missed}
    assert len(heavy) >= 10
    assert heavy <= low.keys()
    assert top.low.tolist() == sorted(top.low.tolist(), reverse=True)
