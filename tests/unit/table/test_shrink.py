"""What ``shrink`` promises: rows go by age once a day, in slices, and a walk that was cut off goes on."""

import dataclasses
import itertools

import numpy as np
import pytest

from pserver.errors import ConfigError
from pserver.placement import NUM_PARTITIONS, partition_of
from pserver.spec import TableSpec
from pserver.table import shrink
from pserver.table.shrink import Shrunk, day_number
from pserver.table.sparse import SparseTable

SPEC = TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros", ttl_days=2)
MANY = np.arange(40_000, dtype=np.uint64)


def push(table: SparseTable, keys: object) -> None:
    """Push a gradient of 1 to each key."""
    array = np.asarray(keys, np.uint64)
    table.push(array, np.ones(array.size, np.float32))


def run(table: SparseTable, day: int, *, dry: bool = False) -> Shrunk:
    """Shrink to the end."""
    assert not shrink.is_past(table, day)
    shrunk = Shrunk(shrink.DAY_EDGES)
    for _ in shrink.walk(table, day, shrunk, dry=dry):
        pass
    table.check()
    return shrunk


def seen_days(table: SparseTable, keys: object) -> list[int | None]:
    """Return what rows say of the day; None where there is none."""
    rows = [table.row(int(key)) for key in np.asarray(keys)]
    return [None if row is None else int(row.fields["seen_day"]) for row in rows]


@pytest.mark.parametrize(("ttl_days", "last"), [(1, 11), (2, 12), (30, 40)])
def test_a_row_lives_for_its_days_after_the_one_it_was_written_on(ttl_days: int, last: int) -> None:
    """Written on day 10, it is there after the shrink of day 10 + ttl, and goes with the next."""
    table = SparseTable(dataclasses.replace(SPEC, ttl_days=ttl_days))
    push(table, [7])
    for day in range(10, last + 1):
        assert run(table, day).gone == 0

    assert run(table, last + 1).gone == 1


def test_days_left_out_count_for_ages_and_not_against_what_was_written() -> None:
    """After a gap, rows written since the last shrink are new; the others are older by the gap."""
    table = SparseTable(SPEC)
    push(table, [1, 2])
    run(table, 10)
    push(table, [2, 3])

    assert run(table, 20).gone == 1

    assert seen_days(table, [1, 2, 3]) == [None, 20, 20]


def test_a_table_for_each_slot_has_its_own_days_as_with_a_peer() -> None:
    """monolith-evict-slot-ttl: slots that live 5, 6 and 14 days, all written at once: after 5 days the first is gone.

    Here days belong to a table, so a slot that lives differently has its own.
    """
    tables = [SparseTable(dataclasses.replace(SPEC, ttl_days=days)) for days in (5, 6, 14)]
    for table in tables:
        push(table, [7])
        run(table, 1)
        run(table, 1 + 6)  # more than five days later

    assert [table.num_rows for table in tables] == [0, 1, 1]


def test_a_walk_is_cut_into_slices_and_a_push_in_the_middle_falls_before_or_after() -> None:
    """Keys of partitions that are still to come count as written before the shrink, others after it."""
    table = SparseTable(SPEC)
    push(table, MANY)
    run(table, 1)
    shrunk = Shrunk(shrink.DAY_EDGES)
    slices = shrink.walk(table, 4, shrunk, dry=False)
    next(slices)
    reached = table.keeping.next_partition
    assert 0 < reached < NUM_PARTITIONS
    assert shrink.SLICE_ROWS <= shrunk.rows < shrink.SLICE_ROWS + 200

    partitions = partition_of(MANY)
    walked, to_come = MANY[partitions < reached][:50], MANY[partitions >= reached][:50]
    assert seen_days(table, walked) == [None] * 50
    push(table, np.concatenate([walked, to_come]))
    for _ in slices:
        pass

    assert seen_days(table, walked) == [0] * 50
    assert seen_days(table, to_come) == [4] * 50
    assert table.num_rows == 100
    table.check()


def test_a_walk_that_was_cut_off_is_finished_by_the_same_day_or_a_later_one() -> None:
    """What a version says that was saved in the middle of a walk is enough to go on there."""
    for day in (4, 5):
        table = SparseTable(SPEC)
        push(table, MANY)
        run(table, 1)
        next(shrink.walk(table, 4, Shrunk(shrink.DAY_EDGES), dry=False))
        copy = SparseTable(SPEC)
        copy.keeping.restore(table.keeping.numbers())
        assert copy.keeping.numbers() == table.keeping.numbers()
        left = table.num_rows
        assert left > 0

        assert run(table, day).gone == left
        assert shrink.is_past(table, day)
        assert table.keeping.numbers()["next_partition"] == NUM_PARTITIONS


def test_the_same_pushes_and_shrinks_leave_the_same_rows() -> None:
    """A replay, with the walk's slices at the same places, ends with the very same table."""
    tables = [SparseTable(SPEC) for _ in range(2)]
    for table in tables:
        rng = np.random.default_rng(4)
        for day in range(1, 9):
            push(table, np.unique(rng.integers(0, 30_000, 8000)))
            shrunk = Shrunk(shrink.DAY_EDGES)
            for _ in shrink.walk(table, day, shrunk, dry=False):
                push(table, np.unique(rng.integers(0, 30_000, 100)))

    rows = [
        {int(k): table.row(int(k)) for p in range(NUM_PARTITIONS) for k in table.entries(p)[0]}
        for table in tables
    ]
    assert rows[0].keys() == rows[1].keys()
    for key in itertools.islice(rows[0], 500):
        first, second = rows[0][key], rows[1][key]
        assert first is not None
        assert second is not None
        assert (first.fields, first.weights.tolist()) == (second.fields, second.weights.tolist())


def test_freed_rows_are_used_again_with_fresh_state() -> None:
    """A key that comes back has first weights, and the slab does not grow."""
    table = SparseTable(dataclasses.replace(SPEC, optimizer="adagrad:lr=1,initial=0.5"))
    push(table, range(100))
    run(table, 1)
    run(table, 4)
    assert table.num_rows == 0

    push(table, range(200, 300))

    row = table.row(200)
    assert row is not None
    assert row.state["G"].tolist() == [1.5]
    assert table._index.num_rows_touched == 100


@pytest.mark.parametrize(
    ("text", "day"), [("1970-01-02", 1), ("2026-03-01", 20513), ("7", 7), ("2147483647", 2**31 - 1)]
)
def test_days_are_dates_or_numbers(text: str, day: int) -> None:
    """A date counts from 1970-01-01, so dates and numbers do not mix by chance."""
    assert day_number(text) == day


def test_a_table_without_days_is_refused() -> None:
    """Shrinking could remove nothing."""
    with pytest.raises(ConfigError, match="ttl_days is 0"):
        shrink.check_shrinkable(SparseTable(dataclasses.replace(SPEC, ttl_days=0)))
