"""The seam between client and network: one request to one shard, once.

Rooms before and after: ``sendqueue`` decides when and how often; behind it is gRPC, or in
embedded mode a servicer in this process (``pserver.embedded``).
"""

import asyncio
import functools
from concurrent.futures import Future
from typing import Protocol

import grpc

from pserver.client.connection import Connection
from pserver.client.credentials import OPEN, Credentials
from pserver.client.runtime import Runtime
from pserver.deadline import Deadline
from pserver.errors import DeadlineError, PserverError
from pserver.status import from_status


class Channel(Protocol):
    """Carries bytes to one shard."""

    @property
    def endpoint(self) -> str:
        """Return what errors call the shard: HOST:PORT, or ``embedded shard 0``."""
        ...

    def start(
        self, runtime: Runtime, method: str, message: bytes, *, deadline: Deadline
    ) -> "Future[bytes]":
        """Send one request and return the future of the reply, from any thread; requests leave in order.

        Cancelling the future gives the request up.

        Args:
            runtime: whose loop works, where a loop is needed.
            method: of the service.
            message: the request.
            deadline: when the future has failed.

        Returns:
            What fails as ``call`` does.
        """
        ...

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one request and return the reply.

        Raises:
            PserverError: what the server said, ``UnavailableError`` if it could not be reached,
                or ``DeadlineError`` if it did not answer in time; the endpoint is in the message.
        """
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


def no_answer(method: str, endpoint: str, timeout_s: float) -> DeadlineError:
    """Return the error of a call that was not answered in time."""
    return DeadlineError(f"{method}: no answer from {endpoint} within {timeout_s:.1f} s")


class GrpcChannel:
    """A channel to a server process. Thread-safe.

    Attributes:
        connection: that calls go through.
    """

    def __init__(self, endpoint: str, credentials: Credentials = OPEN) -> None:
        """Name the server; the connection is made by the first call.

        Args:
            endpoint: HOST:PORT or file:PATH; a name is resolved, and a file read, again at each reconnect.
            credentials: what the server is shown.
        """
        self._endpoint = endpoint
        self.connection = Connection(endpoint, credentials)

    @property
    def endpoint(self) -> str:
        """Return HOST:PORT."""
        return self._endpoint

    def start(
        self, runtime: Runtime, method: str, message: bytes, *, deadline: Deadline
    ) -> "Future[bytes]":
        """Send one request and return the future of the reply; see ``Channel.start``. Needs no loop."""
        del runtime
        return self._start(method, message, deadline)

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one request and return the reply; see ``Channel.call``."""
        return await asyncio.wrap_future(self._start(method, message, deadline))

    def _start(self, method: str, message: bytes, deadline: Deadline) -> "Future[bytes]":
        timeout_s = deadline.remaining_s
        failing = functools.partial(self._translate, method, timeout_s)
        return self.connection.send(method, message, timeout_s=timeout_s, failing=failing)

    def _translate(self, method: str, timeout_s: float, error: grpc.Call) -> PserverError:
        """Return our error for gRPC's, with the endpoint in front."""
        metadata = [(str(key), value) for key, value in error.trailing_metadata() or ()]
        text = error.details() or error.code().name
        if error.code() is grpc.StatusCode.UNAVAILABLE and "closed" in text:
            text += self.connection.hint
        ours = from_status(error.code(), f"{method} at {self._endpoint}: {text}", metadata)
        if isinstance(ours, DeadlineError):
            return no_answer(method, self._endpoint, timeout_s)
        return ours

    async def close(self) -> None:
        """Close the connection."""
        self.connection.close()
