"""The daily shrink of a table: rows fade, and those that nobody needs any more go.

Rooms before and after: ``server.lifecycle`` advances a walk between requests; ``ages`` and ``kernel.fade``
look at the words of rows; ``sparse`` erases.

The order of a day: train on the data of day D, then shrink D. For each row of the accessor ``ctr``

1. show and click *= show_click_decay_rate;
2. the row goes if its score is under delete_threshold, or unseen_days over delete_after_unseen_days;
3. unseen_days += 1; a push sets it to 0 again. (Paddle leaves this step to the save of mode 3 that follows
   a shrink. Here the day passes with the shrink, whatever is saved, and no save changes an age.)

A row of ``plain`` goes if it was not written for more than ttl_days. Days are those of the data, as the
shrinks name them: where some were left out, ages count them, and the decay is applied once.

What always holds:
    * A table is shrunk once for a day, and days only rise: a shrink of the same or an earlier day
      changes nothing. Two shrinks of a table do not overlap.
    * A partition is walked in one slice, and slices are commands like pushes: a push that comes while
      the walk goes on counts as before the shrink for keys of partitions that are still to come, and
      as after it for those that were walked.
    * A dry walk changes nothing.
Owner: the shard's owner thread.

Cost: 40 to 60 ns a row, 100 where it goes (2 M rows of dim 16, measured). A slice is whole partitions of
``SLICE_ROWS`` rows in all, which take 1 to 1.5 ms, or one larger partition: with 100 M rows in the cluster
a partition has 100,000, so a slice takes some 5 ms, and twice that if they all go.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Doubles, Keys, RowIds
from pserver.errors import ConfigError
from pserver.kernel import fade as kernel
from pserver.placement import NUM_PARTITIONS
from pserver.table.ages import SEEN_DAY
from pserver.table.row import Row
from pserver.table.sparse import SparseTable

SLICE_ROWS = 16_384

DAY_MAX = 2**31 - 1

SCORE_EDGES = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Bins of the histogram of scores: below the first, between two, and from the last on."""

DAY_EDGES = (1, 2, 3, 7, 14, 30, 60, 90, 180, 365)
"""Bins of the histogram of days unseen, where rows have no scores."""


def day_number(text: str, *, where: str = "--day") -> int:
    """Return the day that a text names: a date, as days since 1970-01-01, or a whole number over 0.

    Raises:
        ConfigError: it is neither.

    >>> day_number("1970-01-02"), day_number("20514")
    (1, 20514)
    """
    try:
        day = int(text) if text.isdecimal() else _days_since_1970(text)
    except ValueError:
        day = 0
    if not 1 <= day <= DAY_MAX:
        raise ConfigError(
            f"{where}: must be a date such as 2026-03-01, or a whole number in [1, {DAY_MAX}], "
            f"got {text!r}"
        )
    return day


def _days_since_1970(text: str) -> int:
    return (datetime.date.fromisoformat(text) - datetime.date(1970, 1, 1)).days


@dataclass(slots=True, eq=False)
class Shrunk:
    """What a walk saw and did, so far.

    Attributes:
        rows: that were walked.
        gone: of them, rows that went, or would go.
        gone_bytes: of these.
        by_score: went because of their score.
        by_age: went because of their age, whatever their score.
        edges: of the histogram.
        all_counts: rows walked, by bin; one more than edges.
        gone_counts: rows that went, by bin.
    """

    edges: tuple[float, ...]
    rows: int = 0
    gone: int = 0
    gone_bytes: int = 0
    by_score: int = 0
    by_age: int = 0
    all_counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    gone_counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        """Begin with empty bins."""
        self.all_counts = np.zeros(len(self.edges) + 1, np.int64)
        self.gone_counts = np.zeros(len(self.edges) + 1, np.int64)

    def note(self, values: Doubles, goes: NDArray[np.bool_]) -> None:
        """Count rows into the bins of their values."""
        bins = np.searchsorted(self.edges, values, side="right")
        self.rows += values.size
        self.gone += int(np.count_nonzero(goes))
        self.all_counts += np.bincount(bins, minlength=self.all_counts.size)
        self.gone_counts += np.bincount(bins[goes], minlength=self.gone_counts.size)


def check_shrinkable(table: SparseTable) -> None:
    """Refuse a table whose spec says of no row that it goes.

    Raises:
        ConfigError: what to do is said.
    """
    if not (table.spec.ttl_days or table.accessor.is_ctr):
        raise ConfigError(
            f"shrink {table.spec.name!r}: rows of this table never go by day: its accessor is plain, "
            "and ttl_days is 0"
        )


def edges_of(table: SparseTable) -> tuple[float, ...]:
    """Return the bins of a table's histogram."""
    return SCORE_EDGES if table.accessor.is_ctr else DAY_EDGES


def is_past(table: SparseTable, day: int) -> bool:
    """Return whether a shrink of that day, or of a later one, was done before.

    One that was cut off, by a load of a version that was saved in the middle of it, can be finished.
    """
    keeping = table.keeping
    is_whole = keeping.next_partition == NUM_PARTITIONS
    return day < keeping.day or (day == keeping.day and is_whole)


def verdict(table: SparseTable, row: Row) -> tuple[bool, str]:
    """Return whether a row would go with the shrink of the next day, and why, or why not.

    Args:
        table: of the row.
        row: as it is now.

    Returns:
        The answer and its reason; an empty one where no row ever goes by day.
    """
    if table.accessor.is_ctr:
        return _verdict_of_ctr(table, row)
    ttl_days, seen = table.spec.ttl_days, int(row.fields.get(SEEN_DAY.name, 0))
    if not ttl_days:
        return False, ""
    if not seen:
        return False, "written since the last shrink"
    day = table.keeping.day + 1
    days = day - seen
    return (
        days > ttl_days,
        f"days not written: {days} on day {day}, at most {ttl_days} are allowed",
    )


def _verdict_of_ctr(table: SparseTable, row: Row) -> tuple[bool, str]:
    """Return the same of a row with a score."""
    number = table.accessor.number
    decay, least = number("show_click_decay_rate"), number("delete_threshold")
    most, unseen = number("delete_after_unseen_days"), int(row.fields["unseen_days"])
    show, click = (float(np.float32(row.fields[name] * decay)) for name in ("show", "click"))
    score = table.accessor.score(show, click)
    reasons = (
        f"score {score:g} after the decay, at least {least:g} is kept; unseen for {unseen} days, at "
        f"most {most:.0f} are allowed"
    )
    return score < least or unseen > most, reasons


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """One day's walk over one table.

    Attributes:
        table: whose rows they are.
        day: of the data.
        gap: days since the last shrink, 1 before the first.
        dry: nothing is changed.
        shrunk: written.
    """

    table: SparseTable
    day: int
    gap: int
    dry: bool
    shrunk: Shrunk

    def slices(self, first: int) -> Iterator[None]:
        """Walk over the partitions from ``first`` on; each step is a slice."""
        keeping, rows = self.table.keeping, 0
        for partition in range(first, NUM_PARTITIONS):
            rows += self.visit(partition)
            if not self.dry:
                keeping.next_partition = partition + 1
            if rows >= SLICE_ROWS:
                rows = 0
                yield

    def visit(self, partition: int) -> int:
        """Shrink the rows of one partition, and return how many there were."""
        table = self.table
        keys, row_ids = table.entries(partition)
        if not keys.size:
            return 0
        goes = (self.faded if table.accessor.is_ctr else self.outlived)(keys, row_ids)
        self.shrunk.gone_bytes += table.keeping.bytes_of(row_ids[goes])
        if not self.dry:
            table.keeping.shrunk += table.erase(keys[goes])
        return keys.size

    def faded(self, keys: Keys, row_ids: RowIds) -> NDArray[np.bool_]:
        """Let rows of ctr fade, and return which of them go."""
        table, accessor = self.table, self.table.accessor
        if not self.dry:
            table.will_change(keys, row_ids)
        shows, clicks = np.empty(row_ids.size), np.empty(row_ids.size)
        unseen = np.empty(row_ids.size, np.int64)
        kernel.fade(
            table.fields.words,
            table.fields.floats,
            table.fields.stride,
            row_ids,
            accessor.number("show_click_decay_rate"),
            self.gap,
            0 if self.dry else 1,
            shows,
            clicks,
            unseen,
        )
        scores = accessor.scores(shows, clicks)
        is_low = scores < accessor.number("delete_threshold")
        is_old = unseen > accessor.number("delete_after_unseen_days")
        self.shrunk.by_score += int(np.count_nonzero(is_low))
        self.shrunk.by_age += int(np.count_nonzero(is_old))
        self.shrunk.note(scores, is_low | is_old)
        return is_low | is_old

    def outlived(self, keys: Keys, row_ids: RowIds) -> NDArray[np.bool_]:
        """Note the day in rows that were written, and return which of the others go."""
        table, ages = self.table, self.table.keeping.ages
        assert ages is not None
        days = ages.unseen(row_ids, self.day)
        if not self.dry:
            seen = days == 0
            table.will_change(keys[seen], row_ids[seen])
            ages.note_day(row_ids[seen], self.day)
        goes = days > table.spec.ttl_days
        self.shrunk.by_age += int(np.count_nonzero(goes))
        self.shrunk.note(days.astype(np.float64), goes)
        return goes


def walk(table: SparseTable, day: int, shrunk: Shrunk, *, dry: bool) -> Iterator[None]:
    """Shrink a table for a day, or see what that would do; each step is a slice.

    A walk of an earlier day that was cut off is finished first.

    Args:
        table: ``check_shrinkable`` and ``is_past`` were asked.
        day: of the data.
        shrunk: written.
        dry: change nothing.
    """
    keeping = table.keeping
    if dry:
        yield from _Walk(table, day, keeping.gap_to(day), dry, shrunk).slices(0)
        return
    if keeping.next_partition < NUM_PARTITIONS:
        cut_off = _Walk(table, keeping.day, keeping.gap, dry, shrunk)
        yield from cut_off.slices(keeping.next_partition)
    if day > keeping.day:
        keeping.gap = keeping.gap_to(day)
        keeping.day, keeping.next_partition = day, 0
        yield from _Walk(table, day, keeping.gap, dry, shrunk).slices(0)
