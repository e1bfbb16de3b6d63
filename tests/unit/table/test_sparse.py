"""What ``table.sparse`` promises, case by case; ``test_sparse_machine`` mixes the calls."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pserver.errors import NotFiniteError, PserverError, ShapeError, TableFullError
from pserver.placement import shard_of
from pserver.spec import TableSpec
from pserver.table.optimizer import RULES
from pserver.table.sparse import SparseTable
from tests.reference import EDGE_KEYS, first_weights

SPEC = TableSpec(
    name="ads",
    dim=2,
    optimizer="adagrad:lr=0.1,initial=0.5",
    initializer="uniform:low=-1,high=1",
    seed=3,
    capacity_max=8,
)


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def pull(table: SparseTable, *keys: int) -> np.ndarray:
    out = np.full(len(keys) * table.spec.dim, np.nan, np.float32)
    table.pull(keys_of(*keys), out)
    return out.reshape(len(keys), -1)


def peek(table: SparseTable, *keys: int) -> np.ndarray:
    out = np.full(len(keys) * table.spec.dim, np.nan, np.float32)
    table.peek(keys_of(*keys), out)
    return out.reshape(len(keys), -1)


def push(table: SparseTable, keys: list[int], grads: list[float]) -> None:
    table.check_push(keys_of(*keys), floats(*grads))
    table.push(keys_of(*keys), floats(*grads))


def contents(table: SparseTable) -> tuple[object, ...]:
    """Return everything a table holds: rows and epochs by key, sizes, version, epoch."""
    rows = {}
    for partition in range(1024):
        for key in table.entries(partition)[0].tolist():
            row = table.row(key)
            assert row is not None
            rows[key] = (np.concatenate([row.weights, *row.state.values()]).tobytes(), row.epoch)
    return rows, table.num_rows, table.num_bytes, table.version, table.epoch


def test_a_key_reads_as_its_first_weights_when_it_is_new() -> None:
    """Pull gives every key, the edge ones too, the weights of (seed, table, key)."""
    table = SparseTable(dataclasses.replace(SPEC, capacity_max=64))
    expected = [
        first_weights(SPEC.initializer, name="ads", seed=3, key=key, dim=2) for key in EDGE_KEYS
    ]

    peeked, pulled = peek(table, *EDGE_KEYS), pull(table, *EDGE_KEYS)

    np.testing.assert_allclose(pulled, expected, rtol=1e-6)
    assert np.array_equal(peeked, pulled)
    assert np.unique(pulled, axis=0).shape == (len(EDGE_KEYS), 2)
    table.check()


@pytest.mark.parametrize("num_shards", [2, 3, 1024])
def test_first_weights_are_the_same_when_there_are_other_shards(num_shards: int) -> None:
    """A key begins alike however many shards share the table and whoever is asked first."""
    keys = np.random.default_rng(0).integers(0, 2**64, 50, np.uint64)
    spec = dataclasses.replace(SPEC, capacity_max=50)
    whole = pull(SparseTable(spec), *keys.tolist())

    for shard in np.unique(shard_of(keys, num_shards))[::-1]:
        own = np.flatnonzero(shard_of(keys, num_shards) == shard)
        assert np.array_equal(pull(SparseTable(spec), *keys[own].tolist()), whole[own])


def test_peek_changes_nothing_when_keys_are_new_or_known() -> None:
    """Rows, bytes, version and epochs are what they were."""
    table = SparseTable(SPEC)
    push(table, [1, 2], [1, 2, 3, 4])
    before = contents(table)

    weights = peek(table, 1, 99, 2, 99, 100)

    assert contents(table) == before
    assert np.array_equal(weights[[0, 2]], pull(table, 1, 2))
    assert np.array_equal(weights[1], weights[3])


def test_unknown_keys_read_as_zeros_when_the_spec_says_so() -> None:
    """A peek gives rows where there are some and zeros elsewhere, and changes nothing."""
    table = SparseTable(dataclasses.replace(SPEC, unknown_reads="zeros"))
    weights = pull(table, 1, 2)
    before = contents(table)

    out = np.full(5 * SPEC.dim, np.nan, np.float32)
    table.peek(np.array([9, 1, 8, 2, 9], np.uint64), out)

    read = out.reshape(5, SPEC.dim)
    assert contents(table) == before
    assert np.array_equal(read[[1, 3]], weights)
    assert not read[[0, 2, 4]].any()


def test_a_row_exists_when_it_was_pulled() -> None:
    """A pull that creates makes a row of first weights and first state, with the epoch."""
    table = SparseTable(SPEC)
    table.epoch = 5

    weights = pull(table, 7, 7)

    rows, num_rows, num_bytes, version, _ = contents(table)
    assert rows == {7: (weights[0].tobytes() + floats(0.5, 0.5).tobytes(), 5)}
    assert (num_rows, version) == (1, 0)
    assert num_bytes == table.row_bytes + 1024 * 8 * 16


@pytest.mark.parametrize("name", RULES)
def test_repeated_keys_are_summed_when_pushed(name: str) -> None:
    """A push of [7, 7, 7, 9] is to the bit the push of [7, 9] with summed gradients."""
    spec = dataclasses.replace(SPEC, dim=1, optimizer=name)
    repeated, summed = SparseTable(spec), SparseTable(spec)

    push(repeated, [7, 7, 7, 9], [1, 2, 3, 10])
    push(summed, [7, 9], [6, 10])

    assert contents(repeated) == contents(summed)


TORCH: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd:lr=0.1": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad:lr=0.1,initial=0.5": lambda p: torch.optim.Adagrad(
        p, lr=0.1, initial_accumulator_value=0.5, eps=1e-8
    ),
    "adam:lr=0.1": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}


@pytest.mark.parametrize("text", TORCH)
def test_repeated_keys_equal_torch_when_its_gradient_is_sparse(text: str) -> None:
    """Ids [7, 7, 7, 9] with gradients [1, 2, 3, 10], twice, as torch does on a sparse tensor."""
    table = SparseTable(dataclasses.replace(SPEC, dim=1, optimizer=text, initializer="zeros"))
    weights = torch.nn.Parameter(torch.zeros(10, 1))
    optimizer = TORCH[text]([weights])
    ids, grads = [7, 7, 7, 9], [1.0, 2.0, 3.0, 10.0]

    with torch.sparse.check_sparse_tensor_invariants(enable=True):
        for _ in range(2):
            push(table, ids, grads)
            weights.grad = torch.sparse_coo_tensor(
                torch.tensor([ids]), torch.tensor(grads)[:, None], (10, 1)
            )
            optimizer.step()

    expected = weights.detach()[[7, 9, 3]].numpy()
    np.testing.assert_allclose(peek(table, 7, 9, 3), expected, rtol=1e-6)


def test_elasticdl_cases_hold_when_gradients_repeat() -> None:
    """edl-sparse-sgd: rows 1 and 3 after ids [1, 3, 3]; edl-sgd-seq: its pushes of ones, all with lr 0.1."""
    table = SparseTable(dataclasses.replace(SPEC, optimizer="sgd:lr=0.1", initializer="zeros"))
    push(table, [1, 3, 3], [-1.0] * 6)
    np.testing.assert_allclose(peek(table, 1, 3), [[0.1, 0.1], [0.2, 0.2]], rtol=1e-6)
    assert table.num_rows == 2

    table.erase(keys_of(1, 3))
    push(table, [1, 3], [1.0] * 4)
    push(table, [1, 3, 3, 5], [1.0] * 8)
    np.testing.assert_allclose(peek(table, 1, 3, 5)[:, 0], [-0.2, -0.3, -0.1], rtol=1e-6)


def test_assign_writes_weights_and_keeps_state_when_a_row_was_trained() -> None:
    """Weights are as given, of repeats the last; the accumulator goes on from where it was."""
    table = SparseTable(dataclasses.replace(SPEC, optimizer="adagrad:lr=1,initial=0", dim=1))
    push(table, [1], [3.0])

    table.check_assign(keys_of(1, 2, 1), floats(5, 6, 7))
    table.assign(keys_of(1, 2, 1), floats(5, 6, 7))
    assert peek(table, 1, 2).tolist() == [[7], [6]]

    push(table, [1, 2], [4.0, 4.0])
    np.testing.assert_allclose(peek(table, 1, 2), [[7 - 4 / 5], [6 - 4 / 4]], rtol=1e-6)


def test_an_erased_key_begins_anew_when_it_comes_back() -> None:
    """It has first weights and fresh state, whatever its row or the reused row held."""
    table = SparseTable(SPEC)
    push(table, [1, 2], [1, 2, 3, 4])
    begun = SparseTable(SPEC)

    assert table.erase(keys_of(2, 1, 2, 77)) == 2
    assert table.num_rows == 0
    assert np.array_equal(peek(table, 1, 2), peek(begun, 1, 2))

    for each in (table, begun):
        push(each, [2, 1], [5, 6, 7, 8])
    assert contents(table)[0] == contents(begun)[0]
    assert table._index.num_rows_touched == 2
    table.check()


def test_epochs_are_stamped_when_rows_are_made_or_changed() -> None:
    """Pull stamps what it makes; push and assign what they change; peek and erase nothing."""
    table = SparseTable(SPEC)

    for epoch, call in enumerate(
        (
            lambda: pull(table, 1, 2, 3, 4),
            lambda: push(table, [2, 2], [1, 1, 1, 1]),
            lambda: table.assign(keys_of(3), floats(1, 1)),
            lambda: (pull(table, 1), peek(table, 2, 9), table.erase(keys_of(4))),
            lambda: pull(table, 5, 1),
        ),
        start=10,
    ):
        table.epoch = epoch
        call()

    rows = contents(table)[0]
    assert isinstance(rows, dict)
    assert {key: epoch for key, (_, epoch) in rows.items()} == {1: 10, 2: 11, 3: 12, 5: 14}
    table.check()


def test_the_version_is_the_servicers_when_pushes_are_applied() -> None:
    """A table applies parts of pushes and does not count them."""
    table = SparseTable(SPEC)

    push(table, [1], [1, 1])

    assert table.version == 0


FULL = (1, 2, 3, 4, 5, 6)
REFUSED: list[tuple[list[int], list[float], type[PserverError], str]] = [
    ([1, 9], [1, 2, 3], ShapeError, r"'ads': 2 keys of dim 2 need 4 float32, got 3"),
    ([1], [1, 2, 3, 4], ShapeError, r"'ads': 1 keys of dim 2 need 2 float32, got 4"),
    ([], [1], ShapeError, r"'ads': 0 keys of dim 2 need 0 float32, got 1"),
    ([1, 9], [1, 2, 3, np.nan], NotFiniteError, r"'ads': value 1 of key 9 is nan"),
    ([2**64 - 1, 9], [-np.inf, 2, 3, 4], NotFiniteError, rf"value 0 of key {2**64 - 1} is -inf"),
    ([1, 7, 8, 9], [0] * 8, TableFullError, r"'ads': 3 new rows needed, room for 2 of .*_max 8"),
]


@pytest.mark.parametrize("verb", ["push", "assign"])
@pytest.mark.parametrize(("keys", "values", "kind", "message"), REFUSED)
def test_a_push_or_assign_changes_nothing_when_it_is_refused(
    verb: str, keys: list[int], values: list[float], kind: type[PserverError], message: str
) -> None:
    """Wrong lengths, NaN, infinity and a full table are refused whole, with the facts."""
    table = SparseTable(SPEC)
    pull(table, *FULL)
    before = contents(table)
    check = table.check_push if verb == "push" else table.check_assign

    with pytest.raises(kind, match=message):
        check(keys_of(*keys), floats(*values))

    assert contents(table) == before
    table.check()


def test_a_pull_changes_nothing_when_the_table_is_full() -> None:
    """The error names table, need, room and capacity; known keys can still be read."""
    table = SparseTable(SPEC)
    pull(table, *FULL)
    before = contents(table)

    with pytest.raises(
        TableFullError,
        match=r"table 'ads': 3 new rows needed, room for 2 of capacity_max 8 on this shard; raise",
    ):
        pull(table, 7, 8, 9, 1)

    assert contents(table) == before
    assert pull(table, 7, 8, 7, 8, 7, *FULL).shape == (11, 2)
    with pytest.raises(TableFullError, match="1 new rows needed, room for 0"):
        pull(table, 9)
    table.erase(keys_of(1))
    assert pull(table, 9).shape == (1, 2)


def test_repeated_new_keys_need_one_row_each_when_room_is_scarce() -> None:
    """Room is counted in distinct new keys, not in occurrences."""
    table = SparseTable(dataclasses.replace(SPEC, capacity_max=1))

    push(table, [5] * 100, [0.01] * 200)

    assert table.num_rows == 1
    table.check()


def test_inputs_may_be_read_only_when_they_view_a_message() -> None:
    """Arrays that cannot be written to serve as well, and none is written to."""
    table = SparseTable(SPEC)
    keys, grads = keys_of(1, 2, 1), floats(1, 2, 3, 4, 5, 6)
    keys.flags.writeable = grads.flags.writeable = False

    table.check_push(keys, grads)
    table.push(keys, grads)
    table.check_assign(keys, grads)
    table.assign(keys, grads)

    assert peek(table, 1, 2).tolist() == [[5, 6], [3, 4]]
    assert table.erase(keys) == 2


def test_two_tables_are_equal_to_the_bit_when_their_calls_are() -> None:
    """The same calls in the same order leave the same bits, in any dim and for every rule."""
    rng = np.random.default_rng(0)
    batches = [
        (rng.integers(0, 50, 40, np.uint64), rng.normal(size=200).astype(np.float32))
        for _ in range(20)
    ]
    for name in RULES:
        spec = dataclasses.replace(SPEC, dim=5, optimizer=name, capacity_max=50)
        first, second = SparseTable(spec), SparseTable(spec)
        for table in (first, second):
            for keys, grads in batches:
                table.push(keys, grads)

        assert contents(first) == contents(second), name


_NO_COMPILER = """
import numpy as np
from numba.core.dispatcher import Dispatcher
from pserver import placement
from pserver.kernel import hashmap, initializer, optim, optim_shared, rows
from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable, warmup

def versions():
    rooms = (placement, hashmap, initializer, optim, optim_shared, rows)
    kernels = {v for room in rooms for v in vars(room).values() if isinstance(v, Dispatcher)}
    return {kernel.py_func.__name__: len(kernel.signatures) for kernel in kernels}

warmup()
table = SparseTable(TableSpec(name="t", dim=3, optimizer="adagrad", capacity_max=100))
before = versions()
keys = np.array([7, 7, 9], np.uint64)
block = np.ones(9, np.float32)
table.pull(keys, block)
table.check_push(keys, block)
table.push(keys, block)
table.assign(keys[1:], block[3:])
table.peek(keys, block)
table.erase(keys)
after = versions()
assert any(before.values())
print({name: count for name, count in after.items() if count != before[name]})
"""


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="there is no compiler to wait for"
)
def test_no_request_waits_for_the_compiler_when_the_table_is_made() -> None:
    """After the warm-up and the table's creation, no request makes numba compile anything."""
    done = subprocess.run(
        [sys.executable, "-c", _NO_COMPILER], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "{}"
