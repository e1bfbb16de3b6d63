"""A scripted channel: the network seam of the send queue, under the hand of a test.

Each call that arrives is put into ``arrivals`` and waits until the test answers it, unless
``script`` answers it at once. Nothing here knows about time.
"""

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from pserver.client.runtime import Runtime
from pserver.deadline import Deadline

WAIT_S = 10.0
"""The longest that a test waits for what must come."""

Script = Callable[[int, bytes], bytes]


@dataclass(frozen=True)
class Arrival:
    """One call that reached the channel, and the future of its answer."""

    method: str
    message: bytes
    timeout_s: float
    answer: "asyncio.Future[bytes]"

    def reply(self, message: bytes) -> None:
        """Answer it."""
        self.answer.get_loop().call_soon_threadsafe(self.answer.set_result, message)

    def fail(self, error: Exception) -> None:
        """Let it fail."""
        self.answer.get_loop().call_soon_threadsafe(self.answer.set_exception, error)


@dataclass
class FakeChannel:
    """Carries nothing; see the module."""

    runtime: Runtime
    script: Script | None = None
    endpoint: str = "fake:6170"
    arrivals: "queue.Queue[Arrival]" = field(default_factory=queue.Queue)
    num_calls: int = 0
    num_closed: int = 0

    def start(
        self, runtime: Runtime, method: str, message: bytes, *, deadline: Deadline
    ) -> "Future[bytes]":
        """Answer on the loop."""
        return runtime.submit(self.call(method, message, deadline=deadline))

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Answer as scripted, or when the test says."""
        number, self.num_calls = self.num_calls, self.num_calls + 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.arrivals.put(Arrival(method, message, deadline.remaining_s, answer))
        if self.script is not None:
            return self.script(number, message)
        return await answer

    async def close(self) -> None:
        """Count it."""
        self.num_closed += 1

    def next(self) -> Arrival:
        """Return the next call that arrives."""
        return self.arrivals.get(timeout=WAIT_S)

    def settle(self) -> None:
        """Return once the loop has done all that it could do now."""

        async def a_few_turns() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.runtime.submit(a_few_turns()).result(WAIT_S)
