"""A local copy of rows against plain dicts: bases, progress, the order of use."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import pserver
from pserver.errors import NotFiniteError, TableFullError
from pserver.placement import parts_of_slice
from pserver.table.dense import DenseTable
from pserver.table.sparse import SparseTable

DIM, ROWS = 2, 6
POOL = [0, 1, 2, 3, 5, 8, 2**63, 2**64 - 1, 77, 78]
SPEC = pserver.TableSpec(name="t", dim=DIM, optimizer="sgd:lr=1")

some_keys = st.lists(st.sampled_from(POOL), unique=True, max_size=4)
value = st.integers(-50, 50).map(float)


def local(optimizer: str = "sgd:lr=1", rows_max: int = ROWS) -> pserver.LocalTable:
    """Return an empty local copy."""
    spec = pserver.TableSpec(name="t", dim=DIM, optimizer=optimizer)
    return pserver.LocalTable(spec, rows_max=rows_max)


def keys_of(*keys: int) -> np.ndarray:
    """Return keys as an array."""
    return np.array(keys, np.uint64)


class LocalAgainstDict(RuleBasedStateMachine):
    """Whole numbers stay exact in float32, so the dict and the copy agree to the bit."""

    @initialize()
    def begin(self) -> None:
        self.table = local()
        self.rows: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()

    def _use(self, keys: list[int]) -> None:
        for key in keys:
            self.rows.move_to_end(key)

    @rule(keys=some_keys, number=value, is_stale=st.booleans())
    def admit(self, keys: list[int], number: float, is_stale: bool) -> None:
        new = [key for key in keys if key not in self.rows]
        given_keys = keys_of(*keys)
        assert [keys[i] for i in self.table.missing(given_keys)] == new
        block = np.full(len(new) * DIM, number, np.float32)
        if len(self.rows) + len(new) > ROWS:
            with pytest.raises(TableFullError):
                self.table.admit(keys_of(*new), block, is_stale=is_stale)
            return
        self.table.admit(keys_of(*new), block, is_stale=is_stale)
        for key in new:
            self.rows[key] = (np.full(DIM, number), np.full(DIM, number))

    def _held(self, data: st.DataObject) -> list[int]:
        return data.draw(st.lists(st.sampled_from(list(self.rows)), unique=True))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        keys = self._held(data)
        weights = self.table.read(keys_of(*keys))
        assert np.array_equal(weights, np.array([self.rows[k][0] for k in keys]).reshape(-1, DIM))
        self._use(keys)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), number=value)
    def step(self, data: st.DataObject, number: float) -> None:
        keys = self._held(data)
        self.table.step(keys_of(*keys), np.full(len(keys) * DIM, number, np.float32))
        for key in keys:
            weights, base = self.rows[key]
            self.rows[key] = (weights - number, base)
        self._use(keys)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def take_and_drop(self, data: st.DataObject) -> None:
        keys = self._held(data)
        taken, deltas = self.table.take(keys_of(*keys))
        told = dict(zip(taken.tolist(), deltas.reshape(-1, DIM), strict=True))
        for key in keys:
            weights, base = self.rows.pop(key)
            assert np.array_equal(told.get(key, np.zeros(DIM)), weights - base)
        self.table.drop(keys_of(*keys))

    @rule()
    def take_all(self) -> None:
        taken, deltas = self.table.take_all()
        told = dict(zip(taken.tolist(), deltas.reshape(-1, DIM), strict=True))
        assert len(told) == taken.size
        for key, (weights, base) in self.rows.items():
            assert np.array_equal(told.pop(key, np.zeros(DIM)), weights - base)
            self.rows[key] = (weights, weights)
        assert not told
        assert self.table.take_all()[0].size == 0

    @rule(keys=some_keys, number=value)
    def settle(self, keys: list[int], number: float) -> None:
        self.table.settle(keys_of(*keys), np.full(len(keys) * DIM, number, np.float32))
        for key in set(keys) & set(self.rows):
            weights, base = self.rows[key]
            self.rows[key] = (weights + (number - base), np.full(DIM, number))

    @invariant()
    def agrees(self) -> None:
        self.table.check()
        assert self.table.all_keys().tolist() == list(self.rows)
        count = len(self.rows) // 2
        assert self.table.oldest(count).tolist() == list(self.rows)[:count]


TestLocalAgainstDict = LocalAgainstDict.TestCase


@pytest.mark.parametrize("optimizer", ["adagrad:lr=0.1", "adam:lr=0.1", "momentum:lr=0.1", "ftrl"])
def test_local_steps_are_those_of_a_table_on_a_server(optimizer: str) -> None:
    """With nobody else about, training here gives the bits that training there gives."""
    rng = np.random.default_rng(1)
    table, keys = local(optimizer), keys_of(3, 1, 2)
    server, there = (
        SparseTable(pserver.TableSpec(name="t", dim=DIM, optimizer=optimizer)),
        np.empty(3 * DIM, np.float32),
    )
    server.pull(keys, there)
    table.admit(keys, there, is_stale=False)
    for _ in range(5):
        grads = rng.normal(size=3 * DIM).astype(np.float32)
        server.push(keys, grads)
        server.version += 1
        table.step(keys, grads)
    server.peek(keys, there)

    assert np.array_equal(table.read(keys).reshape(-1), there)


def test_schedule_counts_the_steps_made_here() -> None:
    """The learning rate of a local table is that of its own steps (A8)."""
    table = local("sgd:lr=1,schedule=step,steps=10,gamma=0.1")
    table.admit(keys_of(1), np.zeros(DIM, np.float32), is_stale=False)
    for _ in range(20):
        table.step(keys_of(1), np.zeros(DIM, np.float32))

    table.step(keys_of(1), np.ones(DIM, np.float32))

    assert table.read(keys_of(1))[0] == pytest.approx([-0.01] * DIM)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3))
def test_a_row_without_progress_takes_the_servers_value_to_the_bit(values: list[float]) -> None:
    """However far apart the numbers are, what was not touched since agrees exactly afterwards."""
    first, step, server = (np.full(DIM, number, np.float32) for number in values)
    table = local()
    table.admit(keys_of(1), first, is_stale=False)
    table.step(keys_of(1), step)
    table.take_all()

    table.settle(keys_of(1), server)

    assert np.array_equal(table.read(keys_of(1))[0], server)


def test_stale_rows_are_named_once() -> None:
    """Rows that were admitted as stale are named by the next question, and by no later one."""
    table = local()
    table.admit(keys_of(1, 2), np.zeros(4, np.float32), is_stale=True)
    table.admit(keys_of(3), np.zeros(2, np.float32), is_stale=False)

    assert sorted(table.take_stale().tolist()) == [1, 2]
    assert table.take_stale().size == 0


def test_a_gradient_that_is_no_number_changes_nothing() -> None:
    """NaN is refused where it arises, and the row keeps no progress from it."""
    table = local()
    table.admit(keys_of(1, 2), np.zeros(4, np.float32), is_stale=False)

    with pytest.raises(NotFiniteError, match="push 't': value 1 of key 2 is nan"):
        table.step(keys_of(1, 2), np.array([1, 1, 1, np.nan], np.float32))

    assert table.take_all()[0].size == 0
    assert not table.read(keys_of(1, 2)).any()


def test_a_row_that_comes_back_begins_with_first_state() -> None:
    """Optimizer state leaves with the row: the next step is that of a new one."""
    table, one = local("adagrad:lr=1"), np.ones(DIM, np.float32)
    moves = []
    for _ in range(2):
        table.admit(keys_of(1), np.zeros(DIM, np.float32), is_stale=False)
        table.step(keys_of(1), one)
        moves.append(table.read(keys_of(1)).copy())
        table.take(keys_of(1))
        table.drop(keys_of(1))

    assert np.array_equal(moves[0], moves[1])


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.5", "adam", "adagrad"])
@pytest.mark.parametrize("length", [0, 3, (1 << 20) + 5])
def test_a_local_vector_is_trained_and_told_of_as_rows_are(optimizer: str, length: int) -> None:
    """Steps are those of the servers' table; progress is told once; newer values keep the rest."""
    rng = np.random.default_rng(length)
    first, grads, newer = rng.normal(size=(3, length)).astype(np.float32)
    spec = pserver.DenseSpec(name="d", length=length, optimizer=optimizer)
    dense = pserver.LocalDense(spec, first)
    server = DenseTable(spec, size=length)
    parts = list(enumerate(parts_of_slice(length)))
    for part, (begin, end) in parts:
        server.init(part, first[begin:end], trainer=b"")
    for part, (begin, end) in parts:
        server.push(part, grads[begin:end])
    stepped = np.concatenate([server.pull(part) for part, _ in parts])

    dense.step(grads)
    assert np.array_equal(dense.values(), stepped)
    assert np.array_equal(dense.take(), stepped - first)
    assert not dense.take().any()
    dense.settle(newer)
    assert np.array_equal(dense.values(), newer)
    dense.step(grads)
    moved = dense.values()
    dense.settle(first)
    assert np.array_equal(dense.values(), np.where(moved == newer, first, moved + (first - newer)))
