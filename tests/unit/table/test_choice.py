"""Rows for serving, and what a durable save takes from them: against the rules, row by row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pserver.occurrences import Occurrences
from pserver.placement import NUM_PARTITIONS
from pserver.spec import TableSpec
from pserver.table.choice import Choice, reset_marks
from pserver.table.sparse import SparseTable

ACCESSOR = "ctr:nonclk_coeff=1,base_threshold=3,delta_threshold=2,delta_keep_days=1"
SPEC = TableSpec(name="t", dim=1, optimizer="sgd", accessor=ACCESSOR, capacity_max=100)
KEYS = np.arange(8, dtype=np.uint64)


def push(table: SparseTable, keys: list[int]) -> None:
    """Show some keys once each."""
    wanted = np.array(keys, np.uint64)
    counts = np.ones(wanted.size, np.uint32)
    table.push(wanted, np.ones(wanted.size, np.float32), Occurrences(counts))


def words(table: SparseTable) -> dict[int, dict[str, float]]:
    """Return what is kept of each key."""
    found = {}
    for key in KEYS.tolist():
        row = table.row(key)
        if row is not None:
            found[key] = {**row.fields, "epoch": row.epoch}
    return found


@given(
    pushed=st.lists(st.lists(st.sampled_from(range(8)), unique=True), max_size=6),
    later=st.lists(st.sampled_from(range(8)), unique=True),
    unseen=st.lists(st.sampled_from(range(8)), unique=True),
    choice=st.sampled_from(["base", "delta"]),
)
def test_marks_begin_anew_in_rows_that_a_save_chose_and_that_did_not_change_since(
    pushed: list[list[int]], later: list[int], unseen: list[int], choice: Choice
) -> None:
    """Every other row stays as it was, to its epoch; a row that changed here says so."""
    table = SparseTable(SPEC)
    for keys in pushed:
        push(table, keys)
    days = table.fields.view("unseen_days")
    for key in unseen:
        ids = table.find(np.array([key], np.uint64))
        days[ids[ids >= 0]] = 2
    saved = table.epoch
    table.epoch += 1
    push(table, later)
    before = words(table)

    reset_marks(table, choice, epoch=saved, partitions=(0, NUM_PARTITIONS))

    least = 2.0 if choice == "delta" else 0.0
    for row in before.values():
        is_chosen = row["show"] >= 3 and row["delta_score"] >= least and row["unseen_days"] <= 1
        if is_chosen and row["delta_score"] and row["epoch"] <= saved:
            row.update(delta_score=0.0, epoch=table.epoch)
    assert words(table) == before
