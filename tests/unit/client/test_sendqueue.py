"""What ``pserver.client.sendqueue`` promises, over a channel that does what the test says."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator

import pytest

from pserver import errors
from pserver.client import sendqueue
from pserver.client.runtime import Runtime
from pserver.client.sendqueue import SPAN_MAX, SendQueue
from pserver.config import ClientSettings
from pserver.deadline import Deadline
from pserver.server.once import WINDOW
from tests.unit.client.fakes import WAIT_S, FakeChannel, Script

Make = Callable[..., tuple[SendQueue, FakeChannel]]
Reply = concurrent.futures.Future[bytes]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a maker of a queue over a fake channel; closes what it made."""
    made: list[tuple[SendQueue, Runtime]] = []

    def make_queue(
        script: Script | None = None, **settings: float
    ) -> tuple[SendQueue, FakeChannel]:
        runtime = Runtime()
        channel = FakeChannel(runtime, script)
        queue = SendQueue(channel, runtime, ClientSettings.make(settings, origins={}))
        made.append((queue, runtime))
        return queue, channel

    yield make_queue
    for queue, runtime in made:
        runtime.submit(queue.close()).result(WAIT_S)
        runtime.stop()


def put(queue: SendQueue, message: bytes, timeout_s: float = WAIT_S) -> Reply:
    """Put one request."""
    return queue.put("Push", message, deadline=Deadline.after(timeout_s))


def close(queue: SendQueue, channel: FakeChannel) -> None:
    """Close the queue from outside, as the client does."""
    channel.runtime.submit(queue.close()).result(WAIT_S)


def test_requests_leave_in_order_when_the_window_is_one(make: Make) -> None:
    """Requests leave one by one in the order of ``put``, and each future gets its own reply."""
    queue, channel = make(lambda _, message: b"to " + message, window=1, send_queue_size=50)

    replies = [put(queue, b"%d" % i) for i in range(50)]

    assert [reply.result(WAIT_S) for reply in replies] == [b"to %d" % i for i in range(50)]
    assert [channel.next().message for _ in range(50)] == [b"%d" % i for i in range(50)]


def test_requests_leave_in_order_when_the_window_is_wide(make: Make) -> None:
    """With several on the wire they still leave in order, whatever order they return in."""
    queue, channel = make(window=3)
    replies = [put(queue, b"%d" % i) for i in range(9)]

    sent = []
    for _ in range(3):
        three = [channel.next() for _ in range(3)]
        sent += [arrival.message for arrival in three]
        for arrival in reversed(three):
            arrival.reply(arrival.message)

    assert [reply.result(WAIT_S) for reply in replies] == sent == [b"%d" % i for i in range(9)]


def test_e7_a_wait_is_for_ones_own_request_when_another_threads_is_slow(make: Make) -> None:
    """Two threads share a queue: the one that is answered goes on while the other one's request is open."""
    queue, channel = make()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: put(queue, b"slow").result(WAIT_S))
        slow_arrival = channel.next()
        reply = put(queue, b"quick")
        channel.next().reply(b"done")

        assert reply.result(WAIT_S) == b"done"
        assert not slow.done()
        slow_arrival.reply(b"late")
        assert slow.result(WAIT_S) == b"late"


def test_no_more_than_the_window_are_on_the_wire(make: Make) -> None:
    """The window bounds the requests on the wire; the next leaves when one is answered."""
    queue, channel = make(window=2)
    for i in range(5):
        put(queue, b"%d" % i)

    first, second = channel.next(), channel.next()
    channel.settle()
    assert channel.num_calls == 2

    second.reply(b"")
    third = channel.next()
    channel.settle()
    assert (channel.num_calls, third.message) == (3, b"2")
    assert queue.depth == 4
    first.reply(b"")


@pytest.mark.parametrize(
    ("limit", "message"),
    [({"send_queue_size": 2}, b"x"), ({"send_queue_bytes": 20}, b"ten bytes!")],
)
def test_c9_put_waits_when_the_queue_is_full(
    make: Make, limit: dict[str, int], message: bytes
) -> None:
    """A full queue, by count or by bytes, makes ``put`` wait until there is room."""
    queue, channel = make(**limit)
    held = [put(queue, message) for _ in range(2)]
    arrivals = [channel.next(), channel.next()]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        third = pool.submit(put, queue, b"third")
        with pytest.raises(errors.DeadlineError):  # there is none, so the other one waits too
            put(queue, message, timeout_s=0.05)
        assert (third.done(), queue.depth, channel.num_calls) == (False, 2, 2)

        arrivals[0].reply(b"first")

        assert held[0].result(WAIT_S) == b"first"
        assert channel.next().message == b"third"
        third.result(WAIT_S)


def test_nothing_is_dropped_when_many_threads_fill_the_queue(make: Make) -> None:
    """Every request of four threads arrives once, in each thread's order, through a tiny queue."""
    queue, channel = make(lambda _, message: message, send_queue_size=3, window=2)
    deepest = 0

    def put_all(thread: int) -> list[Reply]:
        nonlocal deepest
        replies = []
        for i in range(100):
            replies.append(put(queue, b"%d:%03d" % (thread, i)))
            deepest = max(deepest, queue.depth)
        return replies

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = [reply for replies in pool.map(put_all, range(4)) for reply in replies]

    sent = {reply.result(WAIT_S) for reply in replies}
    arrived = [channel.next().message for _ in range(400)]
    assert len(sent) == 400
    assert channel.num_calls == 400
    for thread in range(4):
        mine = [message for message in arrived if message.startswith(b"%d:" % thread)]
        assert mine == [b"%d:%03d" % (thread, i) for i in range(100)]
    assert deepest <= 3


def test_request_passes_alone_when_it_is_larger_than_the_queue(make: Make) -> None:
    """A request over the byte limit passes when nothing else is in the queue, and only then."""
    queue, channel = make(send_queue_bytes=10)
    put(queue, b"small")
    small = channel.next()
    with pytest.raises(errors.DeadlineError):
        put(queue, b"x" * 11, timeout_s=0.05)

    small.reply(b"")
    channel.settle()
    large = put(queue, b"x" * 11)

    channel.next().reply(b"done")
    assert large.result(WAIT_S) == b"done"


def test_put_gives_up_when_there_is_no_room_until_the_deadline(make: Make) -> None:
    """A put into a queue that stays full fails at its deadline, says so, and sends nothing."""
    queue, channel = make(send_queue_size=1)
    put(queue, b"held")
    channel.next()

    with pytest.raises(errors.DeadlineError) as caught:
        put(queue, b"late", timeout_s=0.05)

    message = str(caught.value)
    assert "Push to fake:6170: the send queue stayed full (1 requests, 4 bytes)" in message
    assert "The request was not sent" in message
    assert (queue.depth, channel.num_calls) == (1, 1)


@pytest.mark.parametrize(
    "failure",
    [
        errors.UnavailableError("gone"),
        errors.OverloadedError("full"),
        errors.TransientError("?"),
        errors.DeadlineError("no answer to this try"),
    ],
)
def test_same_bytes_are_sent_again_when_the_failure_may_pass(
    make: Make, failure: errors.PserverError
) -> None:
    """Transient failures, and a try that timed out, are tried again with the very same message."""

    def script(number: int, message: bytes) -> bytes:
        if number < 2:
            raise failure
        return b"done"

    queue, channel = make(script)

    assert put(queue, b"the same").result(WAIT_S) == b"done"

    assert [channel.next().message for _ in range(3)] == [b"the same"] * 3
    assert queue.retries == 2


def all_classes(base: type[errors.PserverError]) -> Iterator[type[errors.PserverError]]:
    """Yield a class and everything below it."""
    yield base
    for kind in base.__subclasses__():
        yield from all_classes(kind)


NEVER_RETRIED = [
    kind
    for kind in all_classes(errors.PserverError)
    if not issubclass(kind, errors.TransientError | errors.DeadlineError)
]


@pytest.mark.parametrize("kind", NEVER_RETRIED)
def test_request_is_sent_once_when_the_failure_cannot_pass(
    make: Make, kind: type[errors.PserverError]
) -> None:
    """Every other error of the tree is handed to the caller as it came, at once."""
    failure = kind("no")

    def script(number: int, message: bytes) -> bytes:
        raise failure

    queue, channel = make(script)

    assert put(queue, b"x").exception(WAIT_S) is failure

    assert (channel.num_calls, queue.retries, queue.depth) == (1, 0, 0)


def test_error_is_ours_when_a_channel_fails_in_an_unknown_way(make: Make) -> None:
    """An exception that is none of our tree becomes an InternalError with it as the cause."""

    def script(number: int, message: bytes) -> bytes:
        raise KeyError("surprise")

    queue, _ = make(script)

    error = put(queue, b"x").exception(WAIT_S)

    assert isinstance(error, errors.InternalError)
    assert "Push to fake:6170" in str(error)
    assert isinstance(error.__cause__, KeyError)


def test_last_failure_is_told_when_the_deadline_comes(make: Make) -> None:
    """Retries end at the request's deadline with an error that names shard and last failure."""

    def script(number: int, message: bytes) -> bytes:
        raise errors.UnavailableError(f"refused, try {number}")

    queue, channel = make(script)

    error = put(queue, b"x", timeout_s=0.3).exception(WAIT_S)

    assert isinstance(error, errors.DeadlineError)
    assert "Push: fake:6170 did not answer before the deadline" in str(error)
    assert f"last failure: refused, try {channel.num_calls - 1}" in str(error)


def test_one_try_is_shorter_than_the_request_when_settings_say_so(make: Make) -> None:
    """A try gets ``try_timeout_s``, or what is left of the request's time if that is less."""
    queue, channel = make(try_timeout_s=3.0)

    put(queue, b"long", timeout_s=100.0)
    put(queue, b"short", timeout_s=1.0)

    long, short = channel.next(), channel.next()
    assert 2.0 < long.timeout_s <= 3.0
    assert short.timeout_s <= 1.0


def test_nothing_newer_leaves_when_one_request_falls_far_behind(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a request stays open, at most SPAN_MAX - 1 later ones pass it; then all go on."""
    monkeypatch.setattr(sendqueue, "SPAN_MAX", 8)
    queue, channel = make(window=2, send_queue_size=100)
    replies = [put(queue, b"%d" % i) for i in range(20)]
    stuck = channel.next()

    for _ in range(7):
        channel.next().reply(b"")
    channel.settle()
    assert channel.num_calls == 8

    stuck.reply(b"")
    for _ in range(12):
        channel.next().reply(b"")
    assert [reply.result(WAIT_S) for reply in replies] == [b""] * 20


def test_shards_remember_more_than_a_queue_lets_pass() -> None:
    """A push that is tried again is never older than the shard's memory of its trainer."""
    assert SPAN_MAX <= WINDOW


@pytest.mark.parametrize("window", [1, 2, 5])
def test_e5_close_settles_everything(make: Make, window: int) -> None:
    """Requests on the wire, requests that wait, and a put that waits all end with one error."""
    queue, channel = make(window=window, send_queue_size=4)
    replies = [put(queue, b"x") for _ in range(4)]
    channel.next()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(put, queue, b"no room")

        close(queue, channel)

        outcomes = [reply.exception(WAIT_S) for reply in replies]
        for error in [*outcomes, blocked.exception(WAIT_S)]:
            assert isinstance(error, errors.UnavailableError)
            assert str(error) == "the client of fake:6170 was closed"
    assert (queue.depth, channel.num_closed) == (0, 1)


def test_close_settles_requests_that_are_in_backoff(make: Make) -> None:
    """A request between two tries ends at once when the queue is closed."""
    failed = threading.Event()

    def script(number: int, message: bytes) -> bytes:
        failed.set()
        raise errors.UnavailableError("gone")

    queue, channel = make(script)
    reply = put(queue, b"x", timeout_s=600.0)
    assert failed.wait(WAIT_S)

    close(queue, channel)

    assert isinstance(reply.exception(WAIT_S), errors.UnavailableError)


@pytest.mark.parametrize("turns", range(6))
def test_close_settles_requests_that_are_just_starting(make: Make, turns: int) -> None:
    """Wherever ``close`` falls between one request's end and the next one's start, all end."""
    queue, channel = make(window=1)
    replies = [put(queue, b"%d" % i) for i in range(3)]
    first = channel.next()

    async def answer_and_close() -> None:
        first.answer.set_result(b"done")
        for _ in range(turns):
            await asyncio.sleep(0)
        await queue.close()

    channel.runtime.submit(answer_and_close()).result(WAIT_S)

    for reply in replies:
        assert reply.exception(WAIT_S) is None or "was closed" in str(reply.exception())


def test_put_is_refused_when_the_queue_is_closed(make: Make) -> None:
    """Nothing can be put into a closed queue, and nothing would wait for ever."""
    queue, channel = make()
    close(queue, channel)

    with pytest.raises(errors.UnavailableError, match="was closed"):
        put(queue, b"x")
    assert channel.num_calls == 0


def test_no_thread_is_left_when_the_runtime_stops() -> None:
    """Stopping the runtime ends its thread; stopping twice is fine."""
    before = set(threading.enumerate())
    runtime = Runtime()
    queue = SendQueue(FakeChannel(runtime), runtime, ClientSettings())
    reply = put(queue, b"x")

    runtime.submit(queue.close()).result(WAIT_S)
    runtime.stop()
    runtime.stop()

    assert set(threading.enumerate()) == before
    assert reply.done()
