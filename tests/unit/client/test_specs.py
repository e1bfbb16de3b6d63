"""What a client does when another one drops a table that it knows, and makes it anew with another shape."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pserver

KEYS = np.arange(100, dtype=np.uint64)


@pytest.fixture
def pair() -> Iterator[tuple[pserver.Client, pserver.Client]]:
    """Two clients of two shards, with tables of 2 floats a row and of 4 floats that both have used."""
    with pserver.Cluster(2) as cluster, cluster.connect() as one, cluster.connect() as other:
        make(one, 2)
        assert other.pull("t", KEYS).shape == (100, 2)
        assert other.pull_dense("d").values.size == 4
        yield one, other


def make(client: pserver.Client, size: int) -> None:
    """Make the tables, as those of another dim and length if they are there."""
    for name in "td":
        client.lifecycle.drop(name)
    client.create_table(pserver.TableSpec(name="t", dim=size, optimizer="sgd:lr=1"))
    client.create_dense(pserver.DenseSpec(name="d", length=2 * size))
    client.init_dense("d", np.zeros(2 * size))


Verb = Callable[[pserver.Client, int], object]


@pytest.mark.parametrize(
    "verb",
    [
        lambda client, size: client.pull("t", KEYS),
        lambda client, size: client.push("t", KEYS, np.zeros((100, size))),
        lambda client, size: client.assign("t", KEYS, np.zeros((100, size))),
        lambda client, size: client.pull_dense("d"),
        lambda client, size: client.push_dense("d", np.zeros(2 * size)),
    ],
    ids=["pull", "push", "assign", "pull_dense", "push_dense"],
)
def test_one_call_fails_when_a_table_was_made_anew_and_the_next_one_knows(
    pair: tuple[pserver.Client, pserver.Client], verb: Verb
) -> None:
    """No need to connect again: the call that meets the other shape says so, the next one has it."""
    one, other = pair
    make(one, 3)

    with pytest.raises(pserver.ShapeError):
        verb(other, 2)
    verb(other, 3)


def test_a_table_that_was_dropped_is_unknown(
    pair: tuple[pserver.Client, pserver.Client],
) -> None:
    """The client that knew it says so, and knows it again when somebody makes it."""
    one, other = pair
    one.lifecycle.drop("t")

    for _ in range(2):
        with pytest.raises(pserver.UnknownTableError, match="t"):
            other.pull("t", KEYS)
    one.create_table(pserver.TableSpec(name="t", dim=5, optimizer="sgd:lr=1"))
    assert other.pull("t", KEYS).shape == (100, 5)
