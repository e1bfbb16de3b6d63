"""Where each numeric case of other parameter servers' tests is run, or why it is none of ours.

``RULE_CASES`` of ``test_optimizer_peers`` are the steps of optimizers; ``RUN`` names the test of each
other case, which says the case's id in its docstring; ``APART`` are the rest, each with the reason.
The ids are those of the list that was gathered from the peers' repositories.
"""

import ast
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from pserver.errors import TableFullError
from pserver.spec import DenseSpec, TableSpec
from pserver.table import shrink
from pserver.table.dense import DenseTable
from pserver.table.index import Index
from pserver.table.sparse import SparseTable
from tests.unit.table.test_optimizer_peers import CASES as RULE_CASES

ROOT = Path(__file__).parents[3]
GATHERED = ROOT / "../shared/reference/peer_cases.json"

HERE = "test_peer_cases.py"
RUN = {
    "difacto-ftrl-20": ("test_optimizer_curve.py", "test_twenty_losses_are_those_of_difacto"),
    "edl-sparse-sgd": ("test_sparse.py", "test_elasticdl_cases_hold"),
    "edl-sgd-seq": ("test_sparse.py", "test_elasticdl_cases_hold"),
    "monolith-lr-poly": ("test_schedule.py", "test_the_numbers_are_those_of_monolith"),
    "paddle-score": ("test_ctr.py", "test_the_score_is_paddles"),
    "paddle-accessor-update": ("test_ctr.py", "test_a_push_onto_a_zero_row_is_paddles"),
    "paddle-shrink": ("test_shrink_ctr.py", "test_the_shrink_of_a_peers_test"),
    "monolith-evict-slot-ttl": ("test_shrink.py", "test_a_table_for_each_slot"),
    "deeprec-counter-filter": ("test_admission.py", "test_a_filter_of_3_trains"),
    "xdl-admission": ("test_admission.py", "test_a_threshold_of_2_admits"),
    "xdl-cbf": ("test_admission.py", "test_a_counter_of_a_sketch_stops_at_255"),
    "tfra-lfu-scores": ("test_eviction.py", "test_uses_are_those_of_a_peer"),
    "torchrec-lfu-lru": ("test_eviction.py", "test_uses_come_first_and_then_age"),
    "tfra-restrict-freq": (HERE, "test_the_keys_that_were_seen_twice_are_kept"),
    "monolith-save-expire": (HERE, "test_rows_of_yesterday_are_kept"),
    "monolith-dedup": (HERE, "test_gradients_of_repeated_keys_are_summed"),
    "monolith-threads": (HERE, "test_what_is_added_and_what_is_pushed"),
    "pslite-pushpull": (HERE, "test_what_is_added_fifty_times"),
    "paddle-geo": (HERE, "test_differences_of_two_trainers"),
    "paddle-dense-sgd": (HERE, "test_a_dense_vector_loses_the_gradients"),
    "paddle-rpc-dense": (HERE, "test_a_dense_vector_is_overwritten"),
    "paddle-rpc-sparse": (HERE, "test_rows_are_overwritten_and_then_stepped"),
    "tfra-remove": (HERE, "test_keys_that_were_removed"),
    "xdl-row-reuse": (HERE, "test_the_row_of_a_removed_key"),
    "torchrec-id-transform": (HERE, "test_a_table_of_four_rows"),
}

APART = {
    "deeprec-l2-evict": "rows that go by the norm of their weights: not offered; and its FTRL digits do "
    "not follow from the stated settings",
    "monolith-delay-compensated": "needs the weights that the trainer saw: not offered",
    "paddle-save-modes": "saves filtered by score: a version holds all rows that changed",
    "edl-sync-avg": "there sparse gradients are summed and dense ones averaged; here both have one "
    "divisor: tests/unit/server/test_merge.py",
    "edl-reshard": "keys lie by hash, not by remainder: tests/unit/checkpoint",
    "edl-keep-max": "how many versions are kept: tests/unit/checkpoint",
    "monolith-fixed-r8": "compression of messages: not offered",
    "xdl-range-partition": "ranges of ids: keys lie by hash, tests/unit/test_placement.py",
    "persia-prefix": "keys of a feature: tests/unit/trainer/dataset",
    "deeprec-tiers": "which rows are in memory: the operating system says, see storage",
    "tfra-accum": "adds only where a row was seen to be: not offered",
    "difacto-fm-loss": "a model's loss: no part of a table",
}

SPEC = TableSpec(name="t", dim=1, optimizer="sgd:lr=0.1", initializer="zeros", capacity_max=10**6)


def push(table: SparseTable, keys: Iterable[int], grads: Iterable[float] | None = None) -> None:
    """Push a gradient to each key, 1 unless said."""
    array = np.array(list(keys), np.uint64)
    floats = np.ones(array.size, np.float32) if grads is None else np.array(grads, np.float32)
    table.push(array, table.check_push(array, floats))


def add(table: SparseTable, keys: Iterable[int], deltas: Iterable[float]) -> None:
    """Add a difference to the weights of each key."""
    table.add(np.array(list(keys), np.uint64), np.array(list(deltas), np.float32))


def read(table: SparseTable, keys: Iterable[int]) -> list[float]:
    """Return what keys read as, and create nothing."""
    array = np.array(list(keys), np.uint64)
    out = np.empty(array.size * table.spec.dim, np.float32)
    table.peek(array, out)
    return out.tolist()


def alive(table: SparseTable) -> set[int]:
    """Return all keys that have a row."""
    return {int(key) for partition in range(1024) for key in table.entries(partition)[0]}


def day(table: SparseTable, number: int) -> None:
    """Let a day pass."""
    assert list(shrink.walk(table, number, shrink.Shrunk(shrink.edges_of(table)), dry=False)) == []


def function_of(case: str) -> ast.FunctionDef:
    """Return the test that runs a case."""
    file, name = RUN[case]
    tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith(name)]
    assert len(found) == 1, f"{case}: {file} must have one {name}..., got {len(found)}"
    return found[0]


@pytest.mark.parametrize("case", RUN)
def test_the_test_that_is_named_says_which_case_it_runs(case: str) -> None:
    """A case is not called run by a test that has gone, or that is about something else."""
    assert case in (ast.get_docstring(function_of(case)) or "")


@pytest.mark.skipif(not GATHERED.exists(), reason="the list lies outside the repository")
def test_every_case_of_the_list_is_run_or_has_its_reason() -> None:
    """Each id stands in exactly one place; optimizers' cases may be cut in parts, id-2 and so on."""
    gathered = {case["id"] for case in json.loads(GATHERED.read_text(encoding="utf-8"))["cases"]}
    of_rules = {case for case in gathered if case in RULE_CASES}
    of_rules |= {"monolith-adagrad-two-segments"}

    assert of_rules | set(RUN) | set(APART) == gathered
    assert len(of_rules) + len(RUN) + len(APART) == len(gathered)


def test_the_keys_that_were_seen_twice_are_kept() -> None:
    """tfra-restrict-freq: ids 0 to 5, then 4 to 8; of two rows that may stay, 4 and 5 do.

    Rows of the last command always stay, so one more key comes here, and goes.
    """
    table = SparseTable(dataclasses.replace(SPEC, evict="lfu:rows=3"))
    for keys in (range(6), range(4, 9), [99]):
        push(table, keys)

    assert alive(table) - {99} == {4, 5}


def test_rows_of_yesterday_are_kept_for_a_day() -> None:
    """monolith-save-expire: of rows of two days ago, yesterday and today, the last two stay."""
    table = SparseTable(dataclasses.replace(SPEC, ttl_days=1))
    for number in (8, 9, 10):
        push(table, [number])
        day(table, number)

    assert alive(table) == {9, 10}
    assert read(table, [8]) == [0.0]


def test_gradients_of_repeated_keys_are_summed() -> None:
    """monolith-dedup: -1 for each of [0, 1, 0, 1, 0], with lr 0.1."""
    table = SparseTable(SPEC)

    push(table, [0, 1, 0, 1, 0], [-1.0] * 5)

    assert read(table, [0, 1]) == pytest.approx([0.3, 0.2])


def test_what_is_added_and_what_is_pushed_both_count() -> None:
    """monolith-threads: id is added and -200 id pushed with lr 0.01, which is 3 id."""
    table, ids = SparseTable(dataclasses.replace(SPEC, optimizer="sgd:lr=0.01")), range(100)

    add(table, ids, [float(key) for key in ids])
    push(table, ids, [-200.0 * key for key in ids])

    assert read(table, ids) == pytest.approx([3.0 * key for key in ids])


def test_what_is_added_fifty_times_is_fifty_times_as_much() -> None:
    """pslite-pushpull: 50 times v, then 100 times v."""
    table, values = SparseTable(SPEC), [0.5 * key for key in range(100)]
    for times in (50, 100):
        for _ in range(50):
            add(table, range(100), values)
        assert read(table, range(100)) == [times * value for value in values]


def test_differences_of_two_trainers_add_up() -> None:
    """paddle-geo: 5 rows of 10 weights, both trainers add 0, 0.1, 0.2, ...; each weight is twice that."""
    table = SparseTable(dataclasses.replace(SPEC, dim=10))
    deltas = [0.1 * i for i in range(50)]
    for _ in range(2):
        add(table, range(5), deltas)

    assert read(table, range(5)) == pytest.approx([2 * delta for delta in deltas])


def dense(length: int) -> DenseTable:
    """Return a vector of zeros that loses its gradients."""
    table = DenseTable(DenseSpec(name="d", length=length, optimizer="sgd:lr=1"), size=length)
    write(table, np.zeros(length, np.float32))
    return table


def write(table: DenseTable, values: np.ndarray) -> None:
    """Overwrite a vector."""
    table.check_init(0, values, trainer=b"1" * 16, force=True, is_last=True)
    table.init(0, values, trainer=b"1" * 16)


def test_a_dense_vector_loses_the_gradients_of_both_trainers() -> None:
    """paddle-dense-sgd: 10.0, 10.1, ... and 11.0, 11.1, ... with lr 1 take 21.0, 21.2, ... away."""
    table, ramp = dense(10), np.arange(10, dtype=np.float32) / np.float32(10)
    for begin in (10, 11):
        table.push(0, np.float32(begin) + ramp)

    assert table.pull(0).tolist() == pytest.approx([-21.0 - 0.2 * i for i in range(10)])


def test_a_dense_vector_is_overwritten_and_then_stepped() -> None:
    """paddle-rpc-dense: 100 ones, then 0 to 99, then a gradient of ones with lr 1."""
    table = dense(100)
    write(table, np.ones(100, np.float32))
    assert table.pull(0).tolist() == [1.0] * 100

    write(table, np.arange(100, dtype=np.float32))
    table.push(0, np.ones(100, np.float32))

    assert table.pull(0).tolist() == [i - 1.0 for i in range(100)]


def test_rows_are_overwritten_and_then_stepped() -> None:
    """paddle-rpc-sparse: twice the first weights of 10 x 10, then less a gradient of 1 with lr 1."""
    drawn = dataclasses.replace(SPEC, initializer="uniform:low=-1,high=1")
    table = SparseTable(dataclasses.replace(drawn, dim=10, optimizer="sgd:lr=1"))
    keys, first = np.arange(10, dtype=np.uint64), np.empty(100, np.float32)
    table.pull(keys, first)

    table.assign(keys, 2 * first)
    assert read(table, range(10)) == (2 * first).tolist()
    table.push(keys, np.ones(100, np.float32))

    assert read(table, range(10)) == (2 * first - 1).tolist()


def test_keys_that_were_removed_read_as_others_that_are_not_there() -> None:
    """tfra-remove: of keys 0 to 3, 1 and 5 are removed; 0, 2 and 3 are left, 1 and 5 read as none."""
    table = SparseTable(dataclasses.replace(SPEC, unknown_reads="zeros"))
    keys = np.arange(4, dtype=np.uint64)
    table.assign(keys, np.array([5, 6, 7, 8], np.float32))

    assert table.erase(np.array([1, 5], np.uint64)) == 1

    assert table.num_rows == 3
    assert read(table, [0, 1, 5]) == [5.0, 0.0, 0.0]
    assert alive(table) == {0, 2, 3}


def rows_for(index: Index, keys: list[int]) -> list[int]:
    """Return the row id of each key, given anew where it has none."""
    array, row_ids = np.array(keys, np.uint64), np.empty(len(keys), np.int64)
    array.flags.writeable = False
    index.find_or_insert(array, row_ids, np.empty(array.size, np.int64))
    return row_ids.tolist()


def test_the_row_of_a_removed_key_is_the_next_ones() -> None:
    """xdl-row-reuse: A has row 0 and B 1; B goes; A still has 0, and C gets 1."""
    index = Index(8, np.empty(8, np.int64), table="t")
    assert rows_for(index, [7, 8]) == [0, 1]
    gone = np.array([8], np.uint64)
    gone.flags.writeable = False

    index.erase(gone)

    assert rows_for(index, [7, 9]) == [0, 1]


def test_a_table_of_four_rows_takes_new_keys_when_others_went() -> None:
    """torchrec-id-transform: ids are rows in the order they come; freed ones are given again.

    Asked for a fifth id, the peer serves the first four; a table refuses the request whole.
    """
    index = Index(16, np.empty(16, np.int64), table="t")
    assert rows_for(index, [100, 101, 100, 102, 101]) == [0, 1, 0, 2, 1]

    full = SparseTable(dataclasses.replace(SPEC, capacity_max=4))
    with pytest.raises(TableFullError):
        push(full, range(100, 105))
    assert full.num_rows == 0
    gone = np.array([100, 102], np.uint64)
    gone.flags.writeable = False
    index.erase(gone)

    given = rows_for(index, [101, 102, 103, 104])
    assert given[0] == 1
    assert sorted(given) == [0, 1, 2, 3]
