"""How rows of the ctr accessor fade from day to day.

Rooms before and after: ``table.shrink`` walks over the rows of a partition and erases those that fell
too low.

What always holds: row ids are in range and distinct; nothing is allocated. show and click are float32,
as they are kept; scores are judged in float64 from them, as a push does.
"""

import numpy as np
from numba import njit

from pserver.arrays import Doubles, Floats, RowIds, Uint32s
from pserver.kernel.ctr import CLICK, SHOW, UNSEEN_DAYS
from pserver.mix import prefetch

_AHEAD = 16


@njit(nogil=True, cache=True, error_model="numpy")
def fade(
    words: Uint32s,  # (C * K,) written
    floats: Floats,  # the same memory; written
    stride: int,  # K
    row_ids: RowIds,  # (U,) distinct
    decay: float,
    gap: int,  # days since the last shrink
    writes: int,  # 0: the rows stay as they are
    shows: Doubles,  # (U,) written: after the decay
    clicks: Doubles,  # (U,) written: after the decay
    unseen: RowIds,  # (U,) written: days before this one
) -> None:
    """Decay show and click, tell them and ages, and let the day pass.

    A row that was pushed since the last shrink is unseen for 0 days, whatever days lie between.
    """
    step = np.uint64(stride)
    for i in range(row_ids.size):
        if i + _AHEAD < row_ids.size:
            prefetch(words, row_ids[i + _AHEAD] * stride)
        row = np.uint64(row_ids[i]) * step
        show = np.float32(floats[row + np.uint64(SHOW)] * decay)
        click = np.float32(floats[row + np.uint64(CLICK)] * decay)
        days = np.int64(words[row + np.uint64(UNSEEN_DAYS)])
        if days > 0:
            days += gap - 1
        shows[i], clicks[i] = show, click
        unseen[i] = days
        if writes:
            floats[row + np.uint64(SHOW)] = show
            floats[row + np.uint64(CLICK)] = click
            words[row + np.uint64(UNSEEN_DAYS)] = np.uint32(days + 1)
