"""What a client promises of differences: each shard adds them once, and nothing changed is missed."""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import pserver
from pserver.errors import DeadlineError, ShapeError, UnavailableError, UnknownTableError
from tests.clients import Network, clients

SPEC = pserver.TableSpec(name="t", dim=2, optimizer="adam", initializer="zeros")
KEYS = np.array([1, 2, 3, 2**64 - 1], np.uint64)


class Pair:
    """Two clients of the same two shards; the replies to the first one can be lost."""

    def __init__(self, stack: ExitStack) -> None:
        """Connect them."""
        self.network = Network()
        pserver.LocalTable(SPEC, rows_max=1)  # compiles, which could take longer than the timeout
        settings = pserver.ClientSettings(timeout_s=3.0)
        self.first, self.second = stack.enter_context(
            clients(2, networks=[self.network, Network()], settings=settings)
        )
        for client in (self.first, self.second):
            client.create_table(SPEC)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return two clients of two shards."""
    with ExitStack() as stack:
        yield Pair(stack)


def add(client: pserver.Client, keys: np.ndarray, value: float) -> None:
    """Add a number to every weight of some keys."""
    deltas = np.full(keys.size * SPEC.dim, value, np.float32)
    client.geo.push({"t": (keys, deltas)}, {}).deliver()


def test_differences_of_two_clients_add_up(pair: Pair) -> None:
    """Each key has the sum of what both pushed, on whichever shard it lies."""
    add(pair.first, KEYS, 1.0)
    add(pair.second, KEYS[:2], 0.5)

    assert pair.first.peek("t", KEYS)[:, 0].tolist() == [1.5, 1.5, 1.0, 1.0]


def test_sparse_and_dense_differences_leave_as_one_push(pair: Pair) -> None:
    """One push takes both kinds, and is done when all of it is acknowledged."""
    for client in (pair.first, pair.second):
        client.create_dense(pserver.DenseSpec(name="d", length=3))
    pair.first.init_dense("d", [1.0, 2.0, 3.0])

    push = pair.first.geo.push({"t": (KEYS, np.ones(8, np.float32))}, {"d": [1.0, 1.0, 1.0]})
    before = push.is_done
    push.deliver()

    assert (before, push.is_done) == (False, True)
    assert pair.second.pull_dense("d").values.tolist() == [2.0, 3.0, 4.0]
    assert pair.second.peek("t", KEYS)[:, 1].tolist() == [1.0] * 4


def test_a_push_whose_replies_were_lost_is_delivered_again_and_counts_once(pair: Pair) -> None:
    """After DeadlineError the same push is sent again, and what had arrived is not added twice."""
    push = pair.first.geo.push({"t": (KEYS, np.ones(8, np.float32))}, {})
    pair.network.is_mute = True
    with pytest.raises(DeadlineError):
        push.deliver()
    before = push.is_done
    pair.network.is_mute = False

    push.deliver()
    push.deliver()

    assert (before, push.is_done) == (False, True)
    assert pair.second.peek("t", KEYS)[:, 0].tolist() == [1.0] * 4
    assert all(stats.pushes_applied == 1 for stats in pair.second.stats())
    assert all(stats.pushes_duplicate >= 1 for stats in pair.second.stats())


def test_a_client_is_told_what_the_other_changed(pair: Pair) -> None:
    """From the first question on, the other one's keys are named once each, its own are not."""
    begin = pair.first.geo.changed("t", None)
    add(pair.first, KEYS[:1], 1.0)
    for _ in range(2):
        add(pair.second, KEYS[1:], 1.0)

    told = pair.first.geo.changed("t", begin.marks)
    again = pair.first.geo.changed("t", begin.marks)
    after = pair.first.geo.changed("t", told.marks)

    assert begin.is_all
    assert told.keys.tolist() == again.keys.tolist() == KEYS[1:].tolist()
    assert after.keys.size == 0
    assert after.marks == told.marks


def test_nothing_changed_is_missed_when_replies_are_lost(pair: Pair) -> None:
    """Answers that do not arrive cost time: the question is asked again from the same mark."""
    marks = pair.first.geo.changed("t", None).marks
    add(pair.second, KEYS, 1.0)
    pair.network.lose_next = 3

    told = pair.first.geo.changed("t", marks)

    assert told.keys.tolist() == KEYS.tolist()
    assert pair.first.retries == 3


def test_marks_of_another_process_count_as_none(pair: Pair) -> None:
    """A server that is another process knows nothing of an old mark: everything may have changed."""
    marks = pair.first.geo.changed("t", None).marks
    foreign = tuple((incarnation + 1, position) for incarnation, position in marks)

    assert not pair.first.geo.changed("t", marks).is_all
    assert pair.first.geo.changed("t", foreign).is_all


def test_what_cannot_be_right_is_refused_before_anything_is_sent(pair: Pair) -> None:
    """Unknown tables, arrays that do not fit and marks of another cluster name themselves."""
    with pytest.raises(UnknownTableError):
        pair.first.geo.push({"x": (KEYS, np.ones(8, np.float32))}, {})
    with pytest.raises(ShapeError, match=r"delta 't'.* 4 keys of dim 2 need 8 grads"):
        pair.first.geo.push({"t": (KEYS, np.ones(4, np.float32))}, {})
    with pytest.raises(UnknownTableError):
        pair.first.geo.changed("x", None)
    with pytest.raises(ShapeError, match="3 marks came for 2 shards"):
        pair.first.geo.changed("t", ((1, 1),) * 3)
    assert all(stats.pushes_applied == 0 for stats in pair.first.stats())


def test_a_refused_part_does_not_hide_the_others(pair: Pair) -> None:
    """NaN on one shard raises; the other shard added its part, and the push is not done."""
    deltas = np.ones(8, np.float32)
    deltas[0] = np.nan
    push = pair.first.geo.push({"t": (KEYS, deltas)}, {})

    with pytest.raises(pserver.NotFiniteError, match="key 1 is nan"):
        push.deliver()

    assert not push.is_done
    owners = pserver.shard_of(KEYS, 2)
    expected = np.where(owners == owners[0], 0.0, 1.0)
    assert pair.second.peek("t", KEYS)[:, 0].tolist() == expected.tolist()


def test_a_closed_client_delivers_nothing(pair: Pair) -> None:
    """A push that outlives its client says so."""
    push = pair.first.geo.push({"t": (KEYS, np.ones(8, np.float32))}, {})
    pair.first.close()

    with pytest.raises((UnavailableError, pserver.RequestError), match="was closed"):
        push.deliver()
