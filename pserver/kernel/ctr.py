"""The rows of the ctr accessor: statistics of a push, and the two parts of a row.

Rooms before and after: ``table.ctr`` owns the memory; the optimizer's kernels step each part.

A row is a wide weight (dim 1) with its state, a record of words, and embedx (dim - 1 weights with
their state) in a slab of its own, or no embedx at all. The word EMBEDX is 0 where there is none, or the row id
there + 1.

What always holds: row ids are in range and, where something is counted, distinct; nothing is
allocated.

Cost: a push reads and writes one record, 24 bytes, beside what the optimizers move. A pull reads the
wide weight, the record and the embedx, each in a pass of its own that asks ahead, and joins them.
"""

from typing import Any

import numpy as np
from numba import njit

from pserver.arrays import Floats, RowIds, Uint32s
from pserver.mix import prefetch

SHOW, CLICK, DELTA_SCORE, UNSEEN_DAYS, SLOT, EMBEDX = range(6)
"""Positions in a record; words of other rules follow."""

_AHEAD = 16  # rows between asking for a record and reading it, and again for the embedx it names


def score(show: Any, click: Any, nonclk_coeff: float, click_coeff: float) -> Any:
    """Return (show - click) * nonclk_coeff + click * click_coeff, of numbers or of float64 arrays.

    Source:
        CtrCommonAccessor::ShowClickScore of PaddlePaddle. Its documents have click - show.
    """
    return (show - click) * nonclk_coeff + click * click_coeff


_score = njit(nogil=True, cache=True, error_model="numpy", inline="always")(score)


@njit(nogil=True, cache=True, error_model="numpy")
def count(
    words: Uint32s,  # (C * K,) written
    floats: Floats,  # the same memory; written
    stride: int,  # K
    row_ids: RowIds,  # (U,) in [0, C), distinct
    shows: Floats,  # (U,)
    clicks: Floats,  # (U,)
    slots: Uint32s,  # (U,), or (0,): slots stay
    nonclk_coeff: float,
    click_coeff: float,
    threshold: float,
    embedx_ids: RowIds,  # (U,) written: the row id of the embedx that there is, or -1
    crossing: RowIds,  # (U,) written: positions of rows that have none, and now the score for it
) -> int:
    """Count shows and clicks into the named rows, and return how many get embedx after this push.

    show += s, click += c, delta_score += score(s, c), unseen_days = 0, slot = the push's. Whether a
    row is due is judged after that, in float64.
    """
    step = np.uint64(stride)
    num_crossing = 0
    has_slots = slots.size > 0
    for i in range(row_ids.size):
        at = np.uint64(i)
        if i + _AHEAD < row_ids.size:
            prefetch(words, row_ids[i + _AHEAD] * stride)
        row = np.uint64(row_ids[i]) * step
        show = floats[row + np.uint64(SHOW)] + shows[at]
        click = floats[row + np.uint64(CLICK)] + clicks[at]
        floats[row + np.uint64(SHOW)] = show
        floats[row + np.uint64(CLICK)] = click
        floats[row + np.uint64(DELTA_SCORE)] += np.float32(
            _score(float(shows[at]), float(clicks[at]), nonclk_coeff, click_coeff)
        )
        words[row + np.uint64(UNSEEN_DAYS)] = np.uint32(0)
        if has_slots:
            words[row + np.uint64(SLOT)] = slots[at]
        embedx = np.int64(words[row + np.uint64(EMBEDX)]) - 1
        embedx_ids[at] = embedx
        if embedx < 0 and _score(float(show), float(click), nonclk_coeff, click_coeff) >= threshold:
            crossing[np.uint64(num_crossing)] = i
            num_crossing += 1
    return num_crossing


@njit(nogil=True, cache=True, error_model="numpy")
def split(
    values: Floats,  # (U * dim,)
    dim: int,
    shows: Floats,  # (U,)
    embedx_ids: RowIds,  # (U,); -1 where there is no embedx
    wide: Floats,  # (U,) written
    embedx: Floats,  # (U * (dim - 1),) written as far as returned
    held_ids: RowIds,  # (U,) written as far as returned
    held_shows: Floats,  # (U,) written as far as returned
) -> int:
    """Part the gradients of each row, and return how many rows have embedx to be stepped."""
    width = np.uint64(dim)
    rest = np.uint64(dim - 1)
    one = np.uint64(1)
    held = np.uint64(0)
    for i in range(embedx_ids.size):
        at = np.uint64(i)
        source = at * width
        wide[at] = values[source]
        if embedx_ids[at] < 0:
            continue
        target = held * rest
        for k in range(dim - 1):
            embedx[target + np.uint64(k)] = values[source + one + np.uint64(k)]
        held_ids[held] = embedx_ids[at]
        held_shows[held] = shows[at]
        held += one
    return int(held)


@njit(nogil=True, cache=True, error_model="numpy")
def embedx_of(words: Uint32s, stride: int, row_ids: RowIds, out: RowIds) -> None:
    """Write the row id of the embedx of each named row, or -1; -1 also where the row id is -1."""
    step = np.uint64(stride)
    for i in range(row_ids.size):
        at = np.uint64(i)
        if i + _AHEAD < row_ids.size:
            prefetch(words, row_ids[i + _AHEAD] * stride)
        out[at] = -1
        if row_ids[at] >= 0:
            out[at] = np.int64(words[np.uint64(row_ids[at]) * step + np.uint64(EMBEDX)]) - 1


@njit(nogil=True, cache=True, error_model="numpy")
def name_embedx(words: Uint32s, stride: int, row_ids: RowIds, embedx_ids: RowIds) -> None:
    """Write which embedx the named rows have from now on; -1 for none."""
    step = np.uint64(stride)
    for i in range(row_ids.size):
        at = np.uint64(i)
        row = np.uint64(row_ids[at]) * step
        words[row + np.uint64(EMBEDX)] = np.uint32(embedx_ids[at] + 1)


@njit(nogil=True, cache=True, error_model="numpy")
def join(
    wide: Floats,  # (U,)
    rest: Floats,  # (U * (dim - 1),)
    dim: int,
    out: Floats,  # (U * dim,) written
) -> None:
    """Put the two parts of each row side by side."""
    width = np.uint64(dim)
    less = np.uint64(dim - 1)
    one = np.uint64(1)
    for i in range(wide.size):
        at = np.uint64(i)
        target = at * width
        out[target] = wide[at]
        for k in range(dim - 1):
            out[target + one + np.uint64(k)] = rest[at * less + np.uint64(k)]


@njit(nogil=True, cache=True, error_model="numpy")
def shown(
    floats: Floats,  # (C * K,)
    stride: int,
    row_ids: RowIds,  # (U,) in [-1, C)
    shows: Floats,  # (U,) written; 0 where there is no row
    clicks: Floats,  # (U,) written
) -> None:
    """Copy the shows and clicks of the named rows."""
    for i in range(row_ids.size):
        at = np.uint64(i)
        if i + _AHEAD < row_ids.size:
            prefetch(floats, row_ids[i + _AHEAD] * stride)
        shows[at] = np.float32(0.0)
        clicks[at] = np.float32(0.0)
        if row_ids[at] >= 0:
            row = np.uint64(row_ids[at]) * np.uint64(stride)
            shows[at] = floats[row + np.uint64(SHOW)]
            clicks[at] = floats[row + np.uint64(CLICK)]
