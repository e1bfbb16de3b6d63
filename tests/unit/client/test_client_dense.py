"""What a client promises of dense tables: one vector, however many shards hold it."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

import pserver
from pserver.placement import DENSE_PART, slice_of_shard
from pserver.server.servicer import Servicer
from pserver.table.optimizer import make_optimizer

LENGTHS = [0, 1, 2, 5, 1_000_003]


@pytest.fixture
def client() -> Iterator[pserver.Client]:
    """Return a client of two shards."""
    with pserver.embedded(2) as client:
        yield client


def stepped(optimizer: str, first: np.ndarray, grads: list[np.ndarray]) -> np.ndarray:
    """Return one vector after some gradients, by the rule alone."""
    rule = make_optimizer(optimizer, dim=first.size)
    row = np.full(first.size + rule.state_dim, rule.first_state[-1], np.float32)
    row[first.size :][: rule.first_state.size] = rule.first_state[: rule.state_dim]
    row[: first.size] = first
    for version, grad in enumerate(grads):
        given = grad.copy()
        given.flags.writeable = False
        rule.apply(row, np.zeros(1, np.int64), given, version=version)
    return row[: first.size]


def make(client: pserver.Client, length: int, optimizer: str = "sgd:lr=1") -> np.ndarray:
    """Make a table ``d`` with values 1, 2, 3, ... and return them."""
    client.create_dense(pserver.DenseSpec(name="d", length=length, optimizer=optimizer))
    values = np.arange(1, length + 1, dtype=np.float32)
    client.init_dense("d", values)
    return values


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.1", "adagrad", "adam", "sum", "summary"])
@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_shards_give_the_bits_of_one_vector(optimizer: str, num_shards: int, length: int) -> None:
    """After some pushes the pulled vector is that of the same rule on one row."""
    rng = np.random.default_rng(length)
    first, *grads = rng.normal(size=(4, length)).astype(np.float32)
    with pserver.embedded(num_shards) as client:
        spec = pserver.DenseSpec(name="d", length=length, optimizer=optimizer)
        assert client.create_dense(spec) == client.create_dense(spec)
        client.init_dense("d", first)
        assert np.array_equal(client.pull_dense("d").values, first)
        versions = [client.push_dense("d", grad) for grad in grads]
        pulled = client.pull_dense("d")

    assert versions == [1, 2, 3]
    assert pulled.versions == (3,) * num_shards
    assert np.array_equal(pulled.values, stepped(optimizer, first, grads))


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_b2_a_slice_travels_in_parts_when_it_is_over_a_message(extra: int) -> None:
    """Around the edge of a part, values come and go whole, and a push is one version."""
    length = 2 * DENSE_PART + extra
    with pserver.embedded(1) as client:
        values = make(client, length, "adam:step=table")
        grads = np.ones(length, np.float32)
        assert [client.push_dense("d", grads) for _ in range(2)] == [1, 2]
        pulled = client.pull_dense("d")
        again = client.pull_dense("d", known=pulled)

        assert np.array_equal(pulled.values, stepped("adam:step=table", values, [grads, grads]))
        assert again.values is pulled.values
        with pytest.raises(pserver.DenseInitError, match=r"epoch 1, version 2"):
            client.init_dense("d", values)
        client.reset_dense("d", values)
        assert np.array_equal(client.pull_dense("d", known=pulled).values, values)


def test_what_is_unchanged_does_not_travel(
    client: pserver.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull that knows the values gets a few bytes, and the very same array."""
    make(client, 100_000)
    sizes: list[int] = []
    answer = Servicer.call

    async def call(self: Servicer, method: str, message: bytes) -> bytes:
        reply = await answer(self, method, message)
        sizes.append(len(reply))
        return reply

    monkeypatch.setattr(Servicer, "call", call)
    first = client.pull_dense("d")
    again = client.pull_dense("d", known=first)

    assert (first.is_changed, again.is_changed) == (True, False)
    assert again.values is first.values
    assert min(sizes[:2]) >= 200_000
    assert max(sizes[2:]) < 20
    with pytest.raises(ValueError, match="read-only"):
        first.values[0] = 1.0

    client.push_dense("d", np.ones(100_000))
    new = client.pull_dense("d", known=again)
    assert new.is_changed
    assert new.versions == (1, 1)
    assert np.array_equal(new.values, first.values - 1)
    assert first.values[0] == 1.0


def test_a_table_is_refused_when_the_name_stands_for_another(client: pserver.Client) -> None:
    """Sparse and dense tables share their names; another length or rule is another table."""
    make(client, 3)
    client.create_table(pserver.TableSpec(name="s", dim=1))

    for create in (
        lambda: client.create_dense(pserver.DenseSpec(name="s", length=3)),
        lambda: client.create_table(pserver.TableSpec(name="d", dim=1)),
        lambda: client.create_dense(pserver.DenseSpec(name="d", length=4, optimizer="sgd:lr=1")),
        lambda: client.create_dense(pserver.DenseSpec(name="d", length=3, optimizer="adam")),
    ):
        with pytest.raises(pserver.SpecMismatchError):
            create()
    with pytest.raises(pserver.UnknownTableError, match="no dense table 'x'; valid: d"):
        client.pull_dense("x")
    with pytest.raises(pserver.ConfigError, match="would depend on the number of shards"):
        client.create_dense(pserver.DenseSpec(name="l", length=3, optimizer="lamb"))
    with pytest.raises(pserver.ConfigError, match=r"length must be an integer in \[0, 268435456\]"):
        pserver.DenseSpec(name="l", length=-1)


def test_nothing_is_sent_when_values_do_not_fit(client: pserver.Client) -> None:
    """Wrong shapes, NaN and handles of other tables are refused; no weight moves."""
    values = make(client, 3)
    known = client.pull_dense("d")
    client.create_dense(pserver.DenseSpec(name="e", length=3))

    with pytest.raises(pserver.ShapeError, match=r"grads must be \(3,\) float32, got \(4,\)"):
        client.push_dense("d", np.ones(4))
    with pytest.raises(pserver.NotFiniteError, match="push 'd': value 2 is nan"):
        client.push_dense("d", [1, 2, float("nan")])
    with pytest.raises(pserver.DenseInitError, match="no values yet"):
        client.push_dense("e", [1, 2, 3])
    with pytest.raises(pserver.DenseInitError, match="no values yet"):
        client.pull_dense("e")
    with pytest.raises(pserver.ShapeError, match="known must be of this table"):
        client.pull_dense("e", known=known)
    again = client.pull_dense("d", known=known)
    assert not again.is_changed
    assert np.array_equal(again.values, values)


def test_one_of_two_trainers_writes_the_first_values() -> None:
    """Who tries second is refused by shard 0 already, and writes nothing anywhere."""
    with pserver.embedded(3) as client:
        first = make(client, 10)
        with pytest.raises(pserver.DenseInitError, match="it has values already"):
            client.init_dense("d", -first)

        assert np.array_equal(client.pull_dense("d").values, first)


def test_only_slices_that_changed_are_read_again(client: pserver.Client) -> None:
    """A shard that another trainer pushed to alone is read; the other keeps its values."""
    make(client, 4)
    known = client.pull_dense("d")
    marks = ((known.marks[0][0], 0), known.marks[1])
    half = dataclasses.replace(known, values=np.full(4, 9, np.float32), marks=marks)

    pulled = client.pull_dense("d", known=half)

    assert pulled.is_changed
    assert pulled.values.tolist() == [1, 2, 9, 9]


def test_slices_cover_the_vector_once() -> None:
    """In order, with fewer floats than shards too."""
    for length in (0, 1, 2, 5, 10):
        for num_shards in (1, 2, 3, 7):
            slices = [slice_of_shard(length, shard, num_shards) for shard in range(num_shards)]
            assert [i for begin, end in slices for i in range(begin, end)] == list(range(length))
