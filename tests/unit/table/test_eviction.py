"""What ``eviction`` promises: within the limit after each command, the right rows go, reads count not."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from pserver.arrays import Floats, Keys
from pserver.errors import ConfigError
from pserver.spec import TableSpec
from pserver.table.eviction import BATCH_MAX, LOOKS, ROOM, make_eviction_rule
from pserver.table.keeping import INDEX_BYTES
from pserver.table.sparse import SparseTable

SPEC = TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros", evict="lru:rows=8000")


def push(table: SparseTable, keys: object) -> None:
    """Push a gradient of 1 to each key."""
    array = np.asarray(keys, np.uint64)
    table.push(array, np.ones(array.size * table.spec.dim, np.float32))


def has(table: SparseTable, keys: object) -> list[bool]:
    """Return which keys have a row."""
    return [table.row(int(key)) is not None for key in np.asarray(keys, np.uint64)]


def alive(table: SparseTable) -> set[int]:
    """Return all keys that have a row."""
    return {int(key) for partition in range(1024) for key in table.entries(partition)[0]}


def test_the_oldest_go_and_the_hot_stay_when_new_keys_come() -> None:
    """After each command the table is within its limit, hot keys are there, and who went was old."""
    table = SparseTable(SPEC)
    hot = np.arange(500)
    written: dict[int, int] = {}
    for turn in range(60):
        keys = np.concatenate([hot, 1000 + turn * 300 + np.arange(300)])
        before = alive(table)
        push(table, keys)
        gone = sorted(written[key] for key in before - alive(table))
        if gone:
            ages = np.sort([written[key] for key in before])
            assert gone[-1] <= ages[int(0.3 * ages.size)]
        written |= dict.fromkeys(keys.tolist(), turn)
        assert table.num_rows <= 8000
        assert all(has(table, hot))
    assert table.num_rows > 8000 - 2 * BATCH_MAX
    assert table.keeping.evicted == 60 * 300 + 500 - table.num_rows
    table.check()


def test_memory_stays_bounded_when_keys_never_end() -> None:
    """Freed rows are used again, so the slab has no more rows than the limit and one command's."""
    table = SparseTable(dataclasses.replace(SPEC, evict="lru:rows=3000"))
    for turn in range(20):
        push(table, turn * 500 + np.arange(500))

    assert table.num_bytes <= (3000 + 500) * table.row_bytes + table._index.num_bytes
    assert table._index.num_rows_touched <= 3000 + 500


@pytest.mark.parametrize("rule", ["lru", "lfu"])
def test_a_limit_in_bytes_counts_rows_and_their_index(rule: str) -> None:
    """Rows times bytes a row, with a share of the index, is what is held to the limit."""
    table = SparseTable(dataclasses.replace(SPEC, dim=4, evict=f"{rule}:bytes=2e6"))
    row_bytes = table.row_bytes + INDEX_BYTES
    for turn in range(20):
        push(table, turn * 3000 + np.arange(3000))
        assert table.num_rows * row_bytes <= 2_000_000

    assert table.num_rows * row_bytes > 0.9 * 2_000_000
    assert 0.8 < table._index.num_bytes / (table.num_rows * INDEX_BYTES) < 1.6


def test_the_same_commands_leave_the_same_rows() -> None:
    """What goes depends on the commands alone: a replay ends with the very same table."""
    tables = [SparseTable(dataclasses.replace(SPEC, evict="lfu:rows=3000")) for _ in range(2)]
    for table in tables:
        rng = np.random.default_rng(3)
        for _ in range(100):
            push(table, np.unique(rng.zipf(1.3, 600).astype(np.uint64)))

    assert alive(tables[0]) == alive(tables[1])
    assert tables[0].keeping.numbers() == tables[1].keeping.numbers()
    assert tables[0].keeping.evicted > 0


def test_reads_do_not_keep_a_row() -> None:
    """Rows that are only read go as if nobody had; a read changes no word of any row."""
    read, unread = (SparseTable(dataclasses.replace(SPEC, evict="lru:rows=50")) for _ in range(2))
    out = np.empty(10, np.float32)
    for turn in range(30):
        for table in (read, unread):
            push(table, turn * 10 + np.arange(10))
        read.peek(np.arange(10, dtype=np.uint64), out)
        if all(has(read, range(10))):
            read.pull(np.arange(10, dtype=np.uint64), out)

    assert alive(read) == alive(unread)
    assert read.keeping.numbers() == unread.keeping.numbers()


def test_no_row_of_the_command_itself_goes() -> None:
    """A command of more rows than the limit keeps them all until the next one."""
    table = SparseTable(dataclasses.replace(SPEC, evict="lru:rows=100"))
    push(table, range(1000, 1100))

    push(table, range(5000))
    assert table.num_rows == 5000
    assert all(has(table, range(5000)))
    out = np.empty(1, np.float32)
    table.pull(np.array([7777], np.uint64), out)
    assert 99 <= table.num_rows <= 100
    assert has(table, [7777]) == [True]


def test_a_table_loaded_over_its_limit_gets_there_by_and_by() -> None:
    """No command lets many more rows fall out than it makes, so none takes seconds."""
    table = SparseTable(SPEC)
    table.rows_to_fill(np.arange(60_000, dtype=np.uint64))

    left = []
    while table.num_rows > 8000:
        before = table.num_rows
        push(table, [70_000])
        left.append(before - table.num_rows)

    assert len(left) > 2
    assert max(left) <= LOOKS * BATCH_MAX
    assert has(table, [70_000]) == [True]
    table.check()


def test_keys_that_come_back_begin_anew() -> None:
    """First weights and first state, whatever the row that they get had before."""
    spec = dataclasses.replace(
        SPEC, dim=2, optimizer="adagrad:lr=1,initial=0.5", evict="lru:rows=10"
    )
    table = SparseTable(spec)
    for _ in range(5):
        push(table, range(10))
    push(table, range(10, 20))
    assert has(table, range(10)) == [False] * 10

    out = np.full(20, np.nan, np.float32)
    table.pull(np.arange(10, dtype=np.uint64), out)

    assert not out.any()
    row = table.row(3)
    assert row is not None
    assert row.state["G"].tolist() == [0.5, 0.5]


def test_uses_are_those_of_a_peer() -> None:
    """tfra-lfu-scores: 0..3 twice, then 0, 1, 4, 5, give scores 1 1 2 2 3 3, and 0..5 outlive 1,030 others.

    The others come in ten commands: rows of one command never make room for each other here.
    """
    table = SparseTable(dataclasses.replace(SPEC, evict="lfu:rows=1024"))
    for keys in ([0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 4, 5]):
        push(table, keys)

    rows = [table.row(key) for key in range(6)]
    assert sorted(row.fields["uses"] for row in rows if row) == [1, 1, 2, 2, 3, 3]
    out = np.empty(103, np.float32)
    for turn in range(10):
        table.pull(100 + turn * 103 + np.arange(103, dtype=np.uint64), out)
    assert table.num_rows <= 1024
    assert all(has(table, range(6)))


def test_uses_come_first_and_then_age_as_with_a_peer() -> None:
    """torchrec-lfu-lru: of (use, age) the less used goes first, then the older: ids 3, 2, 1, not 4."""
    table = SparseTable(dataclasses.replace(SPEC, evict="lfu:rows=4"))
    for keys in ([2], [1, 2], [1], [3], [4], [4]):
        push(table, keys)

    order = []
    for new in (10, 11, 12):
        before = alive(table)
        for _ in range(9):
            push(table, [new])
        order += sorted(before - alive(table))
        table.erase(np.array([new], np.uint64))
        table.assign(np.array([50 + new], np.uint64), np.zeros(1, np.float32))
        for _ in range(9):
            push(table, [50 + new])

    assert order == [3, 2, 1]
    assert has(table, [4]) == [True]


def test_a_command_is_one_use_however_often_it_names_a_key() -> None:
    """Push, add and assign alike: three repeats are one write."""
    table = SparseTable(dataclasses.replace(SPEC, evict="lfu:rows=4"))
    keys, floats = np.full(3, 7, np.uint64), np.ones(3, np.float32)
    writes: list[Callable[[Keys, Floats], None]] = [table.push, table.add, table.assign]

    for number, write in enumerate(writes, 1):
        write(keys, floats)
        row = table.row(7)
        assert row is not None
        assert row.fields["uses"] == number


def test_uses_fade_by_half_lives() -> None:
    """A key used eight times, then never, has half of that after each half life of writes."""
    table = SparseTable(dataclasses.replace(SPEC, evict="lfu:rows=100,half_life=10"))
    for _ in range(8):
        push(table, [1])
    for _ in range(12):
        push(table, [2])  # the clock is at 20
    push(table, [1])

    rows = [table.row(key) for key in (1, 2)]
    assert [row.fields["uses"] for row in rows if row] == [8 // 4 + 1, (2 // 2 + 10)]


def test_ages_are_right_when_the_clock_wraps() -> None:
    """The clock's low 32 bits are kept; the oldest go first all the same."""
    table = SparseTable(dataclasses.replace(SPEC, evict="lru:rows=3"))
    assert table.keeping.ages is not None
    table.keeping.ages.clock = 2**32 - 2
    for key in range(6):
        push(table, [key])

    assert alive(table) == {3, 4, 5}


def test_what_fell_out_is_told_in_words() -> None:
    """Of lru the age, of lfu the uses, of the best row that went."""
    for rule, words in (
        ("lru", "not written for 3 writes or more"),
        ("lfu", "written 1 times or fewer"),
    ):
        table = SparseTable(dataclasses.replace(SPEC, evict=f"{rule}:rows=3"))
        for key in range(4):
            push(table, [key])
        assert table.keeping.eviction is not None
        assert words in table.keeping.eviction.fell()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lru", "lru needs a limit, rows=NUMBER or bytes=NUMBER of a shard"),
        ("lfu:half_life=5", "needs a limit"),
        ("lur:rows=5", "unknown rule 'lur'; did you mean 'lru'"),
        ("lru:row=5", "did you mean 'rows'"),
        ("lru:rows=0", r"rows must be a whole number in \[1,"),
        ("lru:bytes=1000", r"bytes must be a whole number in \[1.04858e\+06,"),
        ("lru:rows=5,half_life=5", "lru has no option 'half_life'"),
        ("none:rows=5", "none has no option 'rows'"),
        ("score:rows=5", "rows of the accessor plain have no score"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(text: str, message: str) -> None:
    """With the nearest valid name, or what is missing."""
    with pytest.raises(ConfigError, match=message):
        make_eviction_rule(text, is_ctr=False)


def test_room_above_the_limit_is_demanded() -> None:
    """capacity_max must hold the limit and the rows of one command, or the table would be full."""
    spec = dataclasses.replace(SPEC, capacity_max=8000 + ROOM)
    SparseTable(spec)

    with pytest.raises(ConfigError, match=f"needs capacity_max {8000 + ROOM} or more"):
        SparseTable(dataclasses.replace(spec, capacity_max=8000 + ROOM - 1))
