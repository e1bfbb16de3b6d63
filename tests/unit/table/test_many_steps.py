"""Every optimizer in every kind of row, for many random pushes: the oracle's numbers, and the same bits.

``kernel/test_optim`` has every form of each rule on rows alone; here the rows are those of tables: of one
part, of the two of ctr (embedx comes on the way), and of 16 bits; on one, two and three shards.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from pserver.arrays import Floats, Keys
from pserver.placement import shard_of
from pserver.spec import TableSpec
from pserver.table.optimizer import RULES, make_optimizer
from pserver.table.registry import spelled_out
from pserver.table.sparse import SparseTable
from tests.reference_ctr import CtrTable, Said
from tests.reference_half import DTYPES, neighbours

DIM, NUM_KEYS, SHARD_COUNTS = 3, 24, (1, 2, 3)
STEPS = [60, pytest.param(1000, marks=pytest.mark.slow)]
INITIALIZER = "normal:std=0.5"

Push = tuple[Keys, Floats]


def random_pushes(count: int) -> Iterator[Push]:
    """Return distinct keys and a gradient for each, as often as asked."""
    rng = np.random.default_rng(4)
    for _ in range(count):
        keys = rng.permutation(NUM_KEYS)[: rng.integers(1, 9)].astype(np.uint64)
        yield keys, rng.normal(size=(keys.size, DIM)).astype(np.float32)


def spec_of(name: str, **fields: str) -> TableSpec:
    """Return a table's spec; its rule has a rate at which 1,000 steps are no noise."""
    return spelled_out(
        TableSpec(
            name="t",
            dim=DIM,
            optimizer=f"{name}:lr=0.02",
            initializer=INITIALIZER,
            capacity_max=1000,
            **fields,  # type: ignore[arg-type]
        )
    )


def push(table: SparseTable, keys: Keys, grads: Floats) -> None:
    """Push, and count the push, also where no key is of this shard: as a round of a group does."""
    table.push(keys, table.check_push(keys, np.ascontiguousarray(grads).reshape(-1)))
    table.version += 1


def trained(spec: TableSpec, num_shards: int, count: int) -> list[SparseTable]:
    """Return the shards of a table after many pushes."""
    tables = [SparseTable(spec) for _ in range(num_shards)]
    for keys, grads in random_pushes(count):
        shards = shard_of(keys, num_shards)
        for shard, table in enumerate(tables):
            push(table, keys[shards == shard], grads[shards == shard])
    for table in tables:
        table.check()
    return tables


def floats_of(table: SparseTable, key: int) -> NDArray[np.float32]:
    """Return weights and state of a key that has a row, flat."""
    row = table.row(key)
    assert row is not None
    return np.concatenate([row.weights, *row.state.values()])


def bits_of(tables: list[SparseTable]) -> dict[int, bytes]:
    """Return every row of all shards to the bit, with its words."""
    bits = {}
    for table in tables:
        for key in range(NUM_KEYS):
            row = table.row(key)
            if row is not None:
                bits[key] = floats_of(table, key).tobytes() + repr(row.fields).encode()
    return bits


@pytest.mark.parametrize("count", STEPS)
@pytest.mark.parametrize("accessor", ["plain", "ctr:embedx_threshold=1"])
@pytest.mark.parametrize("name", RULES)
def test_rows_are_the_oracles_and_alike_on_all_shards(name: str, accessor: str, count: int) -> None:
    """Each float is what float64 arithmetic gives; two runs, and 1 to 3 shards, give the same bits."""
    spec = spec_of(name, accessor=accessor)
    slow = CtrTable(
        dim=DIM,
        optimizer=f"{name}:lr=0.02",
        initializer=INITIALIZER,
        accessor=accessor,
        admission="always",
    )
    for keys, grads in random_pushes(count):
        slow.push(keys.tolist(), grads, [Said()] * keys.size)
        slow.version += 1

    runs = [trained(spec, shards, count) for shards in (1, *SHARD_COUNTS)]

    assert runs[0][0].num_rows == len(slow.rows)
    for key, expected in slow.rows.items():
        state = expected.wide[slow.wide_rule.dim :]
        if expected.embedx is not None:
            state = np.concatenate([state, expected.embedx[DIM - 1 :]])
        wanted = np.concatenate([slow.read(key), state])
        np.testing.assert_allclose(floats_of(runs[0][0], key), wanted, rtol=5e-5, atol=5e-5)
    first, *others = (bits_of(tables) for tables in runs)
    assert others == [first] * len(others)


@pytest.mark.parametrize("count", STEPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RULES)
def test_rows_of_16_bits_are_the_rules_rounded_and_alike_on_all_shards(
    name: str, dtype: str, count: int
) -> None:
    """Each step gives state to the bit, and weights beside the exact ones; runs and shards agree."""
    spec = spec_of(name, row_dtype=dtype)
    table, rule = SparseTable(spec), make_optimizer(spec.optimizer, dim=DIM)
    for version, (keys, grads) in enumerate(random_pushes(count)):
        table.pull(keys, np.empty(keys.size * DIM, np.float32))
        exact = np.concatenate([floats_of(table, int(key)) for key in keys])
        flat = grads.reshape(-1).copy()
        flat.flags.writeable = False
        rule.apply(exact, np.arange(keys.size), flat, version=version)
        push(table, keys, grads)

        for key, wanted in zip(keys, exact.reshape(keys.size, -1), strict=True):
            got = floats_of(table, int(key))
            assert np.array_equal(got[DIM:], wanted[DIM:])
            pairs = zip(got[:DIM], wanted[:DIM], strict=True)
            assert all(float(weight) in neighbours(dtype, float(w)) for weight, w in pairs)

    runs = [bits_of(trained(spec, shards, count)) for shards in SHARD_COUNTS]
    assert runs == [bits_of([table])] * len(runs)
