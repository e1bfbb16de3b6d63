"""What a caller hands in, made into arrays of the right kind, exactly or not at all.

Rooms before and after: ``Client`` and ``trainer.embedding`` call this first, so that everything
behind it works on contiguous uint64 and float32.

What always holds: bits are never reinterpreted. int64 and uint64 keys are one space of 2^64 keys
(-1 is 2^64 - 1); narrower integers are widened by value; floats are taken if every one of them
is a whole number so small that the float type rounds none to it; bool is refused.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pserver.arrays import Counts, Floats, Keys
from pserver.errors import ShapeError

# From here on a float may be another integer that was rounded: 2^24 + 1 becomes 2^24.
_EXACT = {"float16": 2.0**11, "float32": 2.0**24, "float64": 2.0**53}


def as_keys(values: ArrayLike, *, where: str) -> Keys:
    """Return keys as a contiguous (N,) uint64 array.

    Args:
        values: integers of any kind and shape, or whole floats.
        where: named in an error, such as ``pull 'ads'`` or ``slot C14``.

    Raises:
        ShapeError: bool, text, fractions, NaN or floats too large to be exact; the message names
            the dtype and the first bad value.

    >>> as_keys(np.array([[0, -1]]), where="example")
    array([                   0, 18446744073709551615], dtype=uint64)
    """
    array = np.asarray(values)
    kind = array.dtype.kind
    if array.size == 0 and kind != "b":
        return np.empty(0, np.uint64)
    if kind == "u":
        return np.ascontiguousarray(array, np.uint64).reshape(-1)
    if kind == "i":
        return np.ascontiguousarray(array, np.int64).reshape(-1).view(np.uint64)
    if kind == "f" and array.dtype.name in _EXACT:
        return _from_floats(array.reshape(-1), where)
    first = f" (first value {array.flat[0]!r})" if array.size else ""
    raise ShapeError(
        f"{where}: keys must be integers, got {array.dtype}{first}; convert them, text with a hash"
    )


def _from_floats(array: NDArray[np.floating], where: str) -> Keys:
    """Return keys that came as whole floats."""
    limit = _EXACT[array.dtype.name]
    with np.errstate(invalid="ignore"):
        is_bad = ~(np.isfinite(array) & (np.abs(array) < limit) & (np.trunc(array) == array))
    if is_bad.any():
        first = int(np.argmax(is_bad))
        raise ShapeError(
            f"{where}: keys came as {array.dtype}, which is taken only for whole numbers under "
            f"{limit:.0f}; value {first} is {array[first]}. Is this the right column?"
        )
    return array.astype(np.int64).view(np.uint64)


def as_block(values: ArrayLike, *, num_keys: int, dim: int, where: str, what: str) -> Floats:
    """Return gradients or weights as a contiguous (num_keys * dim,) float32 array.

    Args:
        values: (num_keys, dim) or (num_keys * dim,) floats.
        num_keys: keys that they belong to.
        dim: of the table.
        where: named in an error.
        what: ``grads`` or ``weights``.

    Raises:
        ShapeError: another shape, or no floats.
    """
    array = np.asarray(values)
    is_shaped = array.shape in ((num_keys, dim), (num_keys * dim,))
    if array.dtype.kind not in "fiu" or not is_shaped:
        raise ShapeError(
            f"{where}: {what} must be ({num_keys}, {dim}) float32, got {array.shape} {array.dtype}"
        )
    return np.ascontiguousarray(array, np.float32).reshape(-1)


def as_counts(values: ArrayLike, *, num_keys: int, where: str, what: str = "counts") -> Counts:
    """Return occurrences, or slots, as a contiguous (num_keys,) uint32 array.

    Raises:
        ShapeError: another length, no integers, or a count under 0 or over 2^32 - 1.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.shape != (num_keys,):
        raise ShapeError(
            f"{where}: {what} must be ({num_keys},) integers, got {array.shape} {array.dtype}"
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) > 2**32 - 1):
        bad = array[(array < 0) | (array > 2**32 - 1)][0]
        raise ShapeError(f"{where}: {what} must be in [0, 2^32 - 1], got {bad}")
    return np.ascontiguousarray(array, np.uint32)
