"""Rows asked for before they are needed, so that memory is read while other rows are worked on.

Rooms before and after: loops over rows, of ``rows`` and ``optim*.py``, call ``ask_first`` once and then
``ask`` for the row ``FAR`` ahead; some call ``ask_near`` too. ``mix`` has the instructions.

The caller looks up the row that comes ``FAR`` steps later by itself: with ``row_ids[i + FAR]`` in
here the compiler no longer sees that the index is not negative, and the loop over the row is 2.5 times
slower on rows in cache.

What always holds: nothing is changed, and a start outside the array is harmless.
"""

from numba import njit

from pserver.arrays import Floats, RowIds
from pserver.mix import prefetch, prefetch_far

FAR = 48
"""Rows between asking for a row, into the second cache, and working on it."""

NEAR = 12
"""Rows between asking once more, into the first cache, and working. Where a loop does little else than
wait, or a row is long: loads that miss the first cache make the processor guess and read other lines."""

_LINE = 16  # float32 a cache line
_UNROLLED = 4  # lines asked for in straight code: with a loop adam takes 17 instead of 12 ns a row


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def ask(slab: Floats, start: int, count: int) -> None:
    """Ask for every cache line of ``count`` floats from ``start`` on, ``FAR`` rows ahead."""
    last = count - 1
    for k in range(_UNROLLED):
        prefetch_far(slab, start + min(k * _LINE, last))
    for k in range(_UNROLLED * _LINE, count, _LINE):
        prefetch_far(slab, start + k)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def ask_near(slab: Floats, start: int, count: int) -> None:
    """Ask for what ``ask`` was asked for before, ``NEAR`` rows ahead."""
    last = count - 1
    for k in range(_UNROLLED):
        prefetch(slab, start + min(k * _LINE, last))
    for k in range(_UNROLLED * _LINE, count, _LINE):
        prefetch(slab, start + k)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def ask_first(slab: Floats, row_ids: RowIds, stride: int, count: int) -> None:
    """Ask for the first ``count`` floats of the first ``FAR`` rows, which no loop is ahead of."""
    for i in range(min(FAR, row_ids.size)):
        ask(slab, row_ids[i] * stride, count)
