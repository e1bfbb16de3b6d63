"""What is written to one table: each key once, with its values and its occurrences.

Rooms before and after: ``inputs`` makes a caller's arrays exact, ``dedupe`` finds what is distinct;
``client`` splits the result over shards. A trainer that has distinct keys already brings this
itself, and only its shapes are checked: the kernels behind read as far as the keys say.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from pserver.arrays import Counts, Floats, Keys
from pserver.client.inputs import as_block, as_counts
from pserver.errors import ShapeError
from pserver.kernel import rows
from pserver.kernel.dedupe import dedupe

Gradients: TypeAlias = tuple[Keys, Floats, Counts]
"""What is pushed to one table: (U,) distinct keys, (U * dim,) gradients, (U,) or (0,) counts."""

_COUNT_MAX = 2**32 - 1


def as_gradients(
    keys: Keys, grads: ArrayLike, counts: ArrayLike | None, *, dim: int, where: str
) -> Gradients:
    """Return each key once, with the sums of its gradients and of its occurrences.

    Args:
        keys: (N,) uint64, repeats allowed.
        grads: (N, dim) floats.
        counts: (N,) occurrences that each entry stands for, or None for 1 each.
        dim: of the table.
        where: named in an error.

    Raises:
        ShapeError: the shapes disagree, or the occurrences of one key do not fit a uint32.
    """
    block = as_block(grads, num_keys=keys.size, dim=dim, where=where, what="grads")
    distinct = dedupe(keys)
    sums = distinct.counts
    if counts is not None:
        given = as_counts(counts, num_keys=keys.size, where=where)
        totals = np.bincount(distinct.inverse, given, minlength=distinct.keys.size)
        if totals.size and totals.max() > _COUNT_MAX:
            key = distinct.keys[int(np.argmax(totals))]
            raise ShapeError(f"{where}: counts of key {key} add up to more than 2^32 - 1")
        sums = totals.astype(np.uint32)
    if distinct.keys.size == keys.size:
        return distinct.keys, block, sums
    summed = np.zeros(distinct.keys.size * dim, np.float32)
    rows.sum_repeats(distinct.inverse, block, dim, summed)
    return distinct.keys, summed, sums


def as_assigned(keys: Keys, weights: ArrayLike, *, dim: int, where: str) -> Gradients:
    """Return keys and weights that are to be written as they are; no occurrences.

    Raises:
        ShapeError: the shapes disagree, or a key is given twice; it is named.
    """
    block = as_block(weights, num_keys=keys.size, dim=dim, where=where, what="weights")
    distinct = dedupe(keys)
    if distinct.keys.size < keys.size:
        repeated = distinct.keys[int(np.argmax(distinct.counts > 1))]
        raise ShapeError(f"{where}: key {repeated} is given twice; which one is meant?")
    return keys, block, np.empty(0, np.uint32)


def check_keys(keys: Keys, *, where: str) -> None:
    """Refuse what is no contiguous (U,) uint64 array.

    Raises:
        ShapeError: what came is named.
    """
    _check_array(keys, np.uint64, where=where, what="keys")


def check_gradients(gradients: Gradients, *, dim: int, where: str) -> None:
    """Refuse arrays that are not of the kind and length that ``Gradients`` says.

    Raises:
        ShapeError: which of them, what must hold and what came.
    """
    keys, grads, counts = gradients
    check_keys(keys, where=where)
    _check_array(grads, np.float32, where=where, what="grads")
    _check_array(counts, np.uint32, where=where, what="counts")
    if grads.size != keys.size * dim or counts.size not in (0, keys.size):
        raise ShapeError(
            f"{where}: {keys.size} keys of dim {dim} need {keys.size * dim} grads and 0 or "
            f"{keys.size} counts, got {grads.size} and {counts.size}"
        )


def _check_array(array: object, dtype: type[np.generic], *, where: str, what: str) -> None:
    if not isinstance(array, np.ndarray):
        raise ShapeError(f"{where}: {what} must be a numpy array, got {type(array).__name__}")
    if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        raise ShapeError(
            f"{where}: {what} must be a contiguous 1-D array of {dtype.__name__}, got "
            f"{array.shape} {array.dtype}"
        )
