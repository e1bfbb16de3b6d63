"""What ``Client.inspect`` promises on a real cluster inside this process."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pserver
from tests.reference import EDGE_KEYS


@pytest.fixture(params=[1, 3])
def client(request: pytest.FixtureRequest) -> Iterator[pserver.Client]:
    """Return a client of 1 and 3 shards, with a table of two floats that adam moves."""
    with pserver.embedded(request.param) as client:
        client.create_table(pserver.TableSpec(name="ads", dim=2, optimizer="adam"))
        yield client


def trace(client: pserver.Client) -> list[bytes]:
    """Return all that the shards count of their tables."""
    return [table.SerializeToString() for stats in client.stats() for table in stats.tables]


def test_every_key_is_found_where_it_lives(client: pserver.Client) -> None:
    """Shard, endpoint and partition are those of the placement, for every kind of key."""
    for key in EDGE_KEYS:
        keys = np.array([key], np.uint64)
        client.push("ads", keys, [[1.0, 2.0]])

        found = client.inspect("ads", key)

        assert (found.table, found.key, found.has_row) == ("ads", key, True)
        assert found.shard == pserver.shard_of(keys, client.num_shards)[0]
        assert found.endpoint == client.shards[found.shard].endpoint
        assert found.partition == pserver.partition_of(keys)[0]
        assert np.array_equal(found.weights, client.peek("ads", keys)[0])
        assert list(found.state) == ["m", "v", "t"]
        assert [values.size for values in found.state.values()] == [2, 2, 1]
        assert found.state["t"].tolist() == [1.0]
        assert (found.epoch, found.table_epoch) == (1, 1)


def test_inspecting_leaves_no_trace(client: pserver.Client) -> None:
    """Keys with and without rows are told of, and no row and no counter moves."""
    client.push("ads", [1, 2], np.ones((2, 2)))
    before = trace(client)

    found = [client.inspect("ads", key) for key in range(50)]

    assert trace(client) == before
    assert [f.key for f in found if f.has_row] == [1, 2]
    assert all(f.epoch is None and not f.state for f in found if not f.has_row)
    assert np.array_equal([f.weights for f in found], client.pull("ads", np.arange(50)))


@pytest.mark.parametrize("key", [-5, np.int64(-5), np.uint64(2**64 - 5), 2**64 - 5])
def test_a_negative_key_is_taken_bit_for_bit(client: pserver.Client, key: Any) -> None:
    """One key in every form that an integer of 64 bits may have."""
    client.push("ads", [-5], [[1.0, 2.0]])

    found = client.inspect("ads", key)

    assert (found.key, found.has_row) == (2**64 - 5, True)


@pytest.mark.parametrize("key", [True, 0.5, "7", 2**64, [1, 2], []])
def test_what_is_no_key_is_refused(client: pserver.Client, key: Any) -> None:
    """Anything but one integer of 64 bits is a ShapeError that names the table."""
    with pytest.raises(pserver.ShapeError, match="inspect 'ads': "):
        client.inspect("ads", key)


def test_unknown_table_is_named(client: pserver.Client) -> None:
    """A table that is not there is refused with the nearest name."""
    with pytest.raises(pserver.UnknownTableError, match="no table 'adds'; did you mean 'ads'"):
        client.inspect("adds", 1)


def test_closed_client_tells_nothing() -> None:
    """A client that was closed says so."""
    client = pserver.embedded(1)
    client.create_table(pserver.TableSpec(name="ads", dim=2))
    client.close()

    with pytest.raises(pserver.RequestError, match="this client was closed"):
        client.inspect("ads", 1)
