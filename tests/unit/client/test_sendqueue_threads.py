"""Which threads the send queue works in: no other one is woken to send a request."""

import concurrent.futures
import threading

import pytest
from typing_extensions import override

from pserver.client.runtime import Runtime
from pserver.client.sendqueue import SendQueue
from pserver.config import ClientSettings
from pserver.deadline import Deadline
from pserver.errors import UnavailableError
from tests.unit.client.fakes import WAIT_S, FakeChannel, Script

Reply = concurrent.futures.Future[bytes]


class WatchedChannel(FakeChannel):
    """Remembers which threads start requests and try again."""

    def __init__(self, runtime: Runtime, script: Script) -> None:
        """Begin with none."""
        super().__init__(runtime, script)
        self.starting: list[threading.Thread] = []
        self.calling: list[threading.Thread] = []

    @override
    def start(self, runtime: Runtime, method: str, message: bytes, *, deadline: Deadline) -> Reply:
        """Remember, and start."""
        self.starting.append(threading.current_thread())
        return super().start(runtime, method, message, deadline=deadline)

    @override
    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Remember, and answer."""
        self.calling.append(threading.current_thread())
        return await super().call(method, message, deadline=deadline)


def test_a_try_that_somebody_cancelled_is_told_and_the_queue_goes_on() -> None:
    """The request fails, its room is free, and the one behind it leaves."""
    runtime = Runtime()
    channel = FakeChannel(runtime)
    queue = SendQueue(channel, runtime, ClientSettings(window=1))
    replies = [queue.put("Push", b"%d" % i, deadline=Deadline.after(WAIT_S)) for i in range(2)]
    first = channel.arrivals.get(timeout=WAIT_S)

    first.answer.get_loop().call_soon_threadsafe(first.answer.cancel)

    with pytest.raises(UnavailableError):
        replies[0].result(WAIT_S)
    channel.arrivals.get(timeout=WAIT_S).reply(b"one")
    assert replies[1].result(WAIT_S) == b"one"
    assert queue.depth == 0
    runtime.submit(queue.close()).result(WAIT_S)
    runtime.stop()


def test_a_request_leaves_in_the_thread_that_puts_it() -> None:
    """What the window allows is on the wire when ``put`` returns; only what failed is the loop's."""

    def script(number: int, message: bytes) -> bytes:
        if number == 1:
            raise UnavailableError("not now")
        return message

    runtime = Runtime()
    channel = WatchedChannel(runtime, script)
    queue = SendQueue(channel, runtime, ClientSettings(window=2))

    replies = [queue.put("Push", b"%d" % i, deadline=Deadline.after(WAIT_S)) for i in range(2)]

    assert channel.starting == [threading.current_thread()] * 2
    assert [reply.result(WAIT_S) for reply in replies] == [b"0", b"1"]
    assert channel.starting == [threading.current_thread()] * 2
    assert {thread.name for thread in channel.calling} == {"pserver-client"}
    runtime.submit(queue.close()).result(WAIT_S)
    runtime.stop()
