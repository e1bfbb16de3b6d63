"""Every error that a client meets, provoked as a user would, with the facts in its message."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np
import pytest

import pserver
from pserver import errors
from pserver.client.connect import make_client
from pserver.client.gradients import Gradients
from pserver.embedded import InProcessChannel
from pserver.server.servicer import Servicer

WAIT_S = 20.0
NAN = float("nan")


@dataclass
class Cluster:
    """One shard in this process and its client; the test may hold the shard or replace it."""

    client: pserver.Client
    channel: InProcessChannel

    def hold(self) -> AbstractContextManager[object]:
        """Keep the shard's owner thread busy until the context ends."""
        held, free = threading.Event(), threading.Event()

        def work() -> None:
            held.set()
            assert free.wait(WAIT_S)

        self.client._runtime.submit(self.channel._servicer._executor.run(work))
        assert held.wait(WAIT_S)
        stack = ExitStack()
        stack.callback(free.set)
        return stack

    def restart(self) -> None:
        """Put a new, empty shard in the place of the old one."""
        self.channel._servicer.close()
        self.channel._servicer = Servicer(shard=0, num_shards=1, queue_max=4)


Make = Callable[..., Cluster]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a maker of clusters with a table ``ads`` of two floats that holds four rows."""
    with ExitStack() as stack:

        def make_cluster(queue_max: int = 4, **settings: float) -> Cluster:
            channel = InProcessChannel(Servicer(shard=0, num_shards=1, queue_max=queue_max))
            client = make_client(
                lambda: [channel],
                settings=pserver.ClientSettings.make(settings, origins={}),
                connect_s=WAIT_S,
            )
            stack.callback(client.close, flush=False)
            spec = pserver.TableSpec(
                name="ads", dim=2, optimizer="sgd:lr=1", initializer="zeros", capacity_max=4
            )
            client.create_table(spec)
            return Cluster(client, channel)

        yield make_cluster


def gradients(key: int, value: float) -> dict[str, Gradients]:
    """Return a push of one key."""
    return {
        "ads": (np.array([key], np.uint64), np.full(2, value, np.float32), np.empty(0, np.uint32))
    }


def test_unknown_table_names_the_nearest(make: Make) -> None:
    """A table that does not exist is refused before anything is sent, with the nearest name."""
    client = make().client

    for call in (
        lambda: client.pull("adds", [1]),
        lambda: client.push("adds", [1], [[1.0, 1.0]]),
        lambda: client.start_push({"adds": gradients(1, 1.0)["ads"]}),
    ):
        with pytest.raises(errors.UnknownTableError, match=r"no table 'adds'; did you mean 'ads'"):
            call()


def test_another_spec_shows_the_difference(make: Make) -> None:
    """A table that exists with another spec is refused with the fields that differ."""
    client = make().client

    with pytest.raises(errors.SpecMismatchError) as caught:
        client.create_table(pserver.TableSpec(name="ads", dim=3, optimizer="sgd:lr=2"))

    message = str(caught.value)
    assert "table 'ads' exists with another spec (existing against wanted)" in message
    assert "dim: 2 against 3" in message
    assert "optimizer: sgd:lr=1.0 against sgd:lr=2.0" in message
    assert client.spec("ads").dim == 2


def test_unknown_optimizer_is_refused_before_it_is_sent(make: Make) -> None:
    """A rule that does not exist is a ConfigError that names the nearest."""
    with pytest.raises(errors.ConfigError, match=r"table 'b': optimizer.*did you mean 'adagrad'"):
        make().client.create_table(pserver.TableSpec(name="b", dim=1, optimizer="adagard"))


def test_shape_is_told_when_gradients_do_not_fit(make: Make) -> None:
    """Gradients of another shape are refused with both shapes; nothing is applied."""
    client = make().client

    with pytest.raises(errors.ShapeError) as caught:
        client.push("ads", [1, 2], np.zeros((2, 3), np.float32))

    assert str(caught.value) == "push 'ads': grads must be (2, 2) float32, got (2, 3) float32"
    with pytest.raises(errors.ShapeError, match=r"assign 'ads': weights must be \(1, 2\)"):
        client.assign("ads", [1], [1.0])
    assert client.stats()[0].tables[0].rows == 0


def test_key_is_named_when_a_gradient_is_not_finite(make: Make) -> None:
    """NaN and infinity are refused with key and place, and the whole push with them."""
    client = make().client

    with pytest.raises(errors.NotFiniteError, match=r"push 'ads': value 1 of key 7 is nan"):
        client.push("ads", [6, 7], [[1.0, 1.0], [1.0, NAN]])
    with pytest.raises(errors.NotFiniteError, match=r"assign 'ads': value 0 of key 6 is inf"):
        client.assign("ads", [6], [[float("inf"), 0.0]])

    assert client.stats()[0].tables[0].rows == 0
    assert client.stats()[0].tables[0].version == 0


def test_c8_numbers_are_told_when_a_table_is_full(make: Make) -> None:
    """New rows without room are refused with what is needed, what there is, and what to do."""
    client = make().client
    client.pull("ads", [1, 2, 3])

    for call in (
        lambda: client.pull("ads", [3, 4, 5]),
        lambda: client.push("ads", [3, 4, 5], np.ones((3, 2))),
    ):
        with pytest.raises(errors.TableFullError) as caught:
            call()
        assert "table 'ads': 2 new rows needed, room for 1 of capacity_max 4" in str(caught.value)
        assert "raise capacity_max" in str(caught.value)
    assert client.pull("ads", [4]).tolist() == [[0.0, 0.0]]


def test_key_is_named_when_it_is_assigned_twice(make: Make) -> None:
    """Two weights for one key are refused with the key."""
    with pytest.raises(errors.ShapeError, match="assign 'ads': key 9 is given twice"):
        make().client.assign("ads", [8, 9, 9], np.zeros((3, 2)))


@pytest.mark.parametrize("keys", [[1.5], [True], ["x"], [NAN], [2.0**60]])
def test_keys_are_refused_when_they_are_not_exact(make: Make, keys: list[object]) -> None:
    """Every verb refuses keys that are no exact integers, and says which verb and table."""
    client = make().client
    block = np.zeros((1, 2))

    with pytest.raises(errors.ShapeError, match=r"^pull 'ads': keys "):
        client.pull("ads", keys)  # type: ignore[arg-type] # that is the point
    with pytest.raises(errors.ShapeError, match=r"^push 'ads': keys "):
        client.push("ads", keys, block)  # type: ignore[arg-type] # that is the point
    with pytest.raises(errors.ShapeError, match=r"^assign 'ads': keys "):
        client.assign("ads", keys, block)  # type: ignore[arg-type] # that is the point


def test_arrays_are_checked_when_they_go_straight_to_the_kernels(make: Make) -> None:
    """``start_pull`` and ``start_push`` refuse arrays that kernels could not read safely."""
    client = make().client
    key, grads, counts = gradients(1, 1.0)["ads"]

    with pytest.raises(errors.ShapeError, match=r"pull 'ads': keys must be .* uint64"):
        client.start_pull({"ads": key.astype(np.float64)})
    with pytest.raises(errors.ShapeError, match="push 'ads': 1 keys of dim 2 need 2 grads"):
        client.start_push({"ads": (key, grads[:1], counts)})


CALLS_THAT_RAISE: dict[str, Callable[[pserver.Client], object]] = {
    "start_push": lambda client: client.start_push(gradients(1, 1.0)),
    "push": lambda client: client.push("ads", [1], [[1.0, 1.0]]),
    "assign": lambda client: client.assign("ads", [1], [[1.0, 1.0]]),
    "flush": lambda client: client.flush(),
    "close": lambda client: client.close(),
}


@pytest.mark.parametrize("call", CALLS_THAT_RAISE)
def test_failed_push_is_raised_by_the_next_call_that_writes(make: Make, call: str) -> None:
    """A push that failed unwaited is raised once, by the next write, flush or close."""
    cluster = make()
    pending = cluster.client.start_push(gradients(7, NAN))
    cluster.client.stats()
    assert isinstance(pending.replies[0].exception(WAIT_S), errors.NotFiniteError)

    with pytest.raises(errors.NotFiniteError, match="key 7"):
        CALLS_THAT_RAISE[call](cluster.client)

    if call != "close":
        cluster.client.flush()  # it was told
        table = cluster.client.stats()[0].tables[0]
        assert (table.version, table.rows) == (0, 0)  # and what raised was not sent


def test_flush_waits_for_the_rest_when_one_push_failed(make: Make) -> None:
    """A flush raises the first failure, after all else is applied."""
    cluster = make()
    with cluster.hold():  # so that no failure is known before all are put
        for value in (1.0, NAN, 1.0):
            cluster.client.start_push(gradients(7, value))

    with pytest.raises(errors.NotFiniteError):
        cluster.client.flush()

    assert cluster.client.peek("ads", [7]).tolist() == [[-2.0, -2.0]]


def test_error_of_the_context_is_kept_when_a_push_failed_too() -> None:
    """Leaving the context by an error raises that error, not the failed push's."""
    with pytest.raises(KeyError), pserver.embedded(1) as client:  # noqa: PT012 - the context is tested
        client.create_table(pserver.TableSpec(name="ads", dim=2))
        client.start_push(gradients(7, NAN))
        raise KeyError("mine")


def test_shard_is_named_when_it_does_not_answer_in_time(make: Make) -> None:
    """A shard that is busy beyond the timeout is named in a DeadlineError, with the last failure."""
    cluster = make(timeout_s=0.3)

    with cluster.hold(), pytest.raises(errors.DeadlineError) as caught:
        cluster.client.pull("ads", [1])

    assert "Pull: embedded shard 0 did not answer before the deadline" in str(caught.value)
    assert "last failure: Pull: no answer from embedded shard 0 within" in str(caught.value)


def test_push_is_applied_once_when_its_tries_time_out(make: Make) -> None:
    """A push whose first tries time out is tried again under one id, and applied once."""
    cluster = make(try_timeout_s=0.05)
    with cluster.hold():
        pending = cluster.client.start_push(gradients(7, 1.0))
        while cluster.client.retries < 2:
            assert not pending.is_done
            cluster.client._runtime.submit(_turn()).result(WAIT_S)

    assert pending.result() == 1
    assert cluster.client.peek("ads", [7]).tolist() == [[-1.0, -1.0]]
    assert cluster.client.stats()[0].pushes_applied == 1


async def _turn() -> None:
    """Let the client's loop turn once."""


def test_last_failure_is_overload_when_the_shards_queue_is_full(make: Make) -> None:
    """A shard whose queue is full refuses for now; if it stays so, the deadline's error says it."""
    cluster = make(queue_max=1, timeout_s=0.5, try_timeout_s=0.4)

    with cluster.hold():
        pending = [cluster.client.start_push(gradients(7, 1.0)) for _ in range(3)]
        messages = [str(push.replies[0].exception(WAIT_S)) for push in pending]

    assert any("1 requests wait for this shard's owner thread" in message for message in messages)
    assert all("did not answer before the deadline" in message for message in messages)
    with pytest.raises(errors.DeadlineError):
        cluster.client.flush()


def test_restart_is_told_when_a_shard_lost_its_tables(make: Make) -> None:
    """Requests meant for the process before a restart are refused with what to do."""
    cluster = make()
    cluster.client.push("ads", [1], [[1.0, 1.0]])
    cluster.restart()

    for call in (
        lambda: cluster.client.push("ads", [1], [[1.0, 1.0]]),
        lambda: cluster.client.pull("ads", [1]),
        lambda: cluster.client.create_table(pserver.TableSpec(name="b", dim=1)),
    ):
        with pytest.raises(errors.RestartedError, match=r"shard 0 was restarted.* start the run"):
            call()
    assert cluster.client.stats()[0].pushes_applied == 0


@pytest.mark.parametrize("call", [*CALLS_THAT_RAISE, "pull", "stats", "start_pull"])
def test_closed_client_says_so(make: Make, call: str) -> None:
    """Each call on a closed client is a RequestError at once; close and flush are fine."""
    client = make().client
    client.close()
    calls = CALLS_THAT_RAISE | {
        "pull": lambda client: client.pull("ads", [1]),
        "start_pull": lambda client: client.start_pull({"ads": np.array([1], np.uint64)}),
        "stats": lambda client: client.stats(),
    }

    if call in ("flush", "close"):
        calls[call](client)
        return
    with pytest.raises(errors.RequestError, match="this client was closed"):
        calls[call](client)


def test_pending_pull_is_settled_when_the_client_closes(make: Make) -> None:
    """A pull that is on its way when the client closes ends with an error at once."""
    cluster = make()
    with cluster.hold() as held:
        pending = cluster.client.start_pull({"ads": np.array([1], np.uint64)})
        closing = threading.Thread(target=cluster.client.close)
        closing.start()
        error = pending.cargoes[0][1].exception(WAIT_S)
        del held
    closing.join(WAIT_S)

    assert isinstance(error, errors.UnavailableError)
    with pytest.raises(errors.UnavailableError, match="the client of embedded shard 0 was closed"):
        pending.result()
