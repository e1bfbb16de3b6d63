"""Which keys get a row: peers' cases, what each option changes, a sketch against exact counts."""

import dataclasses

import numpy as np
import pytest

from pserver.errors import ConfigError, TableFullError
from pserver.occurrences import Occurrences
from pserver.spec import TableSpec
from pserver.table.registry import spelled_out
from pserver.table.sketch import Sketch
from pserver.table.sparse import SparseTable
from pserver.table.values import read_only

SPEC = TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="constant:value=1")


def make(admission: str, **fields: object) -> SparseTable:
    spec = dataclasses.replace(SPEC, admission=admission, capacity_max=100_000, **fields)  # type: ignore[arg-type]
    return SparseTable(spelled_out(spec))


def push(table: SparseTable, keys: np.ndarray, said: Occurrences | None = None) -> None:
    grads = np.ones(keys.size, np.float32)
    table.check_push(keys, grads, said or Occurrences())
    table.push(keys, grads, said or Occurrences())
    table.version += 1


def read(table: SparseTable, key: int) -> float:
    out = np.empty(1, np.float32)
    table.pull(np.array([key], np.uint64), out)
    return float(out[0])


def test_a_filter_of_3_trains_what_the_fourth_read_sees() -> None:
    """deeprec-counter-filter: reads 1 to 3 give 0, read 4 a trained value; here with zeros."""
    table = make("count:n=3", unknown_reads="zeros")
    reads = []
    for _ in range(3):
        reads.append(read(table, 7))
        push(table, np.array([7], np.uint64))
    reads.append(read(table, 7))

    assert reads[:3] == [0, 0, 0]
    assert reads[3] == 0.0  # the first weight, 1, and one step of the third push: 1 - 1
    push(table, np.array([7], np.uint64))
    assert read(table, 7) == -1.0


def test_a_threshold_of_2_admits_at_the_second_ask() -> None:
    """xdl-admission: no rows after the first push of two keys, two after the second."""
    table = make("count:n=2")
    keys = np.array([1, 2], np.uint64)

    rows = []
    for _ in range(2):
        push(table, keys)
        rows.append(table.num_rows)

    assert rows == [0, 2]


def test_a_counter_of_a_sketch_stops_at_255() -> None:
    """xdl-cbf: counters of 8 bits saturate, and do not wrap around."""
    sketch = Sketch(2**16, table="t")
    key, most = read_only(np.array([5], np.uint64)), read_only(np.array([200], np.uint32))

    seen = []
    for _ in range(3):
        sketch.add(key, most)
        seen.append(int(sketch.estimate(key)[0]))

    assert seen == [200, 255, 255]


def test_a_sketch_never_counts_too_little_and_seldom_too_much() -> None:
    """A sixteenth as many keys as counters: fewer than one in 200 is counted too high."""
    rng = np.random.default_rng(0)
    sketch = Sketch(2**20, table="t")
    keys = np.unique(rng.integers(0, 2**64, 2**16, dtype=np.uint64))
    amounts = rng.integers(1, 5, keys.size).astype(np.uint32)
    for part in np.array_split(np.arange(keys.size), 50):
        sketch.add(read_only(keys[part]), read_only(amounts[part]))

    estimates = sketch.estimate(read_only(keys))

    assert np.all(estimates >= amounts)
    assert np.mean(estimates > amounts) < 0.005
    assert sketch.num_bytes == 2**20


@pytest.mark.parametrize("trial", ["key", "push"])
def test_a_share_of_the_keys_is_admitted(trial: str) -> None:
    """Of 20,000 keys 10 % in the first push; by key none of the others later, by push 10 % of them."""
    table = make(f"probability:p=0.1,trial={trial}")
    keys = np.arange(20_000, dtype=np.uint64)

    push(table, keys)
    first = table.num_rows
    push(table, keys)

    assert first == pytest.approx(2000, abs=200)
    expected = first if trial == "key" else 2000 + 1800
    assert table.num_rows == pytest.approx(expected, abs=300)
    again = make(f"probability:p=0.1,trial={trial}")
    push(again, keys)
    assert again.num_rows == first  # a replay decides the same


OPTIONS = [
    ("count:n=3", "count:n=4"),
    ("count:n=3", "count:n=3,per=batch"),
    ("count:n=200,filter=sketch,counters=65536", "count:n=200"),
    ("count:n=2,filter=sketch,counters=65536", "count:n=2,filter=sketch,counters=1e7"),
    ("probability:p=0.5", "probability:p=0.6"),
    ("probability:p=0.5", "probability:p=0.5,trial=push"),
    ("show_click:score=0.25", "show_click:score=0.5"),
    ("show_click:score=0.3", "show_click:score=0.3,nonclk_coeff=0.2"),
    ("show_click:score=0.5", "show_click:score=0.5,click_coeff=0.1"),
    ("always", "count:n=2"),
]


@pytest.mark.parametrize(("one", "other"), OPTIONS)
def test_every_option_changes_which_keys_have_rows(one: str, other: str) -> None:
    """No option is taken and dropped."""
    results = []
    for admission in (one, other):
        table = make(admission)
        rng = np.random.default_rng(1)
        for _ in range(3):
            keys = rng.integers(0, 60_000, 9_000).astype(np.uint64)
            clicks = rng.integers(0, 2, keys.size).astype(np.float32)
            push(table, keys, Occurrences(clicks=clicks))
        table.check()
        results.append((table.num_rows, table.num_bytes))
    assert results[0] != results[1]


@pytest.mark.parametrize(
    ("admission", "message"),
    [
        ("cuont:n=2", "unknown rule 'cuont'; .*count"),
        ("count", "count needs n="),
        ("count:n=0", "n must be a whole number in"),
        ("count:n=300,filter=sketch", "stops at 255"),
        ("count:n=3,counters=100000", "no option 'counters'"),
        ("probability:p=1.5", "p must be a number in"),
        ("show_click", "show_click needs score="),
        ("always:n=2", "no option 'n'"),
    ],
)
def test_what_cannot_work_is_refused(admission: str, message: str) -> None:
    """With the nearest name, or the range."""
    with pytest.raises(ConfigError, match=message):
        make(admission)


def test_a_full_table_takes_pushes_of_keys_that_are_not_admitted_and_no_others() -> None:
    """Room is asked for rows that will be made, and for keys that will wait; both are refused whole."""
    spec = dataclasses.replace(SPEC, admission="count:n=2", capacity_max=3)
    table = SparseTable(spelled_out(spec))
    push(table, np.array([1, 2, 3, 1, 2, 3], np.uint64))
    assert table.num_rows == 3

    push(table, np.array([4, 5, 6], np.uint64))

    assert table.num_rows == 3
    with pytest.raises(TableFullError, match="1 new rows needed"):
        push(table, np.array([4], np.uint64))
    with pytest.raises(TableFullError, match="would wait for admission"):
        push(table, np.array([7], np.uint64))
    table.check()


def test_shows_before_admission_are_the_rows_when_its_accessor_counts_them() -> None:
    """A row of ctr that a score let in begins with the shows and clicks that gave the score."""
    table = make("show_click:score=1", accessor="ctr", dim=2)
    keys, grads = np.array([7], np.uint64), np.ones(2, np.float32)

    for _ in range(2):
        table.push(keys, grads, Occurrences(clicks=np.ones(1, np.float32) * 0.5))

    row = table.row(7)
    assert row is not None
    assert (row.fields["show"], row.fields["click"], row.score) == (2, 1, 1.1)
    assert row.fields["delta_score"] == pytest.approx(1.1)


def test_a_read_changes_nothing_when_it_may_not_create() -> None:
    """Neither a peek nor, with admission, a pull makes a row or counts a key."""
    table = make("count:n=2")
    before = table.num_bytes

    for _ in range(5):
        assert read(table, 7) == 1.0

    assert table.num_rows == 0
    assert table.num_bytes == before
    assert table.gate is not None
    assert table.gate.filter.record(7) == {}


@pytest.mark.parametrize(
    "admission", ["count:n=3", "count:n=3,filter=sketch", "show_click:score=9"]
)
@pytest.mark.parametrize("verb", ["assign", "add"])
def test_what_is_written_as_it_is_gets_a_row_whatever_admission_says(
    admission: str, verb: str
) -> None:
    """Assigned weights and geo's differences are no evidence to weigh: dropping them would lose them."""
    table = make(admission)
    push(table, np.array([7], np.uint64))
    assert table.num_rows == 0

    getattr(table, verb)(np.array([7, 8], np.uint64), np.array([5.0, 6.0], np.float32))

    begun = 0.0 if verb == "assign" else float(read(make(admission), 7))
    assert table.num_rows == 2
    assert (read(table, 7), read(table, 8)) == (begun + 5.0, begun + 6.0)
    assert table.gate is not None
    assert table.gate.filter.num_keys == 0
