"""Values that come in: do they fit the keys, and could a row hold them.

Rooms before and after: ``sparse`` and ``dense`` ask before they write anything; ``kernel.rows`` makes
the one pass over the values.

What always holds: what passed is finite and at most ``VALUE_MAX`` in magnitude.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Floats, Keys
from pserver.errors import NotFiniteError, ShapeError
from pserver.kernel import rows
from pserver.occurrences import SHOW_MAX, Occurrences

T = TypeVar("T", bound=np.generic)

VALUE_MAX = 1e12
"""Largest magnitude of a gradient or an assigned weight. 350,000 repeats of one key, the most that
a message holds, add up to 3.5e17, whose square is 1.2e35: finite, where one push of 1.9e19 would
make an accumulator of squares infinite for good."""

LIMIT_BITS = np.float32(VALUE_MAX).view(np.uint32)


def read_only(array: NDArray[T]) -> NDArray[T]:
    """Return a view that cannot be written to.

    Arrays that view a message are read-only, and numba compiles a kernel once for each kind of
    array: with every input read-only, one version serves messages and other callers alike.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def check_values(
    where: str, keys: Keys, values: Floats, *, dim: int, limit: float = VALUE_MAX
) -> None:
    """Refuse a block of values that does not fit the keys, or that would spoil a row.

    Args:
        where: what an error names: the verb and the table.
        keys: (U,) uint64.
        values: (U * dim,) float32.
        dim: values a key.
        limit: the largest magnitude.

    Raises:
        ShapeError: the lengths disagree.
        NotFiniteError: a value is NaN, infinite or over the limit; the first one is named.
    """
    _check_size(where, keys, values, dim)
    bad = rows.first_beyond(read_only(values), np.float32(limit).view(np.uint32))
    if bad >= 0:
        raise NotFiniteError(
            f"{where}: value {bad % dim} of key {keys[bad // dim]} is {values[bad]}, "
            f"must be a number of at most {limit:g} in magnitude; the whole message was "
            "refused"
        )


def mended_values(where: str, keys: Keys, values: Floats, *, dim: int) -> Floats:
    """Return the values, or a copy in which each one that a row could not hold is 0.

    Arguments as of ``check_values``. What is all good is passed once and not copied.

    Raises:
        ShapeError: the lengths disagree.
    """
    _check_size(where, keys, values, dim)
    if rows.first_beyond(read_only(values), LIMIT_BITS) < 0:
        return values
    return np.where(np.abs(values) <= np.float32(VALUE_MAX), values, np.float32(0.0))


def check_said(where: str, keys: Keys, said: Occurrences, *, divides: bool) -> None:
    """Refuse what is said of keys if it does not fit them, or rows could not count it.

    Args:
        where: what an error names.
        keys: (U,) uint64.
        said: of the keys.
        divides: whether gradients are divided by shows, so that a show of 0 would give infinity.

    Raises:
        ShapeError: a length disagrees; a show or click is NaN, under 0 or over ``SHOW_MAX``; or shows
            divide and one is 0. The key is named.
    """
    if not said.num_said:  # most pushes: four empty ranges take 20 us to look at
        return
    for what in ("counts", "shows", "clicks", "slots"):
        size = getattr(said, what).size
        if size not in (0, keys.size):
            raise ShapeError(f"{where}: {keys.size} keys came with {size} {what}")
    for what, values in (("shows", said.shows), ("clicks", said.clicks)):
        _check_range(where, keys, values, what, low=0.0)
    if divides and (said.shows.size or said.counts.size):
        least = np.nextafter(np.float32(0.0), np.float32(1.0))
        _check_range(where, keys, said.shown(keys.size), "shows, which divide,", low=float(least))


def _check_range(where: str, keys: Keys, values: Floats, what: str, *, low: float) -> None:
    is_good = (values >= low) & (values <= SHOW_MAX)
    if not is_good.all():
        bad = int(np.argmin(is_good))
        raise ShapeError(
            f"{where}: {what} must be in [{low:g}, {SHOW_MAX:g}], key {keys[bad]} has {values[bad]}; "
            "the whole message was refused"
        )


def _check_size(where: str, keys: Keys, values: Floats, dim: int) -> None:
    if values.size != keys.size * dim:
        raise ShapeError(
            f"{where}: {keys.size} keys of dim {dim} need {keys.size * dim} float32, "
            f"got {values.size}"
        )
