"""One gRPC connection to one server, with the certificates and the token of now.

Rooms before and after: ``channel`` sends a request on it, once; ``credentials`` holds what the server is shown.

What always holds: a connection that was lost is made again with the certificates that are in the files then; what
is open on the one before may finish. Owner: the client's event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from pserver.client.credentials import Credentials, Metadata
from pserver.transport import SERVICE

_OLD_S = 20.0  # for calls that are open on a connection which is replaced

Call = Callable[..., Awaitable[bytes]]


class Connection:
    """A connection that is made by its first call.

    Attributes:
        more_metadata: that each call carries beside the token.
        has_answered: whether a server ever did.
    """

    def __init__(self, endpoint: str, credentials: Credentials) -> None:
        """Name the server."""
        self._endpoint = endpoint
        self._credentials = credentials
        self.more_metadata: Metadata = ()
        self.has_answered = False
        self._old: set[asyncio.Task[None]] = set()
        self._open()

    async def send(self, method: str, message: bytes, *, timeout_s: float) -> bytes:
        """Return the reply to one request.

        A server that refuses the token is asked again if the file has another one by now: it did not look at the
        request, so nothing can happen twice.

        Raises:
            AioRpcError: as gRPC has it.
        """
        try:
            return await self._noted(method, message, timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._renew()
            is_refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            if not (is_refused and self._credentials.renew_token()):
                raise
        return await self._noted(method, message, timeout_s)

    @property
    def hint(self) -> str:
        """Return what a connection that the other side closed at once may come from; empty: not known."""
        if self.has_answered or self._credentials.is_tls:
            return ""
        return "; does that server speak TLS? Then give --tls-cert, --tls-key and --tls-ca"

    async def close(self) -> None:
        """Close it, and those before it."""
        await self._channel.close()
        for closing in self._old:
            closing.cancel()

    def _open(self) -> None:
        """Take a connection with the certificates of now."""
        self._generation = self._credentials.generation
        self._channel = self._credentials.open(self._endpoint)
        self._methods: dict[str, Call] = {}

    async def _noted(self, method: str, message: bytes, timeout_s: float) -> bytes:
        reply = await self._once(method, message, timeout_s)
        self.has_answered = True
        return reply

    def _once(self, method: str, message: bytes, timeout_s: float) -> Awaitable[bytes]:
        stub = self._methods.get(method)
        if stub is None:
            stub = self._channel.unary_unary(f"/{SERVICE}/{method}")
            self._methods[method] = stub
        metadata = self._credentials.metadata + self.more_metadata
        return stub(message, timeout=timeout_s, metadata=metadata)

    def _renew(self) -> None:
        """Take another connection, if there are other certificates now."""
        self._credentials.renew_tls()
        if self._generation != self._credentials.generation:
            closing = asyncio.ensure_future(self._channel.close(_OLD_S))
            self._old.add(closing)
            closing.add_done_callback(self._old.discard)
            self._open()
