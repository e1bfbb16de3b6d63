"""What a push says of its keys beside gradients: made exact, and summed over repeats.

Rooms before and after: a caller's arrays come in through ``Client.push``, a trainer's with its
gradients; ``compose`` writes what is left into messages.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from pserver.arrays import Counts, Floats, Keys
from pserver.client.inputs import as_counts
from pserver.errors import ShapeError
from pserver.kernel.dedupe import Distinct
from pserver.occurrences import NO_COUNTS, NO_FLOATS, NO_SLOTS, Occurrences

Said: TypeAlias = Counts | Occurrences
"""(U,) counts, or none; or all that can be said of keys."""

_COUNT_MAX = 2**32 - 1


def said_of(said: Said) -> Occurrences:
    """Return what is said as ``Occurrences``."""
    return said if isinstance(said, Occurrences) else Occurrences(counts=said)


def as_said(given: Mapping[str, ArrayLike | None], *, num_keys: int, where: str) -> Occurrences:
    """Return a caller's arrays as exact ones.

    Args:
        given: (N,) counts, shows, clicks and slots by name; None: not said.
        num_keys: N.
        where: named in an error.

    Raises:
        ShapeError: another length, or no numbers of that kind.
    """
    counts, slots = given["counts"], given["slots"]
    shows, clicks = given["shows"], given["clicks"]
    return Occurrences(
        NO_COUNTS if counts is None else as_counts(counts, num_keys=num_keys, where=where),
        NO_FLOATS if shows is None else _as_floats(shows, num_keys, f"{where}: shows"),
        NO_FLOATS if clicks is None else _as_floats(clicks, num_keys, f"{where}: clicks"),
        NO_SLOTS
        if slots is None
        else as_counts(slots, num_keys=num_keys, where=where, what="slots"),
    )


def summed(said: Occurrences, distinct: Distinct, *, where: str) -> Said:
    """Return what is said of distinct keys; only their counts, if nothing else is said.

    Raises:
        ShapeError: the occurrences of one key do not fit a uint32.
    """
    num_keys = distinct.keys.size
    counts = distinct.counts
    if said.counts.size:
        totals = np.bincount(distinct.inverse, said.counts, minlength=num_keys)
        if totals.max() > _COUNT_MAX:
            key = distinct.keys[int(np.argmax(totals))]
            raise ShapeError(f"{where}: counts of key {key} add up to more than 2^32 - 1")
        counts = totals.astype(np.uint32)
    if not (said.shows.size or said.clicks.size or said.slots.size):
        return counts
    found = said.summed(distinct.inverse, num_keys)
    return Occurrences(counts, found.shows, found.clicks, found.slots)


def check_said(said: Said, keys: Keys, *, where: str) -> None:
    """Refuse what is not of the kind and length that ``Occurrences`` says.

    Raises:
        ShapeError: which of it, what must hold and what came.
    """
    if not isinstance(said, Occurrences | np.ndarray):
        raise ShapeError(
            f"{where}: counts must be a numpy array or Occurrences, got {type(said).__name__}"
        )
    all_said = said_of(said)
    for what, dtype in (
        ("counts", np.uint32),
        ("shows", np.float32),
        ("clicks", np.float32),
        ("slots", np.uint32),
    ):
        array = getattr(all_said, what)
        if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
            raise ShapeError(
                f"{where}: {what} must be a contiguous 1-D array of {dtype.__name__}, got "
                f"{array.shape} {array.dtype}"
            )
        if array.size not in (0, keys.size):
            raise ShapeError(
                f"{where}: {keys.size} keys need 0 or {keys.size} {what}, got {array.size}"
            )


def _as_floats(values: ArrayLike, num_keys: int, where: str) -> Floats:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" or array.shape != (num_keys,):
        raise ShapeError(f"{where} must be ({num_keys},) numbers, got {array.shape} {array.dtype}")
    return np.ascontiguousarray(array, np.float32)
