"""Tables of every accessor, admission and eviction, on 1 to 3 shards, against ``reference_ctr``'s dict."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pserver.errors import ConfigError, TableFullError
from pserver.occurrences import Occurrences
from pserver.placement import shard_of
from pserver.spec import TableSpec
from pserver.table import shrink
from pserver.table.eviction import ROOM
from pserver.table.registry import spelled_out
from pserver.table.sparse import SparseTable
from tests.reference import EDGE_KEYS, key_at
from tests.reference_ctr import CtrTable, Said
from tests.reference_keeping import Keeper

pytestmark = pytest.mark.timeout(400)  # where kernels are not in the cache yet, it compiles many

DIM, CAPACITY = 3, 12
POOL = [*EDGE_KEYS, *(key_at(3, i % 4 | i << 5) for i in range(8)), *range(50, 62)]
OPTIMIZERS = (
    "sgd:lr=0.1",
    "adagrad:lr=0.1,show_scale=on",
    "adam:lr=0.01",
    "adam:step=table,lr=0.1",
)
INITIALIZERS = ("uniform:low=-1,high=1", "normal:std=0.5", "truncated_normal:std=1")
ACCESSORS = (
    "plain",
    "ctr:embedx_threshold=2",
    "ctr:embedx_threshold=0.5,nonclk_coeff=0.2,click_coeff=2,wide_first=zeros",
    "ctr:embedx_threshold=-1e9,show_click_decay_rate=0.7,delete_threshold=0.3",
    "ctr:embedx_threshold=1,delete_threshold=-1e9,delete_after_unseen_days=2",
)
ADMISSIONS = (
    "always",
    "count:n=3",
    "count:n=2,per=batch",
    "count:n=3,filter=sketch,counters=1e7",
    "probability:p=0.5",
    "probability:p=0.3,trial=push",
    "show_click:score=1.5",
)

keys_strategy = st.lists(st.sampled_from(POOL), max_size=8)
value = st.floats(-100, 100, width=32)
weight = st.one_of(st.just(0.0), value)


class AgainstDict(RuleBasedStateMachine):
    """Whatever is called, each shard's table holds what the dict holds, and ``check`` passes."""

    EVICTIONS: tuple[str, ...] = ("none",)

    @initialize(
        accessor=st.sampled_from(ACCESSORS),
        admission=st.sampled_from(ADMISSIONS),
        optimizer=st.sampled_from(OPTIMIZERS),
        embedx_optimizer=st.sampled_from(("", *OPTIMIZERS)),
        initializer=st.sampled_from(INITIALIZERS),
        num_shards=st.integers(1, 3),
        unknown_reads=st.sampled_from(("first", "zeros")),
        which=st.integers(0, 5),
    )
    def begin(
        self,
        accessor: str,
        admission: str,
        optimizer: str,
        embedx_optimizer: str,
        initializer: str,
        num_shards: int,
        unknown_reads: str,
        which: int,
    ) -> None:
        evict = self.EVICTIONS[which % len(self.EVICTIONS)]
        if accessor == "plain":
            embedx_optimizer = ""
            evict = evict.replace("score", "lru")
        rules: dict[str, Any] = {
            "dim": DIM,
            "optimizer": optimizer,
            "embedx_optimizer": embedx_optimizer,
            "initializer": initializer,
            "accessor": accessor,
            "admission": admission,
            "unknown_reads": unknown_reads,
            "name": "t",
            "seed": 5,
        }
        self.capacity = CAPACITY if evict == "none" else ROOM + 100
        spec = spelled_out(TableSpec(capacity_max=self.capacity, evict=evict, **rules))
        self.num_shards = num_shards
        self.fast = [SparseTable(spec) for _ in range(num_shards)]
        self.slow = [CtrTable(capacity=self.capacity, **rules) for _ in range(num_shards)]
        self.keepers = [Keeper(slow, evict=evict) for slow in self.slow]
        self.is_sketch = "sketch" in admission

    def split(self, keys: list[int]) -> list[np.ndarray]:
        """Return the positions of the keys of each shard."""
        shards = shard_of(np.array(keys, np.uint64), self.num_shards)
        return [np.flatnonzero(shards == shard) for shard in range(self.num_shards)]

    def values(self, data: st.DataObject, count: int, of: st.SearchStrategy = value) -> np.ndarray:
        numbers = data.draw(st.lists(of, min_size=count * DIM, max_size=count * DIM))
        return np.array(numbers, np.float32).reshape(count, DIM)

    def fits(self, shard: int, new: int) -> bool:
        return len(self.slow[shard].rows) + new <= self.capacity

    @rule(keys=keys_strategy, creates=st.booleans())
    def pull_or_peek(self, keys: list[int], creates: bool) -> None:
        for shard, where in enumerate(self.split(keys)):
            fast, slow, mine = self.fast[shard], self.slow[shard], [keys[i] for i in where]
            array, out = np.array(mine, np.uint64), np.full(where.size * DIM, np.nan, np.float32)
            if not creates:
                fast.peek(array, out)
                expected = slow.peek(mine)
            elif slow.admission == "always" and not self.fits(shard, len({*mine} - {*slow.rows})):
                with pytest.raises(TableFullError):
                    fast.check_pull(array)
                continue
            else:
                fast.check_pull(array)
                fast.pull(array, out)
                work = functools.partial(slow.pull, mine)
                expected = self.keepers[shard].command(mine, work, writes=False)
            same(out, expected)

    @rule(keys=keys_strategy, data=st.data(), says=st.sampled_from(("", "counts", "shows", "all")))
    def push(self, keys: list[int], data: st.DataObject, says: str) -> None:
        grads = self.values(data, len(keys))
        numbers = st.integers(1, 4)
        said = [
            Said(
                count=data.draw(numbers) if says in ("counts", "all") else 1,
                show=data.draw(numbers) * 0.5 if says in ("shows", "all") else None,
                click=data.draw(st.integers(0, 2)) if says in ("shows", "all") else 0.0,
                slot=data.draw(numbers) if says == "all" else None,
            )
            for _ in keys
        ]
        for shard, where in enumerate(self.split(keys)):
            fast, slow = self.fast[shard], self.slow[shard]
            mine, told = [keys[i] for i in where], [said[i] for i in where]
            array, block = np.array(mine, np.uint64), grads[where]
            given_said = occurrences(told, says)
            if not self.fits(shard, slow.needed(mine, told)) or (
                len(slow.counted) + len(slow.shown) + slow.waiting(mine, told) > self.capacity
                and not self.is_sketch
            ):
                with pytest.raises(TableFullError):
                    fast.check_push(array, block.reshape(-1), given_said)
                continue
            fast.check_push(array, block.reshape(-1), given_said)
            fast.push(array, block.reshape(-1), given_said)
            self.keepers[shard].command(
                mine,
                functools.partial(slow.push, mine, block, told),
                writes=True,
            )
            if mine:
                fast.version += 1
                slow.version += 1

    @rule(keys=keys_strategy, data=st.data(), adds=st.booleans())
    def assign_or_add(self, keys: list[int], data: st.DataObject, adds: bool) -> None:
        weights = self.values(data, len(keys), weight)
        for shard, where in enumerate(self.split(keys)):
            fast, slow, mine = self.fast[shard], self.slow[shard], [keys[i] for i in where]
            array, block = np.array(mine, np.uint64), weights[where]
            if not self.fits(shard, len({*mine} - {*slow.rows})):
                with pytest.raises(TableFullError):
                    fast.check_assign(array, block.reshape(-1))
                continue
            fast.check_assign(array, block.reshape(-1))
            if adds:
                fast.add(array, block.reshape(-1))
            else:
                fast.assign(array, block.reshape(-1))
            work = functools.partial(slow.add if adds else slow.assign, mine, block)
            self.keepers[shard].command(mine, work, writes=True)
            if not self.is_sketch:
                for key in mine:
                    slow.counted.pop(key, None)
                    slow.shown.pop(key, None)

    @rule(keys=keys_strategy)
    def erase(self, keys: list[int]) -> None:
        for shard, where in enumerate(self.split(keys)):
            mine = [keys[i] for i in where]
            before = len(self.slow[shard].rows)
            erased = self.fast[shard].erase(np.array(mine, np.uint64))
            self.keepers[shard].erase(mine)
            assert erased == before - len(self.slow[shard].rows)

    @rule(gap=st.integers(1, 3), dry=st.booleans())
    def shrink(self, gap: int, dry: bool) -> None:
        for fast, slow, keeper in zip(self.fast, self.slow, self.keepers, strict=True):
            if not slow.is_ctr:
                with pytest.raises(ConfigError):
                    shrink.check_shrinkable(fast)
                continue
            day = fast.keeping.day + gap
            shrunk = shrink.Shrunk(shrink.edges_of(fast))
            used, rows = fast.keeping.live_bytes, fast.num_rows
            for _ in shrink.walk(fast, day, shrunk, dry=dry):
                pass
            gone = slow.shrink(gap if day > gap else 1, dry=dry)
            if not dry:
                keeper.erase(gone)
            assert (shrunk.rows, shrunk.gone) == (rows, len(gone))
            assert fast.keeping.live_bytes == used - (0 if dry else shrunk.gone_bytes)
            assert dry or shrink.is_past(fast, day)

    @rule()
    def clear(self) -> None:
        for fast, slow, keeper in zip(self.fast, self.slow, self.keepers, strict=True):
            for mapping in fast.clear():
                assert mapping.array.size
            keeper.erase(list(slow.rows))
            slow.clear()

    @rule()
    def raise_the_epoch(self) -> None:
        for fast, slow in zip(self.fast, self.slow, strict=True):
            fast.epoch += 1
            slow.epoch += 1

    @invariant()
    def every_row_is_that_of_the_dict(self) -> None:
        for fast, slow, keeper in zip(self.fast, self.slow, self.keepers, strict=True):
            fast.check()
            assert fast.num_rows == len(slow.rows)
            assert fast.keeping.evicted == keeper.evicted
            for key, expected in slow.rows.items():
                row = fast.row(key)
                assert row is not None
                same(row.weights, slow.read(key))
                states = [expected.wide[slow.wide_rule.dim :]]
                if expected.embedx is not None:
                    states.append(expected.embedx[DIM - 1 :])
                same(np.concatenate([np.empty(0), *row.state.values()]), np.concatenate(states))
                ages = {"stamp": keeper.written, "uses": {k: u[0] for k, u in keeper.uses.items()}}
                words = {name: known[key] for name, known in ages.items() if name in row.fields}
                assert row.fields == pytest.approx({**expected.words, **words}, rel=1e-6)
                assert row.epoch == expected.epoch
                if slow.is_ctr:
                    assert row.has_embedx == (expected.embedx is not None)
                    score = slow.score(expected.words["show"], expected.words["click"])
                    assert row.score == pytest.approx(score, rel=1e-6)
            if fast.gate is not None and not self.is_sketch:
                chosen = fast.gate.filter
                counted: dict[int, dict[str, float]] = {
                    **{key: {"count": n} for key, n in slow.counted.items()},
                    **{k: {"show": s, "click": c} for k, (s, c) in slow.shown.items()},
                }
                for key in POOL:
                    assert chosen.record(key) == counted.get(key, {})


def occurrences(said: list[Said], says: str) -> Occurrences:
    """Return what is said of keys as arrays, those that are said."""
    counts = np.array([one.count for one in said], np.uint32)
    shows = np.array([one.show or 0.0 for one in said], np.float32)
    clicks = np.array([one.click for one in said], np.float32)
    slots = np.array([one.slot or 0 for one in said], np.uint32)
    return {
        "": Occurrences(),
        "counts": Occurrences(counts=counts),
        "shows": Occurrences(shows=shows, clicks=clicks),
        "all": Occurrences(counts, shows, clicks, slots),
    }[says]


def same(got: np.ndarray, expected: Sequence[object] | np.ndarray) -> None:
    flat = np.array(expected, np.float64).reshape(got.shape)
    np.testing.assert_allclose(got, flat, rtol=1e-4, atol=1e-4)


class EvictingAgainstDict(AgainstDict):
    """The same where rows fall out: the lowest go after each command, with embedx and all."""

    EVICTIONS = ("score:rows=2", "lru:rows=2", "lfu:rows=2,half_life=3")


TestAgainstDict = AgainstDict.TestCase
TestAgainstDict.settings = settings(stateful_step_count=12)
TestEvictingAgainstDict = EvictingAgainstDict.TestCase
TestEvictingAgainstDict.settings = settings(stateful_step_count=12)
