"""What goes from a table against the oracle: eviction, shrink, clear and erase among all other calls."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pserver.spec import TableSpec
from pserver.table import shrink
from pserver.table.eviction import ROOM
from pserver.table.sparse import SparseTable
from tests.reference import EDGE_KEYS, Table, key_at
from tests.reference_keeping import Keeper

DIM = 2
POOL = [*EDGE_KEYS, *(key_at(3, i % 4 | i << 5) for i in range(8)), *range(50, 62)]
RULES = ("none", "lru:rows=1", "lru:rows=9", "lfu:rows=9,half_life=1", "lfu:rows=9,half_life=3")
OPTIMIZERS = ("sgd:lr=0.1", "adagrad:lr=0.1,initial=0.5", "adam:lr=0.01")

keys_strategy = st.lists(st.sampled_from(POOL), max_size=8, unique=True)


class KeepingAgainstOracle(RuleBasedStateMachine):
    """Which rows go, and when, is what the oracle says; rows that come back begin anew."""

    @initialize(
        evict=st.sampled_from(RULES),
        ttl_days=st.integers(0, 3),
        optimizer=st.sampled_from(OPTIMIZERS),
    )
    def begin(self, evict: str, ttl_days: int, optimizer: str) -> None:
        spec = TableSpec(
            name="t",
            dim=DIM,
            optimizer=optimizer,
            initializer="uniform:low=-1,high=1",
            capacity_max=ROOM + 100,
            evict=evict,
            ttl_days=ttl_days,
        )
        self.table = SparseTable(spec)
        self.slow = Table(
            name="t",
            dim=DIM,
            optimizer=optimizer,
            initializer=spec.initializer,
            seed=0,
            capacity=spec.capacity_max,
        )
        self.keeper = Keeper(self.slow, evict=evict, ttl_days=ttl_days)

    @rule(keys=keys_strategy)
    def pull(self, keys: list[int]) -> None:
        out = np.full(len(keys) * DIM, np.nan, np.float32)
        self.table.pull(np.array(keys, np.uint64), out)

        def check() -> None:
            np.testing.assert_allclose(out, self.slow.pull(keys).reshape(-1), rtol=1e-4, atol=1e-4)

        self.keeper.command(keys, check, writes=False)

    @rule(keys=keys_strategy)
    def peek(self, keys: list[int]) -> None:
        before = self.table.keeping.numbers()
        self.table.peek(np.array(keys, np.uint64), np.empty(len(keys) * DIM, np.float32))
        assert self.table.keeping.numbers() == before

    @rule(keys=keys_strategy, seed=st.integers(0, 99))
    def push(self, keys: list[int], seed: int) -> None:
        grads = np.random.default_rng(seed).standard_normal((len(keys), DIM)).astype(np.float32)
        array = np.array(keys, np.uint64)
        self.table.push(array, self.table.check_push(array, grads.reshape(-1)))
        self.keeper.command(keys, lambda: self.slow.push(keys, grads), writes=True)

    @rule(keys=keys_strategy)
    def assign(self, keys: list[int]) -> None:
        weights = np.full((len(keys), DIM), 0.25, np.float32)
        self.table.assign(np.array(keys, np.uint64), weights.reshape(-1))
        self.keeper.command(keys, lambda: self.slow.assign(keys, weights), writes=True)

    @rule(keys=keys_strategy)
    def erase(self, keys: list[int]) -> None:
        self.table.erase(np.array(keys, np.uint64))
        self.keeper.erase(keys)

    @rule(later=st.integers(-1, 3), dry=st.booleans())
    def shrink(self, later: int, dry: bool) -> None:
        day = self.keeper.day + later
        if not self.table.spec.ttl_days or day < 1 or shrink.is_past(self.table, day):
            assert day <= self.keeper.day or not self.table.spec.ttl_days or day < 1
            return
        shrunk = shrink.Shrunk(shrink.DAY_EDGES)
        rows = self.table.num_rows
        numbers = self.table.keeping.numbers()
        assert list(shrink.walk(self.table, day, shrunk, dry=dry)) == []
        assert shrunk.rows == rows == shrunk.all_counts.sum()
        if dry:
            assert (self.table.num_rows, self.table.keeping.numbers()) == (rows, numbers)
        else:
            assert shrunk.gone == self.keeper.shrink(day) == shrunk.gone_counts.sum()

    @rule()
    def clear(self) -> None:
        for mapping in self.table.clear():
            for _ in mapping.leave():
                pass
        self.keeper.erase(list(self.slow.rows))

    @invariant()
    def rows_are_those_of_the_oracle(self) -> None:
        table, slow = self.table, self.slow
        table.check()
        assert table.num_rows == len(slow.rows)
        assert table.keeping.evicted == self.keeper.evicted
        for key, row in slow.rows.items():
            found = table.row(key)
            assert found is not None
            floats = np.concatenate([found.weights, *found.state.values()])
            np.testing.assert_allclose(floats, row, rtol=1e-4, atol=1e-4)
            for name, value in (
                ("stamp", self.keeper.written[key]),
                ("seen_day", self.keeper.seen[key]),
            ):
                assert found.fields.get(name, value) == value
            if "uses" in found.fields:
                assert found.fields["uses"] == self.keeper.uses[key][0]


TestKeepingAgainstOracle = KeepingAgainstOracle.TestCase
