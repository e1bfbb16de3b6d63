"""What is written to one table: each key once, with its values and its occurrences.

Rooms before and after: ``inputs`` makes a caller's arrays exact, ``dedupe`` finds what is distinct;
``client`` splits the result over shards. A trainer that has distinct keys already brings this
itself, and only its shapes are checked: the kernels behind read as far as the keys say.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from pserver.arrays import Floats, Keys
from pserver.client.inputs import as_block
from pserver.client.said import Said, as_said, check_said, summed
from pserver.errors import ShapeError
from pserver.kernel import rows
from pserver.kernel.dedupe import dedupe
from pserver.occurrences import NO_COUNTS

Gradients: TypeAlias = tuple[Keys, Floats, Said]
"""What is pushed to one table: (U,) distinct keys, (U * dim,) gradients, and what is said of the keys:
(U,) or (0,) counts, or ``Occurrences``."""


def as_gradients(
    keys: Keys,
    grads: ArrayLike,
    given: Mapping[str, ArrayLike | None],
    *,
    dim: int,
    where: str,
) -> Gradients:
    """Return each key once, with the sums of its gradients and of what is said of it.

    Args:
        keys: (N,) uint64, repeats allowed.
        grads: (N, dim) floats.
        given: (N,) counts, shows, clicks and slots by name, or None each; see ``Client.push``.
        dim: of the table.
        where: named in an error.

    Raises:
        ShapeError: the shapes disagree, or the occurrences of one key do not fit a uint32.
    """
    block = as_block(grads, num_keys=keys.size, dim=dim, where=where, what="grads")
    distinct = dedupe(keys)
    said = as_said(given, num_keys=keys.size, where=where)
    sums = summed(said, distinct, where=where)
    if distinct.keys.size == keys.size:
        return distinct.keys, block, sums
    total = np.zeros(distinct.keys.size * dim, np.float32)
    rows.sum_repeats(distinct.inverse, block, dim, total)
    return distinct.keys, total, sums


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
    return keys, block, NO_COUNTS


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
    keys, grads, said = gradients
    check_keys(keys, where=where)
    _check_array(grads, np.float32, where=where, what="grads")
    check_said(said, keys, where=where)
    if grads.size != keys.size * dim:
        raise ShapeError(
            f"{where}: {keys.size} keys of dim {dim} need {keys.size * dim} grads, got {grads.size}"
        )


def _check_array(array: object, dtype: type[np.generic], *, where: str, what: str) -> None:
    if not isinstance(array, np.ndarray):
        raise ShapeError(f"{where}: {what} must be a numpy array, got {type(array).__name__}")
    if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        raise ShapeError(
            f"{where}: {what} must be a contiguous 1-D array of {dtype.__name__}, got "
            f"{array.shape} {array.dtype}"
        )
