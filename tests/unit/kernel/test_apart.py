"""What ``kernel.apart`` promises: plain indexing, compiled or not, in every part."""

from collections.abc import Callable

import numpy as np
import pytest
from numba import njit

from pserver.kernel import apart
from pserver.kernel.apart import FIRST, GRADS, LARGEST, SECOND, WEIGHTS, read, write


def mix_parts(slab: np.ndarray, dim: int, rows: np.ndarray, grads: np.ndarray) -> None:
    """Change every part of each row by reads and writes of parts."""
    for i in range(rows.size):
        w = rows[i] * 4 * dim
        for k in range(dim):
            grad = read(grads, i * dim + k, GRADS)
            first = read(slab, w + dim + k, FIRST) + grad
            second = read(slab, w + 2 * dim + k, SECOND) + first
            largest = max(read(slab, w + 3 * dim + k, LARGEST), second)
            write(slab, w + dim + k, FIRST, first)
            write(slab, w + 2 * dim + k, SECOND, second)
            write(slab, w + 3 * dim + k, LARGEST, largest)
            write(slab, w + k, WEIGHTS, read(slab, w + k, WEIGHTS) - largest)


@pytest.mark.parametrize(
    "run", [mix_parts, njit(nogil=True)(mix_parts)], ids=["python", "compiled"]
)
@pytest.mark.parametrize("dim", [1, 3, 16, 37])
def test_parts_are_what_indexing_gives_when_read_and_written(
    run: Callable[..., None], dim: int
) -> None:
    """Whole numbers in float32 are exact, so any order of vector instructions must give numpy's."""
    rng = np.random.default_rng(dim)
    slab = rng.integers(-50, 50, 9 * 4 * dim).astype(np.float32)
    rows = rng.permutation(9)[:6]
    grads = rng.integers(-50, 50, 6 * dim).astype(np.float32)
    grads.flags.writeable = False
    expected = slab.reshape(9, 4, dim).copy()
    for row, grad in zip(rows, grads.reshape(6, dim), strict=True):
        weights, first, second, largest = expected[row]
        first += grad
        second += first
        np.maximum(largest, second, out=largest)
        weights -= largest

    run(slab, dim, rows, grads)

    assert np.array_equal(slab.reshape(9, 4, dim), expected)


def test_parts_have_numbers_of_their_own_when_a_promise_is_made() -> None:
    """Two parts of one number would be promised to lie apart from neither."""
    assert sorted((GRADS, WEIGHTS, FIRST, SECOND, LARGEST)) == list(range(apart._NUM_PARTS))
