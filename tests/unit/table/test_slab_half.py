"""Tables whose weights are of 16 bits: every verb, every optimizer, and steps that add up."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import pserver
from pserver.errors import ConfigError, NotFiniteError
from pserver.spec import TableSpec
from pserver.table.dump import put_rows, shapes
from pserver.table.layout import memory_of
from pserver.table.optimizer import RULES, make_optimizer
from pserver.table.sparse import SparseTable
from pserver.table.storage import Storage
from tests.reference_half import DTYPES, nearest, neighbours

# Without the compiler, integers that wrap around in a shard's thread would warn.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

DIM = 5
NORMAL = "normal:std=1"

Words = NDArray[np.uint64]


def table_of(dtype: str, *, optimizer: str = "sgd:lr=1", **fields: object) -> SparseTable:
    given = {"dim": DIM, "initializer": NORMAL, "capacity_max": 100_000, **fields}
    return SparseTable(
        TableSpec(name="t", optimizer=optimizer, row_dtype=dtype, **given)  # type: ignore[arg-type]
    )


def pull(table: SparseTable, keys: Words) -> NDArray[np.float32]:
    out = np.empty(keys.size * table.spec.dim, np.float32)
    table.pull(keys, out)
    return out


def peek(table: SparseTable, keys: Words) -> NDArray[np.float32]:
    out = np.empty(keys.size * table.spec.dim, np.float32)
    table.peek(keys, out)
    return out


def rows_of(table: SparseTable, keys: Words) -> NDArray[np.float32]:
    """Return whole rows, weights and then state, as ``row`` tells them one by one."""
    found = [table.row(int(key)) for key in keys]
    return np.concatenate([np.concatenate([r.weights, *r.state.values()]) for r in found if r])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*RULES, "sgd:clip=0.5,weight_decay=0.01", "adam:step=table"])
def test_a_push_is_the_step_of_the_rule_rounded_by_chance(dtype: str, name: str) -> None:
    """State is that of the rule to the bit, and each weight one of the two around the rule's."""
    rng = np.random.default_rng(2)
    table, rule = table_of(dtype, optimizer=name), make_optimizer(name, dim=DIM)
    stride = DIM + rule.state_dim

    for version in range(5):
        # 5 keys come twice: their gradients are summed before the one step.
        keys = np.concatenate([rng.permutation(200)[:50], [0, 1, 2, 3, 4]]).astype(np.uint64)
        keys = np.concatenate([np.unique(keys), np.arange(5, dtype=np.uint64)])
        grads = rng.standard_normal(keys.size * DIM).astype(np.float32)
        distinct = keys[:-5]
        pull(table, distinct)
        expected = rows_of(table, distinct)
        summed = grads[: distinct.size * DIM].copy()
        summed[: 5 * DIM] += grads[distinct.size * DIM :]
        summed.flags.writeable = False
        rule.apply(expected, np.arange(distinct.size), summed, version=version)

        table.check_push(keys, grads)
        table.push(keys, grads)
        table.version += 1

        got = rows_of(table, distinct).reshape(-1, stride)
        wanted = expected.reshape(-1, stride)
        assert np.array_equal(got[:, DIM:], wanted[:, DIM:])
        for weight, exact in zip(got[:, :DIM].flat, wanted[:, :DIM].flat, strict=True):
            assert float(weight) in neighbours(dtype, float(exact))
        assert np.array_equal(peek(table, distinct), got[:, :DIM].reshape(-1))
        table.check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_more_than_one_block_are_all_stepped(dtype: str) -> None:
    """A push of many rows is done a block at a time, with the bits of as many small ones."""
    keys = np.arange(40_000, dtype=np.uint64)
    grads = np.random.default_rng(0).standard_normal(keys.size * DIM).astype(np.float32)
    whole, parts = table_of(dtype, optimizer="adagrad"), table_of(dtype, optimizer="adagrad")
    deltas = grads[::-1].copy()

    whole.push(keys, grads)
    whole.add(keys, deltas)
    for start in range(0, keys.size, 999):
        part, floats = slice(start, start + 999), slice(start * DIM, (start + 999) * DIM)
        parts.push(keys[part], grads[floats])
        parts.add(keys[part], deltas[floats])

    assert keys.size * 2 * DIM > 5 * (1 << 16)
    assert np.array_equal(pull(whole, keys), pull(parts, keys))
    whole.check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_steps_add_up_on_average(dtype: str) -> None:
    """A hundred steps of a hundredth of what 16 bits resolve move the mean weight by one."""
    step = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]  # between 1 and the next number
    table = table_of(dtype, initializer="constant:value=1")
    keys = np.arange(2000, dtype=np.uint64)
    grads = np.full(keys.size * DIM, -step / 100, np.float32)

    for _ in range(100):
        table.push(keys, grads)
        table.version += 1

    moved = pull(table, keys).astype(np.float64) - 1.0
    assert moved.mean() == pytest.approx(step, rel=0.05)
    assert nearest(dtype, 1.0 + step / 100) == 1.0  # rounded to the nearest, nothing would move


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_added_repeats_included_is_rounded_by_chance(dtype: str) -> None:
    """Differences of repeated keys are summed first; state stays."""
    table = table_of(dtype, optimizer="adagrad", initializer="zeros")
    deltas = np.repeat(np.array([0.1, 0.2, 1.0], np.float32), DIM)

    table.add(np.array([7, 7, 8], np.uint64), deltas)

    seven, eight = pull(table, np.array([7, 8], np.uint64)).reshape(2, DIM)
    total = float(np.float32(0.1) + np.float32(0.2))
    assert set(seven.tolist()) <= set(neighbours(dtype, total))
    assert eight.tolist() == [1.0] * DIM
    row = table.row(7)
    assert row is not None
    assert row.state["G"].tolist() == [0.0] * DIM


@pytest.mark.parametrize("dtype", DTYPES)
def test_first_weights_read_alike_before_and_after_there_is_a_row(dtype: str) -> None:
    """They are those of a float32 table, rounded to the nearest."""
    keys = np.arange(50, dtype=np.uint64)
    table = table_of(dtype, optimizer="adam")
    exact = pull(table_of("float32"), keys)

    before = peek(table, keys)

    assert table.num_rows == 0
    assert before.tolist() == [nearest(dtype, float(weight)) for weight in exact]
    assert np.array_equal(pull(table, keys), before)
    assert np.array_equal(peek(table, keys), before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_assigned_weights_are_rounded_to_the_nearest(dtype: str) -> None:
    """The last one of a repeated key counts, and state stays."""
    table = table_of(dtype, optimizer="adagrad")
    keys = np.array([3, 4], np.uint64)
    table.push(keys, np.ones(2 * DIM, np.float32))
    values = np.random.default_rng(0).standard_normal(3 * DIM).astype(np.float32)

    table.check_assign(np.array([3, 4, 3], np.uint64), values)
    table.assign(np.array([3, 4, 3], np.uint64), values)

    expected = [nearest(dtype, float(v)) for v in [*values[2 * DIM :], *values[DIM : 2 * DIM]]]
    assert pull(table, keys).tolist() == expected
    row = table.row(3)
    assert row is not None
    assert row.state["G"].tolist() == [1.0] * DIM


def test_weights_beyond_float16_are_refused_when_they_are_assigned() -> None:
    """The error names key, value and limit; bfloat16 takes them, and nothing was written."""
    keys, values = np.array([1], np.uint64), np.full(DIM, 65505.0, np.float32)
    table = table_of("float16")

    with pytest.raises(
        NotFiniteError, match=r"assign 't': value 0 of key 1 is 65505.*at most 65504"
    ):
        table.check_assign(keys, values)

    assert table.num_rows == 0
    table_of("bfloat16").check_assign(keys, values)
    table.check_assign(keys, np.full(DIM, 65504.0, np.float32))


def test_first_weights_beyond_float16_are_refused() -> None:
    """The table is not made, and the error says which dtype would do."""
    with pytest.raises(ConfigError, match=r"constant:value=70000.0: 70000 is beyond .* float16"):
        table_of("float16", initializer="constant:value=70000")
    table_of("bfloat16", initializer="constant:value=70000")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_stay_finite_when_steps_go_far(dtype: str) -> None:
    """A step beyond the largest number ends there, and the row can come back."""
    table = table_of(dtype, initializer="zeros")
    keys = np.array([1, 2], np.uint64)
    grads = np.repeat(np.array([1e12, -1e12], np.float32), DIM)

    table.push(keys, grads)

    weights = pull(table, keys).reshape(2, DIM)
    if dtype == "float16":
        assert (weights[:, 0].tolist()) == [-65504.0, 65504.0]
    table.check()
    table.push(keys, -grads)
    table.check()


def test_nan_of_a_row_is_found_by_check() -> None:
    """What a rule of one's own may make is kept as NaN and told, not hidden."""
    for dtype in DTYPES:
        table = table_of(dtype, optimizer="adagrad")
        pull(table, np.array([1], np.uint64))
        table._slab.assign(np.array([0]), np.full(DIM, np.nan, np.float32))
        with pytest.raises(AssertionError):
            table.check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_the_same_in_two_runs_and_on_a_file(dtype: str, tmp_path: Path) -> None:
    """So are those of freed rows that are used again."""
    seen = []
    for storage in ("memory", "memory", "file"):
        rng = np.random.default_rng(7)
        spec = TableSpec(
            name="t", dim=DIM, optimizer="adam", row_dtype=dtype, capacity_max=999, storage=storage
        )
        table = SparseTable(spec, storage=Storage(tmp_path))
        for _ in range(10):
            keys = rng.integers(0, 300, 100, np.uint64)
            table.push(keys, rng.standard_normal(keys.size * DIM).astype(np.float32))
            table.erase(rng.integers(0, 300, 20, np.uint64))
            table.version += 1
        table.check()
        seen.append(peek(table, np.arange(300, dtype=np.uint64)).tobytes())

    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_the_same_over_one_two_and_three_shards(dtype: str) -> None:
    """Rounding follows the key and the push, not where a row lies."""
    keys = np.arange(300, dtype=np.uint64)
    seen = []
    for shards in (1, 2, 3):
        rng = np.random.default_rng(3)
        with pserver.embedded(shards) as client:
            client.create_table(
                TableSpec(name="t", dim=3, optimizer="adagrad:lr=0.1", row_dtype=dtype)
            )
            for _ in range(5):
                client.push("t", keys, rng.standard_normal((keys.size, 3)).astype(np.float32))
            seen.append(client.pull("t", keys).tobytes())
            told = client.inspect("t", 7)
            assert np.array_equal(told.weights, client.pull("t", [7])[0])

    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_come_back_to_the_bit_when_they_were_saved(dtype: str) -> None:
    """Weights leave a table as their 16 bits, and state as float32."""
    table, other = table_of(dtype, optimizer="adagrad"), table_of(dtype, optimizer="adagrad")
    keys = np.arange(10, dtype=np.uint64)
    table.push(keys, np.random.default_rng(0).standard_normal(keys.size * DIM).astype(np.float32))
    saved_as = {"bfloat16": "uint16", "float16": "float16"}[dtype]
    assert shapes(table) == {
        "weights": (saved_as, DIM),
        "state.G": ("float32", DIM),
        "epochs": ("uint32", 1),
    }
    (weights, _), (state, _), (epochs, _) = memory_of(table.slab, table.fields)
    arrays = {
        "weights": weights[: 10 * DIM].reshape(10, DIM).view(saved_as),
        "state.G": state[: 10 * DIM].reshape(10, DIM),
        "epochs": epochs[:10],
    }

    put_rows(other, keys, arrays)

    assert np.array_equal(rows_of(other, keys), rows_of(table, keys))
    other.check()


def test_a_table_of_another_row_dtype_is_another_table() -> None:
    """A client that asks for it is refused, and told the difference."""
    spec = TableSpec(name="t", dim=1, row_dtype="bfloat16")
    with pserver.embedded(1) as client:
        client.create_table(spec)
        with pytest.raises(pserver.SpecMismatchError, match="row_dtype: bfloat16 against float16"):
            client.create_table(dataclasses.replace(spec, row_dtype="float16"))
