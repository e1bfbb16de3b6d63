"""What ``pserver.client.gradients`` promises: each key once, with its sums; or refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.client.gradients import as_assigned, as_gradients, check_gradients, check_keys
from pserver.errors import ShapeError

entries = st.lists(
    st.tuples(st.integers(0, 9), st.integers(-8, 8), st.integers(0, 100)), max_size=60
)


def said(counts: Any) -> dict[str, Any]:
    return {"counts": counts, "shows": None, "clicks": None, "slots": None}


@given(entries)
def test_repeats_are_summed(batch: list[tuple[int, int, int]]) -> None:
    """Gradients and counts of one key add up, as a dict adds them up."""
    sums: dict[int, list[int]] = {}
    for key, grad, count in batch:
        entry = sums.setdefault(key, [0, 0])
        entry[0] += grad
        entry[1] += count
    keys = np.array([key for key, _, _ in batch], np.uint64)
    grads = np.array([[grad, -grad] for _, grad, _ in batch], np.float32).reshape(-1, 2)
    counts = np.array([count for _, _, count in batch], np.int64)

    found, block, totals = as_gradients(keys, grads, said(counts), dim=2, where="push")

    assert isinstance(totals, np.ndarray)
    assert found.tolist() == list(sums)
    assert block.reshape(-1, 2).tolist() == [[grad, -grad] for grad, _ in sums.values()]
    assert totals.tolist() == [count for _, count in sums.values()]
    assert (block.dtype.name, totals.dtype.name) == ("float32", "uint32")


def test_each_entry_counts_once_when_no_counts_are_given() -> None:
    """Without counts a key counts as often as it stands in the batch."""
    keys = np.array([5, 6, 5], np.uint64)

    _, _, counts = as_gradients(keys, np.zeros((3, 1)), said(None), dim=1, where="push")

    assert isinstance(counts, np.ndarray)
    assert counts.tolist() == [2, 1]


def test_counts_are_refused_when_their_sum_does_not_fit() -> None:
    """Counts of a key that add up to 2^32 are refused with the key, not wrapped around."""
    keys = np.array([5, 6, 6], np.uint64)

    with pytest.raises(ShapeError, match="counts of key 6 add up to more"):
        as_gradients(keys, np.zeros((3, 1)), said([1, 2**31, 2**31]), dim=1, where="push 'ads'")


def test_repeats_are_refused_when_weights_are_assigned() -> None:
    """Two weights for one key are the caller's mistake, named with the key."""
    with pytest.raises(ShapeError, match=r"assign 'ads': key 6 is given twice"):
        as_assigned(np.array([5, 6, 6], np.uint64), np.zeros((3, 1)), dim=1, where="assign 'ads'")


KEYS = np.array([1, 2], np.uint64)
GRADS = np.zeros(6, np.float32)
COUNTS = np.ones(2, np.uint32)


def test_exact_arrays_are_accepted() -> None:
    """Distinct keys with their gradients, and counts or none, pass."""
    check_gradients((KEYS, GRADS, COUNTS), dim=3, where="push")
    check_gradients((KEYS, GRADS, COUNTS[:0]), dim=3, where="push")
    check_gradients((KEYS[:0], GRADS[:0], COUNTS[:0]), dim=3, where="push")


@pytest.mark.parametrize(
    ("gradients", "what"),
    [
        (([1, 2], GRADS, COUNTS), "keys must be a numpy array, got list"),
        ((KEYS.astype(np.int64), GRADS, COUNTS), "keys must be .* uint64, got .* int64"),
        ((KEYS.reshape(1, 2), GRADS, COUNTS), r"keys must be .* got \(1, 2\)"),
        ((np.arange(4, dtype=np.uint64)[::2], GRADS, COUNTS), "keys must be a contiguous"),
        ((KEYS, GRADS.astype(np.float64), COUNTS), "grads must be .* float32, got .* float64"),
        ((KEYS, GRADS.reshape(2, 3), COUNTS), r"grads must be .* 1-D .* got \(2, 3\)"),
        ((KEYS, GRADS[:5], COUNTS), "2 keys of dim 3 need 6 grads, got 5"),
        ((KEYS, GRADS, COUNTS.astype(np.int64)), "counts must be .* uint32, got .* int64"),
        ((KEYS, GRADS, COUNTS[:1]), "0 or 2 counts, got 1"),
    ],
)
def test_inexact_arrays_are_refused(gradients: Any, what: str) -> None:
    """What the kernels could not read safely is refused, with what must hold and what came."""
    with pytest.raises(ShapeError, match=what) as caught:
        check_gradients(gradients, dim=3, where="push 'ads'")

    assert str(caught.value).startswith("push 'ads': ")


def test_keys_are_refused_when_they_are_floats() -> None:
    """Keys that go straight to the kernels must be uint64: no value is cut to a whole number."""
    with pytest.raises(ShapeError, match=r"keys must be .* got .* float64"):
        check_keys(np.array([1.5]), where="pull 'ads'")
