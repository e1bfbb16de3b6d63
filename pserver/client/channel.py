"""The seam between client and network: one request to one shard, once.

Rooms before and after: ``sendqueue`` decides when and how often; behind it is gRPC, or in
embedded mode a servicer in this process (``pserver.embedded``).
"""

from typing import Protocol

import grpc

from pserver.client.connection import Connection
from pserver.client.credentials import OPEN, Credentials
from pserver.deadline import Deadline
from pserver.errors import DeadlineError, PserverError
from pserver.status import from_status


class Channel(Protocol):
    """Carries bytes to one shard. Used on the client's event loop only."""

    @property
    def endpoint(self) -> str:
        """Return what errors call the shard: HOST:PORT, or ``embedded shard 0``."""
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
    """A channel to a server process. Made and used on the client's event loop.

    Attributes:
        connection: that calls go through.
    """

    def __init__(self, endpoint: str, credentials: Credentials = OPEN) -> None:
        """Name the server; the connection is made by the first call.

        Args:
            endpoint: HOST:PORT; a name is resolved again at each reconnect.
            credentials: what the server is shown.
        """
        self._endpoint = endpoint
        self.connection = Connection(endpoint, credentials)

    @property
    def endpoint(self) -> str:
        """Return HOST:PORT."""
        return self._endpoint

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one request and return the reply; see ``Channel.call``."""
        timeout_s = deadline.remaining_s
        try:
            return await self.connection.send(method, message, timeout_s=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._translate(method, error, timeout_s) from None

    def _translate(
        self, method: str, error: grpc.aio.AioRpcError, timeout_s: float
    ) -> PserverError:
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
        await self.connection.close()
