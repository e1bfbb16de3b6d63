"""The seam between client and network: one request to one shard, once.

Rooms before and after: ``sendqueue`` decides when and how often; behind it is gRPC, or in
embedded mode a servicer in this process (``pserver.embedded``).
"""

from typing import Protocol

import grpc

from pserver.client.connection import Connection
from pserver.client.credentials import OPEN, Credentials
from pserver.deadline import Deadline
from pserver.errors import DeadlineError, PserverError, UnavailableError
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
    """A channel to a server process. Made and used on the client's event loop."""

    def __init__(self, endpoint: str, credentials: Credentials = OPEN) -> None:
        """Name the server; the connection is made by the first call.

        Args:
            endpoint: HOST:PORT; a name is resolved again at each reconnect. ``HOST:PORT|HOST:PORT`` is a
                server and its standby: when one cannot be reached, or is a standby still, the next
                try goes to the other.
            credentials: what a server is shown.
        """
        self._endpoints = endpoint.split("|")
        self._connections = [Connection(name, credentials) for name in self._endpoints]
        self._turn = 0

    @property
    def endpoint(self) -> str:
        """Return the server that the next call goes to."""
        return self._endpoints[self._turn]

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one request and return the reply; see ``Channel.call``."""
        turn, timeout_s = self._turn, deadline.remaining_s
        try:
            return await self._connections[turn].send(method, message, timeout_s=timeout_s)
        except grpc.aio.AioRpcError as error:
            failure = self._translate(method, error, self._endpoints[turn], timeout_s)
        if isinstance(failure, UnavailableError | DeadlineError) and turn == self._turn:
            self._turn = (turn + 1) % len(self._endpoints)
        raise failure

    def _translate(
        self, method: str, error: grpc.aio.AioRpcError, endpoint: str, timeout_s: float
    ) -> PserverError:
        """Return our error for gRPC's, with the endpoint in front."""
        metadata = [(str(key), value) for key, value in error.trailing_metadata() or ()]
        text = error.details() or error.code().name
        ours = from_status(error.code(), f"{method} at {endpoint}: {text}", metadata)
        if isinstance(ours, DeadlineError):
            return no_answer(method, endpoint, timeout_s)
        return ours

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            await connection.close()
