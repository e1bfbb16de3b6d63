"""What a push says of its keys arrives on every shard; what a table of ctr shows comes back."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pserver
from pserver.errors import ShapeError
from pserver.occurrences import Occurrences

KEYS = np.array([7, 8, 9, 8], np.uint64)
GRADS = np.ones((4, 3), np.float32)


@pytest.fixture(params=[1, 2, 3])
def client(request: pytest.FixtureRequest) -> Iterator[pserver.Client]:
    """Embedded shards with a table of ctr, t, and a plain one, p."""
    with pserver.embedded(request.param) as made:
        rules: dict[str, Any] = {"dim": 3, "optimizer": "sgd:lr=1", "capacity_max": 1000}
        made.create_table(pserver.TableSpec(name="t", accessor="ctr:embedx_threshold=2", **rules))
        made.create_table(pserver.TableSpec(name="p", **rules))
        yield made


def test_shows_clicks_and_slots_arrive_when_they_are_pushed(client: pserver.Client) -> None:
    """Sums of repeats, the last slot of each key; and embedx for the key whose score reached 2."""
    client.push("t", KEYS, GRADS, shows=[1, 2, 3, 0.5], clicks=[0, 1, 0, 1], slots=[4, 5, 6, 7])

    shown = client.pull_shown("t", [8, 7, 9, 10, 8])

    assert shown.shows.tolist() == [2.5, 1, 3, 0, 2.5]
    assert shown.clicks.tolist() == [2, 0, 0, 0, 2]
    assert shown.weights.shape == (5, 3)
    assert (shown.weights[0, 1:] != 0).all()
    assert (shown.weights[1:4, 1:] == 0).all()
    found = client.inspect("t", 8)
    assert found.words["slot"] == 7
    assert found.words["show"] == 2.5
    assert found.score == pytest.approx(2.05)
    assert found.has_embedx


def test_shows_are_the_counts_when_they_are_not_pushed(client: pserver.Client) -> None:
    """A key is shown as often as it occurs, or as its counts say."""
    client.push("t", KEYS, GRADS)
    client.push("t", KEYS, GRADS, counts=[1, 2, 3, 4])

    shown = client.pull_shown("t", [7, 8, 9])

    assert shown.shows.tolist() == [2, 8, 4]
    assert shown.clicks.tolist() == [0, 0, 0]


def test_a_trainer_may_push_counts_or_occurrences(client: pserver.Client) -> None:
    """The third of what is pushed without waiting may be either."""
    keys, grads = np.array([7, 8], np.uint64), np.ones(6, np.float32)
    ones = np.array([1, 2], np.float32)

    client.start_push({"t": (keys, grads, np.array([3, 4], np.uint32))})
    client.start_push({"t": (keys, grads, Occurrences(shows=ones, clicks=ones))})
    client.flush()

    assert client.pull_shown("t", keys).shows.tolist() == [4, 6]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"shows": [1, 2]}, r"shows must be \(4,\) numbers"),
        ({"clicks": ["a"] * 4}, r"clicks must be \(4,\) numbers"),
        ({"slots": [1, 2, 3, -1]}, "slots must be in"),
        ({"shows": [1, -2, 3, 1]}, "shows must be in"),
        ({"clicks": [1, np.nan, 3, 4]}, "clicks must be in"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    client: pserver.Client, said: dict[str, Any], message: str
) -> None:
    """Another length, no numbers, numbers under 0: an error that names it, and no row changed."""
    with pytest.raises(ShapeError, match=message):
        client.push("t", KEYS, GRADS, **said)

    assert client.inspect("t", 8).words.get("click", 0) == 0


def test_shows_of_a_plain_table_are_refused(client: pserver.Client) -> None:
    """Only rows of ctr have them."""
    with pytest.raises(ShapeError, match="only rows of accessor ctr have shows"):
        client.pull_shown("p", KEYS)


def test_what_is_left_unsaid_is_written_out_when_batches_are_joined() -> None:
    """Of two batches one says counts and slots, the other shows: all but slots is kept."""
    one = Occurrences(counts=np.array([2, 3], np.uint32), slots=np.array([5, 6], np.uint32))
    other = Occurrences(shows=np.array([0.5], np.float32))

    both = Occurrences.joined([(one, 2), (other, 1)])

    assert both.counts.tolist() == [2, 3, 1]
    assert both.shows.tolist() == [2, 3, 0.5]
    assert both.clicks.size == both.slots.size == 0
    assert Occurrences.joined([(one, 2), (one, 2)]).slots.tolist() == [5, 6, 5, 6]
