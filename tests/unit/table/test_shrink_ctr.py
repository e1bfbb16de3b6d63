"""What ``shrink``, ``score`` eviction and top keys make of rows of ctr: Paddle's own numbers."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import ConfigError
from pserver.occurrences import Occurrences
from pserver.spec import TableSpec
from pserver.table import shrink
from pserver.table.eviction import ROOM
from pserver.table.keeping import INDEX_BYTES
from pserver.table.shrink import Shrunk
from pserver.table.sparse import SparseTable
from pserver.table.top import Best

SPEC = TableSpec(
    name="t",
    dim=3,
    optimizer="sgd:lr=1",
    initializer="zeros",
    accessor="ctr",
    capacity_max=ROOM + 999,
)


def push(table: SparseTable, key: int, show: float, click: float) -> None:
    """Push shows and clicks to a key, and a gradient of 0."""
    said = Occurrences(shows=np.array([show], np.float32), clicks=np.array([click], np.float32))
    keys, grads = np.array([key], np.uint64), np.zeros(table.spec.dim, np.float32)
    table.push(keys, table.check_push(keys, grads, said), said)
    table.version += 1


def run(table: SparseTable, day: int, *, dry: bool = False) -> Shrunk:
    """Shrink to the end."""
    shrunk = Shrunk(shrink.edges_of(table))
    assert list(shrink.walk(table, day, shrunk, dry=dry)) == []
    table.check()
    return shrunk


def days_of(table: SparseTable, days_max: int = 500) -> int:
    """Return with which day's shrink the table's only row goes."""
    for day in range(1, days_max):
        if run(table, day).gone:
            return day
    raise AssertionError("it never goes")


def words(table: SparseTable, key: int) -> dict[str, float]:
    """Return what a row keeps beside its weights."""
    row = table.row(key)
    assert row is not None
    return dict(row.fields)


@pytest.mark.parametrize(
    ("show", "click", "score", "days"),
    [
        (20, 2, 3.8, 78),  # by score alone, which 30 unseen days come before
        (8, 0, 0.8, 1),  # the decay comes first: 0.784 is under 0.8
        (100, 0, 10.0, math.ceil(math.log(0.8 / 10) / math.log(0.98))),
        (10, 10, 10.0, math.ceil(math.log(0.8 / 10) / math.log(0.98))),
    ],
)
def test_a_row_goes_on_the_day_that_the_formula_says(
    show: float, click: float, score: float, days: int
) -> None:
    """A row of score S that nobody pushes goes after ceil(ln(0.8 / S) / ln 0.98) days by score."""
    table = SparseTable(dataclasses.replace(SPEC, accessor="ctr:delete_after_unseen_days=10000"))
    push(table, 7, show, click)
    row = table.row(7)
    assert row is not None
    assert row.score == pytest.approx(score)

    assert days_of(table) == days == math.ceil(math.log(0.8 / score) / math.log(0.98) or 1)


def test_a_row_goes_on_the_first_shrink_with_31_unseen_days() -> None:
    """With Paddle's numbers, a row of score 3.8 goes for its age long before its score does it."""
    table = SparseTable(SPEC)
    push(table, 7, 20, 2)

    for day in range(1, 32):  # the first one is of the day on which it was pushed
        assert (run(table, day).gone, words(table, 7)["unseen_days"]) == (0, day)

    shrunk = run(table, 32)
    assert (shrunk.gone, shrunk.by_age, shrunk.by_score) == (1, 1, 0)


def test_a_push_makes_a_row_young_again() -> None:
    """unseen_days is 0 after it, and statistics are added to what the decay left."""
    table = SparseTable(SPEC)
    push(table, 7, 20, 2)
    run(table, 1)
    run(table, 2)

    push(table, 7, 1, 1)

    found = words(table, 7)
    assert found["unseen_days"] == 0
    assert found["show"] == pytest.approx(20 * 0.98**2 + 1)
    assert found["click"] == pytest.approx(2 * 0.98**2 + 1)


def test_days_left_out_make_rows_older_and_decay_once() -> None:
    """After a gap of ten days a row that was unseen before is ten days older; a pushed one is not."""
    table = SparseTable(SPEC)
    push(table, 7, 20, 2)
    run(table, 1)
    push(table, 8, 20, 2)

    run(table, 11)

    assert (words(table, 7)["unseen_days"], words(table, 8)["unseen_days"]) == (11, 1)
    assert words(table, 7)["show"] == pytest.approx(20 * 0.98**2)
    assert words(table, 8)["show"] == pytest.approx(20 * 0.98)


def test_the_shrink_of_a_peers_test_gives_its_numbers() -> None:
    """paddle-shrink: the row of 0..14 is kept with show 2.97, click 3.96 and score 3.762; gone after 1,000 days."""
    options = "nonclk_coeff=0.2,show_click_decay_rate=0.99,delete_threshold=0.8"
    table = SparseTable(dataclasses.replace(SPEC, accessor=f"ctr:{options}"))
    push(table, 7, 3, 4)
    table.fields.view("unseen_days")[0] = 1

    assert run(table, 1).gone == 0
    row = table.row(7)
    assert row is not None
    assert row.fields["show"] == pytest.approx(2.97, abs=1e-5)
    assert row.fields["click"] == pytest.approx(3.96, abs=1e-5)
    assert row.score == pytest.approx(3.762, abs=1e-5)

    table.fields.view("unseen_days")[0] = 1000
    assert run(table, 2).by_age == 1
    assert table.num_rows == 0


def test_inspect_and_shrink_agree() -> None:
    """What is said of a row is what the next day does to it, for its score and for its age."""
    table = SparseTable(dataclasses.replace(SPEC, accessor="ctr:delete_after_unseen_days=2"))
    for key, show in ((1, 8), (2, 9), (3, 50)):
        push(table, key, show, 0)

    for day in range(1, 6):
        rows = {key: table.row(key) for key in (1, 2, 3)}
        said = {key: shrink.verdict(table, row)[0] for key, row in rows.items() if row}
        run(table, day)
        assert {key for key, goes in said.items() if goes} == {
            key for key in said if table.row(key) is None
        }
    assert table.num_rows == 0
    push(table, 1, 8, 0)
    row = table.row(1)
    assert row is not None
    assert shrink.verdict(table, row) == (
        True,
        "score 0.784 after the decay, at least 0.8 is kept; unseen for 0 days, at most 2 are allowed",
    )


def test_a_dry_run_changes_nothing_and_counts_all() -> None:
    """Rows, bytes of both parts, and the histogram of what would go; the rows stay to the bit."""
    table = SparseTable(dataclasses.replace(SPEC, accessor="ctr:embedx_threshold=0"))
    for key in range(40):
        push(table, key, key, 0)
    before = table.fields.words[: 40 * table.fields.stride].tobytes()

    dry, numbers = run(table, 1, dry=True), table.keeping.numbers()

    assert table.fields.words[: 40 * table.fields.stride].tobytes() == before
    assert (dry.rows, dry.gone, dry.by_score, dry.by_age) == (40, 9, 9, 0)
    assert dry.gone_counts.tolist()[:6] == [0, 2, 1, 3, 3, 0]
    assert dry.all_counts.sum() == 40
    assert dry.gone_bytes == 9 * (table.row_bytes + INDEX_BYTES + 2 * 4)
    assert numbers["day"] == 0
    live = table.keeping.live_bytes
    assert run(table, 1).gone == 9
    assert table.keeping.live_bytes == live - dry.gone_bytes


@given(
    shows=st.lists(st.integers(0, 60), min_size=12, max_size=40),
    clicks=st.lists(st.integers(0, 9), min_size=40, max_size=40),
)
def test_the_lowest_scores_fall_out_when_a_table_is_over_its_limit(
    shows: list[int], clicks: list[int]
) -> None:
    """A small table is ranked exactly: of equal scores the older goes first, and the newest row stays."""
    table = SparseTable(dataclasses.replace(SPEC, evict="score:rows=10"))
    kept: list[tuple[np.float32, int]] = []
    for key, show in enumerate(shows):
        push(table, key, show, clicks[key])
        score = np.float32((show - clicks[key]) * 0.1 + clicks[key])
        if len(kept) == 10:
            kept.remove(min(kept))
        kept.append((score, key))

        alive = {int(k) for p in range(1024) for k in table.entries(p)[0]}
        assert alive == {key for _, key in kept}
    eviction = table.keeping.eviction
    assert eviction is not None
    assert eviction.evicted == len(shows) - 10
    assert eviction.fell().startswith("a score of ")
    table.check()


def test_the_highest_rows_are_found() -> None:
    """By score or by shows, exactly, of equal ones the smaller key first."""
    table = SparseTable(SPEC)
    for key, (show, click) in enumerate([(10, 0), (1, 1), (20, 0), (5, 5), (20, 0)]):
        push(table, key, show, click)

    by_score, by_show = Best(table, "score", 3), Best(table, "show", 2)
    for best in (by_score, by_show):
        assert list(best.walk()) == []

    assert by_score.keys.tolist() == [3, 2, 4]
    assert by_score.values.tolist() == pytest.approx([5, 2, 2])
    assert (by_show.keys.tolist(), by_show.values.tolist()) == ([2, 4], [20, 20])
    assert by_show.rows == 5
    with pytest.raises(ConfigError, match="plain have no score"):
        Best(SparseTable(TableSpec(name="p", dim=1)), "score", 1)


def test_days_are_not_given_twice() -> None:
    """A ttl beside the accessor's own days would be a second way to say the same."""
    with pytest.raises(ConfigError, match="delete_after_unseen_days"):
        SparseTable(dataclasses.replace(SPEC, ttl_days=3))
