"""A sparse table against the dict of ``tests.reference``: any calls in any order."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pserver.errors import NotFiniteError, ShapeError, TableFullError
from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable
from tests.reference import EDGE_KEYS, Table, key_at

DIM, CAPACITY = 3, 24
POOL = [*EDGE_KEYS, *(key_at(3, i % 4 | i << 5) for i in range(16)), *range(50, 62)]

OPTIMIZERS = (
    "sgd:lr=0.1",
    "adagrad:lr=0.1",
    "adagrad:lr=0.1,initial=0.5,state=row",
    "adagrad:lr=0.1,initial=3,accumulate=after",
    "adagrad:lr=0.1,initial=3,accumulate=after,state=row",
    "adam:lr=0.01",
)
INITIALIZERS = ("zeros", "uniform:low=-1,high=1", "normal:std=0.5", "truncated_normal:std=1")

keys_strategy = st.lists(st.sampled_from(POOL), max_size=12)
value_strategy = st.floats(-100, 100, width=32)


class TableAgainstDict(RuleBasedStateMachine):
    """Pull, peek, push, assign and erase do what the reference does; refusals change nothing."""

    @initialize(optimizer=st.sampled_from(OPTIMIZERS), initializer=st.sampled_from(INITIALIZERS))
    def begin(self, optimizer: str, initializer: str) -> None:
        spec = TableSpec(
            name="t",
            dim=DIM,
            optimizer=optimizer,
            initializer=initializer,
            seed=5,
            capacity_max=CAPACITY,
        )
        self.table = SparseTable(spec)
        self.slow = Table(
            name="t",
            dim=DIM,
            optimizer=optimizer,
            initializer=initializer,
            seed=5,
            capacity=CAPACITY,
        )

    def _values(self, data: st.DataObject, count: int) -> np.ndarray:
        values = data.draw(st.lists(value_strategy, min_size=count * DIM, max_size=count * DIM))
        return np.array(values, np.float32)

    @rule(keys=keys_strategy)
    def pull(self, keys: list[int]) -> None:
        array, out = np.array(keys, np.uint64), np.full(len(keys) * DIM, np.nan, np.float32)
        if not self.slow.has_room(keys):
            with pytest.raises(TableFullError, match=f"'t'.*capacity_max {CAPACITY}"):
                self.table.pull(array, out)
            assert np.isnan(out).all()
            return
        self.table.pull(array, out)
        self._same(out, self.slow.pull(keys))

    @rule(keys=keys_strategy)
    def peek(self, keys: list[int]) -> None:
        out = np.full(len(keys) * DIM, np.nan, np.float32)
        self.table.peek(np.array(keys, np.uint64), out)
        self._same(out, self.slow.peek(keys))

    @rule(keys=keys_strategy, data=st.data())
    def push(self, keys: list[int], data: st.DataObject) -> None:
        array, grads = np.array(keys, np.uint64), self._values(data, len(keys))
        if not self.slow.has_room(keys):
            with pytest.raises(TableFullError):
                self.table.check_push(array, grads)
            return
        self.table.check_push(array, grads)
        self.table.push(array, grads)
        self.slow.push(keys, grads.reshape(-1, DIM))

    @rule(keys=keys_strategy, data=st.data())
    def assign(self, keys: list[int], data: st.DataObject) -> None:
        array, weights = np.array(keys, np.uint64), self._values(data, len(keys))
        if not self.slow.has_room(keys):
            with pytest.raises(TableFullError):
                self.table.check_assign(array, weights)
            return
        self.table.check_assign(array, weights)
        self.table.assign(array, weights)
        self.slow.assign(keys, weights.reshape(-1, DIM))

    @rule(keys=keys_strategy)
    def erase(self, keys: list[int]) -> None:
        assert self.table.erase(np.array(keys, np.uint64)) == self.slow.erase(keys)

    @rule(keys=keys_strategy.filter(bool), data=st.data())
    def push_what_is_refused(self, keys: list[int], data: st.DataObject) -> None:
        grads = np.zeros(len(keys) * DIM, np.float32)
        grads[data.draw(st.integers(0, grads.size - 1))] = data.draw(
            st.sampled_from([np.nan, np.inf, -np.inf])
        )
        with pytest.raises(NotFiniteError):
            self.table.check_push(np.array(keys, np.uint64), grads)
        with pytest.raises(ShapeError):
            self.table.check_push(np.array(keys, np.uint64), grads[1:])

    @rule()
    def raise_the_epoch(self) -> None:
        self.table.epoch += 1
        self.slow.epoch += 1

    @invariant()
    def every_row_is_the_reference_row(self) -> None:
        table, slow = self.table, self.slow
        table.check()
        assert table.num_rows == len(slow.rows)
        assert table.version == 0
        keys = np.array(list(slow.rows), np.uint64)
        row_ids = np.empty(keys.size, np.int64)
        assert table._index.find(keys, row_ids) == 0
        slab = table._slab
        for row_id, expected in zip(row_ids.tolist(), slow.rows.values(), strict=True):
            row = np.concatenate([slab.weights_of(row_id), *slab.state_of(row_id).values()])
            self._same(row, expected)
        assert table._slab.epochs[row_ids].tolist() == list(slow.epochs.values())

    def _same(self, got: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_allclose(got, expected.reshape(got.shape), rtol=1e-4, atol=1e-4)


TestTableAgainstDict = TableAgainstDict.TestCase
