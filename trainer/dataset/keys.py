"""From ids to keys: how a slot is mixed into an id, so that one table can hold all slots.

Rooms before and after: the readers call ``slot_keys`` on what they parsed; from then on only
keys travel, and no later room knows a slot from a key.

The rule, for an id of slot f (from 0), all modulo 2^64::

    key = mix64(id + (f + 1) * 0x9E3779B97F4A7C15)

What always holds:
    * ``mix64`` is a bijection, so two ids of one slot never share a key.
    * Equal ids of two slots never share a key. Unequal ids of two slots do so only by the chance
      of 64 bits, and not at all where ids stay below 2^53 and slots below 800: multiples of
      the golden ratio lie further apart than that.
    * The same rule in every reader and every version: trained rows are found by it.
"""

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pserver import GOLDEN, mix64
from trainer.errors import DataError

Keys: TypeAlias = NDArray[np.uint64]
"""uint64 keys, slot mixed in."""

Ids: TypeAlias = NDArray[np.uint64]
"""uint64 raw category values, slot not mixed in."""

SlotIndexes: TypeAlias = NDArray[np.int64]
"""int64 slots, from 0."""


def slot_keys(ids: NDArray[Any], slot_indexes: NDArray[Any]) -> Keys:
    """Return the key of each id, by the rule above.

    Args:
        ids: (..., F) integers; the last axis runs over ``slot_indexes``. Signed ids are taken bit
            for bit as two's complement, so -1 is 2^64 - 1. Not modified; strides are allowed.
        slot_indexes: (F,) integers, each at least 0. With ids (N,), one slot an id.

    Returns:
        The keys, in a new contiguous array of the shape of ``ids``.

    Raises:
        DataError: an array is not of integers (a float id has lost digits already: it is never
            rounded here), a slot is negative, or the shapes disagree.

    >>> slot_keys(np.array([[7, 7]]), np.array([0, 1]))
    array([[7191089600892374487,  309689372594955804]], dtype=uint64)
    """
    _require_integers("ids", ids)
    _require_integers("slot_indexes", slot_indexes)
    if slot_indexes.ndim != 1 or ids.shape[-1:] != slot_indexes.shape:
        raise DataError(
            f"slot_keys: slot_indexes must be ({ids.shape[-1] if ids.ndim else 1},), one a column "
            f"of ids, got {slot_indexes.shape}"
        )
    if slot_indexes.size and slot_indexes.min() < 0:
        raise DataError(f"slot_keys: slot_indexes must be at least 0, got {slot_indexes.min()}")
    words = np.ascontiguousarray(ids).astype(np.uint64, copy=False)
    keys = np.empty(words.shape, np.uint64)
    if words.size:
        columns = slot_indexes.shape[0]
        _mix_slots(words.reshape(-1, columns), slot_terms(slot_indexes), keys.reshape(-1, columns))
    return keys


def slot_terms(slot_indexes: SlotIndexes) -> Keys:
    """Return what the rule adds to an id of each slot, (F,) uint64."""
    return (slot_indexes.astype(np.uint64) + np.uint64(1)) * GOLDEN


def _require_integers(name: str, array: NDArray[Any]) -> None:
    """Refuse an array that is not of integers, showing its first value."""
    if array.dtype.kind in "iu":
        return
    first = f", first value {array.flat[0]!r}" if array.size else ""
    raise DataError(f"slot_keys: {name} must be integers, got {array.dtype}{first}")


@njit(nogil=True, cache=True)
def _mix_slots(
    ids: Ids,  # (B, F) contiguous
    terms: Keys,  # (F,)
    keys: Keys,  # (B, F) written
) -> None:
    """Write the key of each id."""
    for sample in range(ids.shape[0]):
        for slot in range(ids.shape[1]):
            keys[sample, slot] = mix64(ids[sample, slot] + terms[slot])
