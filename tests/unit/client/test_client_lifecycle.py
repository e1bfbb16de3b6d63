"""What clear, drop, shrink and top keys do through a client: on all shards, once, told as one."""

from collections.abc import Iterator

import numpy as np
import pytest

import pserver
from pserver.client.lifecycle import Lifecycle

KEYS = np.arange(1, 401, dtype=np.uint64)
ADS = pserver.TableSpec(
    name="ads", dim=2, optimizer="sgd:lr=1", initializer="constant:value=0.5", ttl_days=1
)


@pytest.fixture(params=[1, 3])
def client(request: pytest.FixtureRequest) -> Iterator[pserver.Client]:
    """Return a client of embedded shards with a table of 400 rows, each pushed once."""
    with pserver.embedded(request.param) as client:
        client.create_table(ADS)
        client.push("ads", KEYS, np.ones((KEYS.size, 2)))
        yield client


def rows(client: pserver.Client) -> int:
    """Return the rows of all tables on all shards."""
    return sum(table.rows for stats in client.stats() for table in stats.tables)


def test_c7_a_cleared_table_begins_anew_and_its_version_goes_on(client: pserver.Client) -> None:
    """All rows go, on every shard; reads give first weights, and the next push starts there."""
    gone = client.lifecycle.clear("ads")

    assert (gone.rows, len(gone.shards)) == (400, client.num_shards)
    assert gone.bytes > 400 * 12
    assert rows(client) == 0
    assert np.all(client.peek("ads", KEYS) == 0.5)
    assert client.push("ads", KEYS, np.ones((KEYS.size, 2))) == 2
    assert np.all(client.pull("ads", KEYS) == -0.5)
    assert client.spec("ads").dim == 2


def test_clearing_twice_is_fine(client: pserver.Client) -> None:
    """The second time there is nothing left to remove."""
    client.lifecycle.clear("ads")

    assert client.lifecycle.clear("ads").rows == 0


def test_a_cleared_table_takes_pushes_again_when_nan_had_stopped_it() -> None:
    """What `on_nan: fail` says to do works."""
    with pserver.embedded(1) as client:
        client.create_table(pserver.TableSpec(name="t", dim=1, on_nan="fail"))
        with pytest.raises(pserver.NotFiniteError):
            client.push("t", [1], [[np.nan]])
        with pytest.raises(pserver.TableStoppedError):
            client.push("t", [1], [[1.0]])

        client.lifecycle.clear("t")

        assert client.push("t", [1], [[1.0]]) == 1


def test_a_dropped_table_is_unknown_until_it_is_made_again(client: pserver.Client) -> None:
    """Pulls and pushes are refused by name; another spec may take the name; dropping again is fine."""
    client.create_dense(pserver.DenseSpec(name="top", length=5))

    assert client.lifecycle.drop("ads").rows == 400
    for act in (
        lambda: client.pull("ads", KEYS),
        lambda: client.push("ads", KEYS, np.ones((KEYS.size, 2))),
        lambda: client.lifecycle.clear("ads"),
        lambda: client.lifecycle.shrink("ads", 1),
    ):
        with pytest.raises(pserver.UnknownTableError, match="'ads'"):
            act()
    again = client.lifecycle.drop("ads")
    assert (again.shards, again.rows) == ((), 0)
    assert client.lifecycle.drop("top").rows == 5

    client.create_table(pserver.TableSpec(name="ads", dim=3))
    assert client.pull("ads", KEYS).shape == (400, 3)


def test_a_trainer_that_knew_a_dropped_table_is_told(client: pserver.Client) -> None:
    """A client that still has the spec gets the server's own refusal."""
    client.spec("ads")
    other = Lifecycle(client.shards, client._ask, lambda: None)

    other.drop("ads")

    with pytest.raises(pserver.UnknownTableError, match="no table 'ads'"):
        client.push("ads", KEYS, np.ones((KEYS.size, 2)))


def test_a_table_shrinks_once_a_day(client: pserver.Client) -> None:
    """Rows go when they were unwritten for longer than the ttl; the same day again does nothing."""
    kept = KEYS[:100]

    first = client.lifecycle.shrink("ads", 10)
    client.push("ads", kept, np.ones((kept.size, 2)))
    second = client.lifecycle.shrink("ads", 11)
    dry = client.lifecycle.shrink("ads", 12, dry=True)
    third = client.lifecycle.shrink("ads", 12)
    again = [client.lifecycle.shrink("ads", day) for day in (12, 11, 1)]

    assert [(s.rows, s.gone, s.is_past) for s in (first, second)] == [(400, 0, False)] * 2
    for shrunk in (dry, third):
        assert (shrunk.rows, shrunk.gone, shrunk.by_age, shrunk.by_score) == (400, 300, 300, 0)
        assert shrunk.edges[:3] == (1.0, 2.0, 3.0)
        assert shrunk.all_counts[:3] == (0, 100, 300)
        assert (sum(shrunk.gone_counts), shrunk.gone_counts[2]) == (300, 300)
    assert dry.gone_bytes == third.gone_bytes == 300 * (2 * 4 + 4 + 4 + 36)
    assert [(s.is_past, s.gone, s.last_day) for s in again] == [(True, 0, 12)] * 3
    assert rows(client) == 100
    assert {table.day for stats in client.stats() for table in stats.tables} == {12}
    assert sum(table.shrunk for stats in client.stats() for table in stats.tables) == 300


def test_a_table_that_never_shrinks_says_so(client: pserver.Client) -> None:
    """A shrink that could remove nothing is refused rather than done in vain."""
    client.create_table(pserver.TableSpec(name="all", dim=1))

    with pytest.raises(pserver.ConfigError, match=r"'all'.*ttl_days is 0"):
        client.lifecycle.shrink("all", 1)
    with pytest.raises(pserver.ConfigError, match="day must be over 0, got 0"):
        client.lifecycle.shrink("ads", 0)


def test_inspect_says_whether_a_row_would_go(client: pserver.Client) -> None:
    """Both answers come with their reason, of the next day's shrink."""
    fresh = client.inspect("ads", 1)
    client.lifecycle.shrink("ads", 10)
    client.lifecycle.shrink("ads", 11)
    old = client.inspect("ads", 1)

    assert (fresh.would_go, fresh.why) == (False, "written since the last shrink")
    assert (old.would_go, old.why) == (
        True,
        "days not written: 2 on day 12, at most 1 are allowed",
    )
    assert client.inspect("ads", 999).why == ""


def test_the_key_that_is_pushed_most_is_found(client: pserver.Client) -> None:
    """It leads, with an estimate of its pushes; see ``test_hot`` for how good that is."""
    rng = np.random.default_rng(0)
    for _ in range(600):
        rest = rng.integers(10_000, 2**63, 20, dtype=np.uint64)
        keys = np.append(rest, np.uint64(7))
        client.push("ads", keys, np.zeros((keys.size, 2)))

    found = client.lifecycle.top_keys("ads", count=3)

    assert found.keys.size == 3
    assert found.keys[0] == 7
    assert 150 < found.values[0] < 1500
    assert 0.5 < found.seen / (600 * 21 + 400) < 1.5


@pytest.mark.parametrize(("by", "count"), [("pushes", 0), ("score", 5), ("hits", 5)])
def test_what_cannot_be_ordered_is_refused(client: pserver.Client, by: str, count: int) -> None:
    """No count, no such word, or a value that rows do not have."""
    with pytest.raises(pserver.ConfigError, match="top-keys 'ads'"):
        client.lifecycle.top_keys("ads", by=by, count=count)
