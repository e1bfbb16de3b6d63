"""A cut holds the rows of one instant, whatever happens to the table meanwhile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import CheckpointError
from pserver.spec import TableSpec
from pserver.table.cut import Cut, Piece
from pserver.table.dump import columns
from pserver.table.history import History
from pserver.table.sparse import SparseTable
from tests.reference import EDGE_KEYS, key_at

DIM = 2
KEYS = [*EDGE_KEYS, *(key_at(7, low) for low in range(40)), *range(100, 140)]
"""Among them a partition that is copied in several slices."""


def make_table(optimizer: str = "adagrad:lr=0.5") -> SparseTable:
    return SparseTable(TableSpec(name="t", dim=DIM, optimizer=optimizer, capacity_max=1000))


def rows_of(table: SparseTable) -> dict[int, tuple[bytes, bytes, int]]:
    """Return all rows, by the slow way."""
    rows = {}
    for key in KEYS:
        row = table.row(key)
        if row is not None:
            state = b"".join(part.tobytes() for part in row.state.values())
            rows[key] = (row.weights.tobytes(), state, row.epoch)
    return rows


def rows_in(cut: Cut, pieces: list[Piece]) -> dict[int, tuple[bytes, bytes, int]]:
    """Return the rows of a cut's pieces, each of which is there once."""
    rows = {}
    for piece in pieces:
        named = columns(cut.blocks, piece.rows)
        epochs = named.pop("epochs")
        weights = named.pop("weights")
        state = [named[name] for name in named]
        for i, key in enumerate(piece.keys.tolist()):
            assert key not in rows, key
            parts = b"".join(part[i].tobytes() for part in state)
            rows[key] = (weights[i].tobytes(), parts, int(epochs[i]))
    return rows


def as_keys(keys: list[int]) -> np.ndarray:
    return np.array(keys, np.uint64)


def push(table: SparseTable, keys: list[int], value: float = 1.0) -> None:
    table.push(as_keys(keys), np.full(len(keys) * DIM, value, np.float32))
    table.version += 1


def erased_until(history: History, epoch: int) -> set[int]:
    return {key for keys in history.erased_until(epoch) for key in keys.tolist()}


Moves = list[tuple[str, list[int]]]
some = st.lists(st.sampled_from(KEYS), max_size=12)
moves = st.lists(st.tuples(st.sampled_from(["push", "assign", "pull", "erase"]), some), max_size=12)


def move(table: SparseTable, verb: str, keys: list[int]) -> None:
    values = np.arange(len(keys) * DIM, dtype=np.float32)
    if verb == "push":
        push(table, keys)
    elif verb == "assign":
        table.assign(as_keys(keys), values)
    elif verb == "pull":
        table.pull(as_keys(keys), values)
    else:
        table.erase(as_keys(keys))


@given(
    before=moves,
    during=moves,
    rows_max=st.integers(1, 9),
    optimizer=st.sampled_from(["sgd", "adam"]),
)
def test_a_cut_holds_every_row_as_it_was_when_rows_change_meanwhile(
    before: Moves, during: Moves, rows_max: int, optimizer: str
) -> None:
    """Whatever is pushed, written, created or erased between slices, the cut is its instant."""
    table = make_table(optimizer)
    for verb, keys in before:
        move(table, verb, keys)
    expected = rows_of(table)

    cut = History(table).begin_cut(since=0)
    pieces: list[Piece] = []
    for verb, keys in during:
        move(table, verb, keys)
        # The partition of 40 keys must be met while it is half copied, so go there at once.
        while cut.next_partition < 7:
            pieces += cut.copy_some(rows_max)
        pieces += cut.copy_some(rows_max)
    while not cut.is_done:
        pieces += cut.copy_some(rows_max)

    assert rows_in(cut, pieces) == expected
    assert cut.num_rows == len(expected)
    table.check()


@given(before=moves, later=moves, during=moves)
def test_a_delta_holds_what_changed_and_what_is_gone_when_it_follows_a_cut(
    before: Moves, later: Moves, during: Moves
) -> None:
    """A delta's rows and erased keys turn the rows of its base into those of its instant."""
    table = make_table()
    for verb, keys in before:
        move(table, verb, keys)
    history = History(table)
    base = rows_of(table)
    since = history.begin_cut(since=0).epoch
    history.end_cut()
    history.forget_erased(since)
    for verb, keys in later:
        move(table, verb, keys)
    expected = rows_of(table)

    cut = history.begin_cut(since=since)
    pieces: list[Piece] = []
    for verb, keys in during:
        move(table, verb, keys)
        pieces += cut.copy_some(5)
    while not cut.is_done:
        pieces += cut.copy_some(5)
    gone = erased_until(history, cut.epoch)

    kept = {key: row for key, row in base.items() if key not in gone}
    assert {**kept, **rows_in(cut, pieces)} == expected
    assert all(epoch > since for _, _, epoch in rows_in(cut, pieces).values())


def test_rows_are_copied_once_when_a_push_repeats_a_key() -> None:
    """A key that one push names three times is kept aside once."""
    table = make_table()
    push(table, [5, 6])
    cut = History(table).begin_cut(since=0)

    push(table, [5, 5, 5])
    pieces = cut.copy_some(10**6)

    assert sorted(key for piece in pieces for key in piece.keys.tolist()) == [5, 6]


def test_the_cut_fails_and_the_table_goes_on_when_too_much_is_kept_aside() -> None:
    """Over the bound the cut says so, and no push is disturbed."""
    table = make_table()
    push(table, KEYS)
    history = History(table)
    cut = history.begin_cut(since=0, aside_bytes_max=500)

    push(table, KEYS)

    with pytest.raises(CheckpointError, match="more than 500 bytes of rows changed"):
        cut.copy_some(1)
    history.end_cut()
    push(table, KEYS)
    assert table.version == 3


def test_slices_are_small_when_a_partition_is_large() -> None:
    """No slice copies more rows than it was told to, not even of one partition."""
    table = make_table()
    push(table, [key_at(3, low) for low in range(200)])
    cut = History(table).begin_cut(since=0)

    while not cut.is_done:
        assert sum(piece.keys.size for piece in cut.copy_some(16)) <= 16


def test_erased_keys_are_forgotten_when_a_later_save_is_durable() -> None:
    """What a durable save holds is remembered no longer; what came after it is."""
    table = make_table()
    push(table, [1, 2, 3])
    history = History(table)
    table.erase(as_keys([1]))  # before the first durable save: nobody will ask
    first = history.begin_cut(since=0).epoch
    history.end_cut()
    history.forget_erased(first)
    table.erase(as_keys([2, 2, 9]))
    second = history.begin_cut(since=first).epoch
    history.end_cut()
    table.erase(as_keys([3]))

    assert erased_until(history, second) == {2}
    history.forget_erased(second)
    assert erased_until(history, 10**6) == {3}
