"""What ``pserver.client.client`` promises on a real cluster inside this process: its verbs."""

import concurrent.futures
import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

import pserver
from pserver.client.gradients import Gradients
from tests.reference import EDGE_KEYS

WAIT_S = 20.0


@pytest.fixture(params=[1, 2, 3])
def client(request: pytest.FixtureRequest) -> Iterator[pserver.Client]:
    """Return a client of 1, 2 and 3 shards, with a table of two floats that sgd moves by 1."""
    with pserver.embedded(request.param) as client:
        client.create_table(
            pserver.TableSpec(name="ads", dim=2, optimizer="sgd:lr=1", initializer="zeros")
        )
        yield client


@pytest.fixture
def two_shards() -> Iterator[pserver.Client]:
    """Return a client of two shards, without tables."""
    with pserver.embedded(2) as client:
        yield client


def gradients(keys: list[int], grads: NDArray[np.floating]) -> Gradients:
    """Return what ``start_push`` takes."""
    found = np.array(keys, np.uint64)
    return found, grads.astype(np.float32).reshape(-1), np.ones(found.size, np.uint32)


def num_rows(client: pserver.Client, table: str = "ads") -> int:
    """Return the rows of a table over all shards."""
    return sum(t.rows for s in client.stats() for t in s.tables if t.table == table)


def test_pull_gives_a_row_for_each_occurrence(client: pserver.Client) -> None:
    """A pull returns (N, dim) float32 in the order asked for, repeats included, and makes rows."""
    client.assign("ads", [5, 6], [[5.0, 0.5], [6.0, 0.6]])

    weights = client.pull("ads", [6, 5, 6, 9])

    assert weights.dtype == np.float32
    assert np.array_equal(weights, np.array([[6, 0.6], [5, 0.5], [6, 0.6], [0, 0]], np.float32))
    assert num_rows(client) == 3


def test_c2_peek_changes_nothing(client: pserver.Client) -> None:
    """A peek of a million unseen keys reads first weights and creates no row (C2)."""
    client.assign("ads", np.arange(1000), np.ones((1000, 2)))
    before = [t.SerializeToString() for s in client.stats() for t in s.tables]

    weights = client.peek("ads", np.arange(1_000_000))

    assert np.array_equal(weights[:1000], np.ones((1000, 2)))
    assert not weights[1000:].any()
    after = [t for s in client.stats() for t in s.tables]
    for table in after:
        table.keys_pulled = 0  # which is all that a peek leaves
    assert [t.SerializeToString() for t in after] == before


def test_a4_peek_reads_the_weights_that_a_pull_would_give(two_shards: pserver.Client) -> None:
    """What a peek reads of an unseen key is what a later pull makes, every time (A4)."""
    two_shards.create_table(pserver.TableSpec(name="ads", dim=8))
    keys = np.arange(500)

    peeked = two_shards.peek("ads", keys)

    assert np.array_equal(two_shards.peek("ads", keys), peeked)
    assert np.array_equal(two_shards.pull("ads", keys), peeked)
    assert np.array_equal(two_shards.pull("ads", keys[::-1])[::-1], peeked)
    assert np.abs(peeked).min() > 0.0


def test_a5_every_key_is_a_key_of_its_own(client: pserver.Client) -> None:
    """0, -1, -2 and the borders of every width are different rows that keep their values (A5)."""
    keys = np.array(EDGE_KEYS, np.uint64)
    weights = np.arange(2 * keys.size, dtype=np.float32).reshape(-1, 2)

    client.assign("ads", keys, weights)
    client.push("ads", keys, np.full((keys.size, 2), -0.5))

    assert num_rows(client) == keys.size
    assert np.array_equal(client.pull("ads", keys), weights + 0.5)
    assert np.array_equal(client.pull("ads", keys.view(np.int64)), weights + 0.5)
    assert num_rows(client) == keys.size


def test_push_returns_once_it_is_applied(client: pserver.Client) -> None:
    """A push has moved the weights when it returns, and tells the table's lowest version."""
    keys = np.arange(64)  # some on each shard

    versions = [client.push("ads", keys, np.ones((64, 2))) for _ in range(3)]

    assert versions == [1, 2, 3]
    assert np.array_equal(client.peek("ads", keys), np.full((64, 2), -3.0))


def test_a14_zero_gradients_create_rows(client: pserver.Client) -> None:
    """A gradient of exactly zero is a push like any other (A14)."""
    client.push("ads", [5], [[0.0, 0.0]])

    assert num_rows(client) == 1
    assert sum(t.keys_pushed for s in client.stats() for t in s.tables) == 1


def test_assign_writes_weights_and_keeps_state(two_shards: pserver.Client) -> None:
    """An assign replaces weights only: adagrad's accumulator goes on from where it was."""
    two_shards.create_table(
        pserver.TableSpec(name="t", dim=1, optimizer="adagrad:lr=1,eps=0,initial=9")
    )

    two_shards.push("t", [1], [[4.0]])  # G = 25
    two_shards.assign("t", [1], [[2.0]])
    two_shards.push("t", [1], [[12.0]])  # G = 169

    assert two_shards.pull("t", [1]).item() == pytest.approx(2.0 - 12.0 / 13.0)


def test_counts_are_summed_in_the_stats(client: pserver.Client) -> None:
    """Occurrences are the batch's own, or what the caller says each entry stands for."""
    client.push("ads", [1, 1, 2], np.zeros((3, 2)))
    client.push("ads", [1, 1, 2], np.zeros((3, 2)), counts=[10, 20, 30])

    tables = [table for stats in client.stats() for table in stats.tables]
    assert sum(table.occurrences_pushed for table in tables) == 63
    assert sum(table.keys_pushed for table in tables) == 4


def test_start_push_is_applied_in_order_when_it_is_flushed(client: pserver.Client) -> None:
    """Pushes that nobody waits for are all applied after ``flush``, and the caller's arrays free."""
    grads = np.ones((2, 2), np.float32)
    for _ in range(20):
        client.start_push({"ads": gradients([1, 2], grads)})
        grads += 1.0  # copied already

    client.flush()

    assert np.array_equal(client.peek("ads", [1, 2]), np.full((2, 2), -210.0))
    client.flush()  # of nothing


def test_several_tables_travel_together(two_shards: pserver.Client) -> None:
    """One pull or push reads and writes tables of different widths, each with its own keys."""
    for name, dim in (("a", 1), ("b", 3), ("c", 2)):
        spec = pserver.TableSpec(name=name, dim=dim, optimizer="sgd:lr=1", initializer="zeros")
        two_shards.create_table(spec)
    keys = {"a": [1, 2, 3], "b": [2], "c": []}

    two_shards.start_push(
        {
            "a": gradients(keys["a"], np.array([[1], [2], [3]], np.float32)),
            "b": gradients(keys["b"], np.array([[4, 5, 6]], np.float32)),
            "c": gradients(keys["c"], np.empty((0, 2))),
        }
    ).result()
    pending = two_shards.start_pull({name: np.array(k, np.uint64) for name, k in keys.items()})
    a, b, c = pending.result()

    assert pending.is_done
    assert a.tolist() == [[-1], [-2], [-3]]
    assert b.tolist() == [[-4, -5, -6]]
    assert c.shape == (0, 2)


def test_f4_a_step_is_one_pull_and_one_push_to_a_shard_whatever_the_tables(
    two_shards: pserver.Client,
) -> None:
    """Ten steps over five tables: each shard has answered ten pulls, ten pushes, and nothing else beside."""
    names = [f"t{i}" for i in range(5)]
    for name in names:
        two_shards.create_table(pserver.TableSpec(name=name, dim=1, optimizer="sgd:lr=1"))
    before = calls(two_shards)

    for _ in range(10):
        two_shards.start_pull({name: np.arange(100, dtype=np.uint64) for name in names}).result()
        grads = gradients(list(range(100)), np.ones((100, 1), np.float32))
        two_shards.start_push(dict.fromkeys(names, grads)).result()

    for then, now in zip(before, calls(two_shards), strict=True):
        assert now - then == {"Pull": 10, "Push": 10, "Stats": 1}


def calls(client: pserver.Client) -> list[Counter[str]]:
    """Return how often each shard was called, by method."""
    return [Counter({m.method: m.calls for m in shard.methods}) for shard in client.stats()]


def test_no_keys_are_fine(client: pserver.Client) -> None:
    """An empty batch, and no tables at all, give empty answers and change nothing."""
    none = np.empty(0, np.uint64)

    assert client.pull("ads", []).shape == (0, 2)
    assert client.peek("ads", []).shape == (0, 2)
    assert client.push("ads", [], np.empty((0, 2))) == 0
    assert client.assign("ads", [], np.empty((0, 2))) == 0
    assert client.start_pull({"ads": none}).result()[0].shape == (0, 2)
    assert client.start_pull({}).result() == []
    assert client.start_push({}).result() == 0
    assert client.start_push({"ads": gradients([], np.empty(0))}).result() == 0
    client.flush()
    assert num_rows(client) == 0
    assert all(table.version == 0 for stats in client.stats() for table in stats.tables)


def test_spec_is_spelled_out(two_shards: pserver.Client) -> None:
    """A table's spec comes back with every option; another client finds it on the servers."""
    spec = two_shards.create_table(pserver.TableSpec(name="ads", dim=4, optimizer="sgd", seed=9))

    assert (spec.optimizer, spec.seed) == ("sgd:lr=0.05", 9)
    assert two_shards.create_table(spec) == spec == two_shards.spec("ads")
    two_shards._tables.forget()
    assert two_shards.spec("ads") == spec


def test_threads_share_a_client(client: pserver.Client) -> None:
    """Eight threads that push, pull and flush through one client lose nothing."""
    keys = np.arange(50)
    start = threading.Barrier(8)

    def train(_: int) -> None:
        start.wait(WAIT_S)
        for _ in range(10):
            client.start_push({"ads": gradients(keys.tolist(), np.ones((50, 2)))})
            client.pull("ads", keys)
            client.push("ads", keys, np.ones((50, 2)))
            client.flush()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(train, range(8)))

    assert np.array_equal(client.peek("ads", keys), np.full((50, 2), -160.0))
    assert all(s.pushes_applied == 160 for s in client.stats())


def test_client_tells_its_shards_and_queues(two_shards: pserver.Client) -> None:
    """A client says how many shards it has, who they are, and that its queues are empty."""
    assert two_shards.num_shards == 2
    assert [s.endpoint for s in two_shards.shards] == ["embedded shard 0", "embedded shard 1"]
    assert (two_shards.queue_depth, two_shards.retries) == (0, 0)


def test_push_waits_for_what_was_pushed_when_the_client_closes() -> None:
    """Leaving the context waits for pushes that nobody waited for."""
    with pserver.embedded(1) as client:
        client.create_table(pserver.TableSpec(name="ads", dim=1))
        pending = client.start_push({"ads": gradients([1], np.ones(1))})

    assert pending.is_done
    assert pending.result() == 1
    client.close()  # twice is fine
