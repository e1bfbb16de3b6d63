"""What ``SparseTable.row`` promises: a copy of one row, part by part, and no change."""

import numpy as np
import pytest

from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable
from tests.reference import EDGE_KEYS


def table_of(optimizer: str, *, initializer: str = "zeros") -> SparseTable:
    return SparseTable(
        TableSpec(name="ads", dim=2, optimizer=optimizer, initializer=initializer, capacity_max=64)
    )


def push(table: SparseTable, key: int, *grads: float) -> None:
    table.push(np.array([key], np.uint64), np.array(grads, np.float32))
    table.version += 1


def test_a_key_without_a_row_has_none_and_gets_none() -> None:
    """Asking for a row makes none, for any key."""
    table = table_of("adam")
    push(table, 12345, 1.0, 1.0)
    before = (table.num_rows, table.num_bytes, table.version)

    assert [table.row(key) for key in EDGE_KEYS] == [None] * len(EDGE_KEYS)

    assert (table.num_rows, table.num_bytes, table.version) == before
    table.check()


@pytest.mark.parametrize("key", EDGE_KEYS)
def test_a_row_is_told_part_by_part(key: int) -> None:
    """Weights, then each part of the state by its name, are those of that key."""
    table = table_of("adam:lr=0.5,beta1=0.5,beta2=0.75")
    push(table, 12345, 9.0, 9.0)
    push(table, key, 1.0, -2.0)

    row = table.row(key)

    assert row is not None
    assert np.allclose(row.weights, [-0.5, 0.5])
    assert {name: values.tolist() for name, values in row.state.items()} == {
        "m": [0.5, -1.0],
        "v": [0.25, 1.0],
        "t": [1.0],
    }


def test_state_that_comes_before_others_is_told_apart() -> None:
    """A part of one float in front does not shift the parts behind it."""
    table = table_of("adagrad_decay:initial=0.25,decay_rate=0.5,decay_step=1")
    push(table, 7, 1.0, 2.0)

    row = table.row(7)

    assert row is not None
    assert row.state["decays so far"].tolist() == [1.0]
    assert row.state["G"].tolist() == [1.25, 4.25]


def test_a_row_without_state_has_no_parts() -> None:
    """Sgd keeps nothing beside the weights."""
    table = table_of("sgd:lr=1")
    push(table, 7, 1.0, 2.0)

    row = table.row(7)

    assert row is not None
    assert (row.weights.tolist(), dict(row.state)) == ([-1.0, -2.0], {})


def test_the_epoch_is_that_of_the_last_change() -> None:
    """A pull leaves a row's epoch alone; a push stamps the table's epoch on it."""
    table = table_of("sgd:lr=1")
    push(table, 7, 1.0, 2.0)
    table.epoch = 5
    table.pull(np.array([7], np.uint64), np.empty(2, np.float32))
    assert (row := table.row(7)) is not None
    assert row.epoch == 1

    push(table, 7, 1.0, 2.0)

    assert (row := table.row(7)) is not None
    assert row.epoch == 5


def test_what_is_told_is_a_copy() -> None:
    """A later push does not change what was told, and writing into it does not change the row."""
    table = table_of("momentum:lr=1")
    push(table, 7, 1.0, 2.0)
    row = table.row(7)
    assert row is not None
    row.weights[:] = 9.0

    push(table, 7, 1.0, 2.0)

    assert row.state["m"].tolist() == [1.0, 2.0]
    assert (now := table.row(7)) is not None
    assert now.weights.max() < 0.0
